"""The adversary of an audit: a coordinator who sees every update, and knows all rows, but not which canaries are in.

Each round it works out every row's clipped gradient at the weights that it sent. The update is about their sum, over the rows
that were in, so whether a canary was in is a number in a linear equation. All rounds together are solved by least squares,
each direction weighed by how much the sampling of known rows and the noise blur it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedloop_clients.training.network import Network
from fedloop_clients.training.rows import PreparedRows, UnitIndex, prepare
from fedloop_core.dataset import Dataset
from fedloop_core.errors import UsageError
from fedloop_core.privacy.charges import SampledGaussianCharge
from fedloop_core.scaling import SCALER_DEVIATION, SCALER_MEAN, Scaler
from fedloop_core.task import Task

__all__ = ["Adversary", "RowGradients"]

Matrix = NDArray[np.float64]
Arrays = Mapping[str, NDArray[Any]]
_TOGETHER = 128  # rows whose gradients are worked out at once
_FLOOR = 0.02  # of an update's length: what the linear equation leaves out


class _Loss(nn.Module):
    """The loss of one row as a function of the model's parameters."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.model = network.model
        self._loss = network.mean_loss

    def forward(self, inputs: tuple[Tensor, ...], label: Tensor) -> Tensor:
        return self._loss(PreparedRows(tuple(values[None] for values in inputs), label[None]))


class RowGradients:
    """Clipped gradients of units, worked out by autograd alone: not by the code that is audited."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._network = Network(task)
        self._loss = _Loss(self._network)

    @property
    def parameters(self) -> int:
        """How many are trained."""
        return sum(parameter.numel() for parameter in self._network.parameters)

    def of(self, arrays: Arrays, rows: Dataset) -> Matrix:
        """One line for each unit, in order of first appearance: its mean gradient, clipped; ``[units, parameters]``.

        Raises:
            UsageError: the model cannot be differentiated row by row.
        """
        weights = {name: torch.from_numpy(np.array(arrays[name])) for name in self._network.spec.names}
        self._network.load(list(weights.values()))
        if SCALER_MEAN in arrays and SCALER_DEVIATION in arrays:
            self._network.model.set_scaler(Scaler.from_arrays(arrays))
        prepared = prepare(self._network.model, rows)
        named = {f"model.{name}": values for name, values in weights.items()}

        def loss(parameters: dict[str, Tensor], inputs: tuple[Tensor, ...], label: Tensor) -> Tensor:
            value: Tensor = functional_call(self._loss, parameters, (inputs, label))
            return value

        each = vmap(grad(loss), in_dims=(None, 0, 0))
        parts: list[Matrix] = []
        for start in range(0, len(rows), _TOGETHER):
            batch = prepared.take(torch.arange(start, min(start + _TOGETHER, len(rows))))
            try:
                found = each(named, batch.inputs, batch.labels)
            except RuntimeError as error:  # torch cannot take a gradient for each row of such a model
                raise UsageError(
                    f"the model of task {self._task.name!r} gives no gradients of single rows outside the trainer.",
                    hint="Audit a task with one of the built-in models.",
                ) from error
            parts.append(torch.cat([found[name].flatten(1) for name in named], dim=1).double().numpy())
        return self._clipped(np.concatenate(parts), rows)

    def _clipped(self, gradients: Matrix, rows: Dataset) -> Matrix:
        units = UnitIndex.of(rows.units)
        if len(units) != len(rows):
            sums = np.add.reduceat(gradients[units.rows], units.starts[:-1], axis=0)
            gradients = sums / units.sizes[:, None]
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        clipped: Matrix = gradients * np.minimum(1.0, self._task.privacy.clipping_norm / np.maximum(norms, 1e-12))
        return clipped


@dataclass
class Adversary:
    """Collects the equations of one run.

    Args:
        gradients: works them out.
        charge: mechanism and parameters that are claimed of a round.
        expected_batch_size: by which a step's sum is divided.
        known: rows that are in for certain.
        canaries: rows of which each is in with probability one half.
    """

    gradients: RowGradients
    task: Task
    charge: SampledGaussianCharge
    expected_batch_size: float
    known: Dataset
    canaries: Dataset
    _information: Matrix = field(init=False)
    _evidence: Matrix = field(init=False)
    _at_start: tuple[Matrix, Matrix] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Begins with what a fair coin says: one half, with a variance of one quarter."""
        count = len(self.canaries)
        self._information = 4.0 * np.eye(count)
        self._evidence = np.full(count, 2.0)

    def observe(self, arrays: Arrays, update: Arrays) -> None:
        """A round: the arrays that were sent, and the update that came back."""
        moved = np.concatenate([np.asarray(values, dtype=np.float64).ravel() for values in update.values()])
        steps, rate = self.charge.steps, self.charge.sampling_rate
        known, canaries = self._along_the_way(arrays, update, steps)
        share = -self._reach(steps) * rate / self.expected_batch_size
        seen = moved - share * known.sum(axis=0)
        blur = steps * (1 - rate) / rate * (share / steps) ** 2
        alike = self._noise_in(moved, share, known, canaries, blur)
        weighed = _unblurred(np.vstack([canaries, seen[None]]), known, blur, alike)
        self._information += share**2 * canaries @ weighed[:-1].T
        self._evidence += share * canaries @ weighed[-1]

    def scores(self) -> Matrix:
        """For each canary how much speaks for its being in; one half says nothing."""
        return np.linalg.solve(self._information, self._evidence).astype(np.float64)

    @staticmethod
    def _noise_in(moved: Matrix, share: float, known: Matrix, canaries: Matrix, blur: float) -> float:
        """Variance of what no gradient explains, for each parameter: noise, and what the linear equation leaves out."""
        floor = (_FLOOR * float(np.linalg.norm(moved))) ** 2 / moved.size + 1e-18
        lines = np.vstack([known, canaries])
        free = moved.size - len(lines)
        if free > 0:
            gram = lines @ lines.T
            gram[np.diag_indices_from(gram)] += 1e-9 * np.trace(gram) / len(gram) + 1e-18
            rest = moved - np.linalg.solve(gram, lines @ moved) @ lines
            return max(float(rest @ rest) / free, floor)
        rest = moved - share * known.sum(axis=0) - share * 0.5 * canaries.sum(axis=0)
        return max((float(rest @ rest) - blur * float((known**2).sum())) / moved.size, floor)

    def _along_the_way(self, arrays: Arrays, update: Arrays, steps: int) -> tuple[Matrix, Matrix]:
        """Gradients of known rows and of canaries at the mean of the weights at which a round's steps began.

        Between the weights that were sent and those that came back, along the straight line.
        """
        ends = {name: np.asarray(values) + np.asarray(update.get(name, 0)) for name, values in arrays.items()}
        if self._at_start is None:
            self._at_start = self.gradients.of(arrays, self.known), self.gradients.of(arrays, self.canaries)
        known, canaries = self._at_start
        self._at_start = (
            self.gradients.of(ends, self.known),
            self.gradients.of(ends, self.canaries),
        )  # the next begins there
        share = (steps - 1) / (2 * steps)
        return known + share * (self._at_start[0] - known), canaries + share * (self._at_start[1] - canaries)

    def _reach(self, steps: int) -> float:
        """How far a gradient of length 1 in every step moves the weights."""
        training = self.task.training
        momentum, rate = getattr(training, "momentum", 0.0), getattr(training, "learning_rate", 1.0)
        return float(rate) * sum((1 - momentum**left) / (1 - momentum) for left in range(1, steps + 1))


def _unblurred(lines: Matrix, known: Matrix, blur: float, alike: float) -> Matrix:
    """Each line times the inverse of ``blur * known^T known + alike * 1``, by way of the smaller matrix (Woodbury)."""
    if blur == 0:
        return lines / alike
    inner = known @ known.T
    inner[np.diag_indices_from(inner)] += alike / blur
    taken = np.linalg.solve(inner, known @ lines.T).T @ known
    return ((lines - taken) / alike).astype(np.float64)
