"""DP-SGD (Abadi et al. 2016, arXiv 1607.00133) on Opacus, with sampling and noise from our noise source.

What Opacus leaves open is closed here: a new optimizer for each round, so that nothing is carried between accounted
steps; gradients that are not finite are zeroed before clipping; an empty batch is a step like any other; and a batch that
is computed in several parts is never mixed with the next.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn

from fedloop_clients.training.bounding import clip_factors, lengths

__all__ = ["GaussianSource", "NoisyOptimizer", "forget_batch", "physical_batches", "private_module"]


class GaussianSource(Protocol):
    """Where noise comes from: a ``NoiseSource``, or what another process drew from one."""

    def normal(self, shape: tuple[int, ...], deviation: float) -> NDArray[np.float64]:
        """Gaussian noise."""


class NoisyOptimizer(DPOptimizer):  # type: ignore[misc]  # Opacus ships no types
    """Opacus' optimizer for gradients of *summed* losses, clipped by unit.

    Args:
        optimizer: the plain optimizer that takes the noisy mean gradient.
        noise: source of the noise.
        noise_multiplier: deviation of the noise over the clipping norm.
        clipping_norm: bound on the L2 norm of one unit's mean gradient.
        expected_batch_size: sampling rate times the number of units as it was told; fixed, whatever a batch
            holds.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        noise: GaussianSource,
        noise_multiplier: float,
        clipping_norm: float,
        expected_batch_size: float,
    ) -> None:
        super().__init__(
            optimizer,
            noise_multiplier=noise_multiplier,
            max_grad_norm=clipping_norm,
            expected_batch_size=expected_batch_size,
            loss_reduction="mean",
        )
        self._noise = noise
        self.nonfinite_gradients = 0
        self.forget()

    def forget(self) -> None:
        """Forgets what was added to the sums of a step that broke off."""
        for parameter in self.params:
            parameter.grad = parameter.grad_sample = parameter.summed_grad = None

    def accumulate(self, owners: NDArray[np.int64], units: int) -> None:
        """Clips and adds the gradients of one part of a batch.

        Args:
            owners: for each row of the part, the place of its unit in the part.
            units: number of units in the part.
        """
        if units == 0:
            for parameter in self.params:
                parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))
        elif len(owners) != units:
            self._zero_nonfinite()
            self._average_by_unit(torch.from_numpy(owners).to(self.params[0].device), units)
        self.clip_and_accumulate()
        for parameter in self.params:
            parameter.grad_sample = None

    def clip_and_accumulate(self) -> None:
        """Adds the gradients in ``grad_sample``, clipped; Opacus takes their lengths in float32.

        Those that are not finite, which finite rows of one unit may give together, or too long to be clipped, add nothing and are counted.
        """
        norms = torch.stack([lengths(parameter.grad_sample) for parameter in self.params]).square().sum(dim=0).sqrt()
        factors, sound = clip_factors(norms, self.max_grad_norm)
        bad = int((~sound).sum())
        sums = []
        for parameter in self.params:
            if bad:
                parameter.grad_sample[~sound] = 0.0
            sums.append((factors @ parameter.grad_sample.flatten(1)).view_as(parameter))
        self.add_clipped(sums, bad)

    def add_clipped(self, sums: list[Tensor], nonfinite: int) -> None:
        """Adds sums of gradients that are clipped already, ``nonfinite`` of which were set to 0."""
        self.nonfinite_gradients += nonfinite
        for parameter, total in zip(self.params, sums, strict=True):
            parameter.summed_grad = total if parameter.summed_grad is None else parameter.summed_grad + total

    def noisy_mean(self) -> None:
        """Adds noise to what was accumulated and divides by the expected batch size: ``grad`` of each parameter."""
        self.add_noise()
        for parameter in self.params:
            parameter.grad /= self.expected_batch_size

    def descend(self) -> None:
        """Steps along ``grad`` and forgets the batch."""
        self.original_optimizer.step()
        self.zero_grad(set_to_none=True)

    def add_noise(self) -> None:
        """Gaussian noise of deviation ``noise_multiplier * clipping_norm`` on each sum of clipped gradients."""
        deviation = self.noise_multiplier * self.max_grad_norm
        for parameter in self.params:
            noise = torch.from_numpy(self._noise.normal(tuple(parameter.shape), deviation))
            parameter.grad = (parameter.summed_grad.double() + noise.to(parameter.device)).to(parameter.dtype)

    def sum_of_rows(self) -> list[Tensor]:
        """The sum of the rows' gradients, those that are not finite zeroed; they are forgotten.

        For one unit whose rows do not fit the memory together: see ``accumulate_mean``.
        """
        self._zero_nonfinite()
        sums = [parameter.grad_sample.sum(dim=0) for parameter in self.params]
        for parameter in self.params:
            parameter.grad_sample = None
        return sums

    def accumulate_mean(self, sums: list[Tensor], rows: int) -> None:
        """Clips and adds the mean gradient of one unit, from sums over its rows."""
        for parameter, total in zip(self.params, sums, strict=True):
            parameter.grad_sample = (total / rows).unsqueeze(0)
        self.accumulate(np.zeros(1, dtype=np.int64), 1)

    def _zero_nonfinite(self) -> None:
        """Zeroes and counts the gradients, of rows or of units, that hold a value which is not finite."""
        finite: Tensor | None = None
        for parameter in self.params:
            own = torch.isfinite(parameter.grad_sample.flatten(1)).all(dim=1)
            finite = own if finite is None else finite & own
        if finite is None or bool(finite.all()):
            return
        self.nonfinite_gradients += int((~finite).sum())
        for parameter in self.params:
            parameter.grad_sample[~finite] = 0.0

    def _average_by_unit(self, owners: Tensor, units: int) -> None:
        rows = torch.bincount(owners, minlength=units)
        for parameter in self.params:
            total = parameter.new_zeros((units, *parameter.shape))
            total.index_add_(0, owners, parameter.grad_sample)
            parameter.grad_sample = total / rows.view(-1, *[1] * parameter.dim())


def physical_batches(units: NDArray[np.int64], rows: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], ...]:
    """Cuts one batch into parts of whole units with at most ``size`` rows each, one unit at least.

    Args:
        units: places of the batch's units; an empty batch is one empty part.
        rows: number of rows of each of these units.
        size: most rows of a part, unless one unit alone has more.
    """
    parts: list[NDArray[np.int64]] = []
    start, filled = 0, 0
    for at, count in enumerate(rows.tolist()):
        if at > start and filled + count > size:
            parts.append(units[start:at])
            start, filled = at, 0
        filled += count
    return (*parts, units[start:])


def private_module(backbone: nn.Module) -> GradSampleModule:
    """The backbone with hooks that keep each row's gradient of a *summed* loss."""
    return GradSampleModule(backbone, loss_reduction="sum", strict=False)


def forget_batch(module: GradSampleModule) -> None:
    """Forgets what a batch left behind that broke off: Opacus' hooks would take it for a part of the next one."""
    for part in module.modules():
        if hasattr(part, "activations"):
            part.activations = []
        if hasattr(part, "max_batch_len"):
            del part.max_batch_len
    for parameter in module.parameters():
        if hasattr(parameter, "_current_grad_sample"):
            del parameter._current_grad_sample  # noqa: SLF001  Opacus' own, without another way
        if hasattr(parameter, "_forward_counter"):
            parameter._forward_counter = 0  # noqa: SLF001
