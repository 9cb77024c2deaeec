"""Sums of clipped gradients by one forward and one backward pass, without a gradient for each row.

The backward pass stops at what came out of each layer. From that, and from what went in, follow each row's norm and the sum of the
rows' gradients with a factor for each row, here the one that clips (book-keeping, Bu et al. 2022, arXiv 2210.00038). Opacus has hooks, which
write down a gradient for each row, and ghost clipping, which goes backward twice; both take two and a half to six times as long as
training without privacy where a model has a million parameters (``benchmarks/dpsgd.py``).

Not every model can be kept book of: ``BookKeeping.of`` says so, and tries a model that seems to fit against autograd, row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedloop_clients.training.bounding import clip_factors
from fedloop_clients.training.layer_rules import LayerRule, rule_of

__all__ = ["BookKeeping", "ClippedSums"]

_CLOSE = 1e-3  # relative, of float32 sums over other orders
_ROUNDING = 1e-5


@dataclass(frozen=True)
class ClippedSums:
    """The sum over rows of clipped gradients, for each parameter; ``nonfinite`` of them were not finite or too long, and 0 in it."""

    sums: list[Tensor]
    nonfinite: int


@dataclass(frozen=True)
class _Layer:
    module: nn.Module
    rule: LayerRule
    places: tuple[int, ...]  # of its parameters, weight before bias


@dataclass(frozen=True)
class _Entry:
    layer: _Layer
    entered: Tensor
    left: Tensor


class BookKeeping:
    """Keeps book of a network whose trained parameters all lie in layers with a rule; see ``of``."""

    def __init__(self, layers: Sequence[_Layer], parameters: Sequence[Tensor]) -> None:
        self._layers = {id(layer.module): layer for layer in layers}
        self._modules = [layer.module for layer in layers]
        self._parameters = list(parameters)

    @classmethod
    def of(cls, backbone: nn.Module, parameters: Sequence[Tensor], losses: Callable[[], Tensor]) -> BookKeeping | None:
        """Book-keeping for a network, or None where it does not do.

        Args:
            backbone: the network.
            parameters: those that are trained, in their order.
            losses: the losses ``[rows]`` of some rows through the backbone, the same at each call; nobody's rows.
        """
        layers = _layers_of(backbone, parameters)
        if layers is None:
            return None
        made = cls(layers, parameters)
        return made if made._agrees(losses) else None

    def clipped_sums(self, loss: Callable[[], Tensor], clipping_norm: float) -> ClippedSums:
        """Goes forward and backward once.

        Args:
            loss: the sum of the rows' losses, through the backbone.
            clipping_norm: bound on the L2 norm of a row's gradient.

        Raises:
            RuntimeError: the backbone used a layer twice, or not at all.
        """
        with self._recorded() as entries:
            total = loss()
        used = [id(entry.layer.module) for entry in entries]
        if len(used) != len(self._layers) or len(set(used)) != len(used):
            raise RuntimeError(f"{len(self._layers)} layers were used {len(used)} times")
        gradients = torch.autograd.grad(total, [entry.left for entry in entries])
        with torch.no_grad():
            return self._summed(entries, gradients, clipping_norm)

    def _summed(self, entries: Sequence[_Entry], gradients: Sequence[Tensor], clipping_norm: float) -> ClippedSums:
        found = [e.layer.rule(e.entered, gradient) for e, gradient in zip(entries, gradients, strict=True)]
        norms = torch.stack([layer.squared_norms for layer in found]).sum(dim=0).sqrt()
        factors, sound = clip_factors(norms, clipping_norm)
        bad = int((~sound).sum())
        if bad:
            found = [
                e.layer.rule(_zeroed(e.entered, sound), _zeroed(gradient, sound))
                for e, gradient in zip(entries, gradients, strict=True)
            ]
        sums = [torch.empty(0)] * len(self._parameters)
        for entry, layer in zip(entries, found, strict=True):
            for place, total in zip(entry.layer.places, layer.weighted_sums(factors), strict=True):
                sums[place] = total
        return ClippedSums(sums, bad)

    @contextmanager
    def _recorded(self) -> Iterator[list[_Entry]]:
        entries: list[_Entry] = []

        def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            entries.append(_Entry(self._layers[id(module)], inputs[0].detach(), output))

        handles: list[RemovableHandle] = [module.register_forward_hook(record) for module in self._modules]
        try:
            yield entries
        finally:
            for handle in handles:
                handle.remove()

    def _agrees(self, losses: Callable[[], Tensor]) -> bool:
        """Whether the sums are those that autograd finds row by row, where all rows are clipped and where none is."""
        by_row = [torch.autograd.grad(loss, self._parameters, allow_unused=True) for loss in _each(losses)]
        if any(gradient is None for gradients in by_row for gradient in gradients):
            return False
        lengths = [float(torch.cat([g.flatten() for g in gradients]).norm()) for gradients in by_row]
        if not all(0 < length < float("inf") for length in lengths):
            return False
        for bound in (min(lengths) / 2, max(lengths) * 2):
            try:
                found = self.clipped_sums(lambda: losses().sum(), bound)
            except RuntimeError:
                return False
            wanted = [
                sum(g * min(bound / length, 1.0) for g, length in zip(of_rows, lengths, strict=True))
                for of_rows in zip(*by_row, strict=True)
            ]
            whole = float(torch.cat([w.flatten() for w in wanted]).norm())
            if found.nonfinite or not all(_close(f, w, whole) for f, w in zip(found.sums, wanted, strict=True)):
                return False
        return True


def _layers_of(backbone: nn.Module, parameters: Sequence[Tensor]) -> list[_Layer] | None:
    """The layers that hold the trained parameters; None when one has no rule, or holds others' or but some of its own."""
    places = {id(parameter): place for place, parameter in enumerate(parameters)}
    layers, covered = [], 0
    for module in backbone.modules():
        own = [parameter for parameter in module.parameters(recurse=False) if id(parameter) in places]
        if not own:
            continue
        rule = rule_of(module)
        if rule is None or len(own) != len(list(module.parameters(recurse=False))):
            return None
        layers.append(_Layer(module, rule, tuple(places[id(parameter)] for parameter in own)))
        covered += len(own)
    return layers if covered == len(places) else None


def _each(losses: Callable[[], Tensor]) -> Iterator[Tensor]:
    """The loss of each row, from a pass of its own."""
    for row in range(len(losses())):
        yield losses()[row]


def _zeroed(values: Tensor, sound: Tensor) -> Tensor:
    """With 0 where a row's gradient may not be added; codes stay as they are."""
    if not values.is_floating_point():
        return values
    return torch.where(sound.view(-1, *[1] * (values.dim() - 1)), values, torch.zeros_like(values))


def _close(found: Tensor, wanted: Tensor, whole: float) -> bool:
    """A bias before a normalisation has a gradient of nothing but rounding: that is measured by the ``whole``."""
    if found.shape != wanted.shape:
        return False
    return float((found - wanted).norm()) <= _CLOSE * float(wanted.norm()) + _ROUNDING * whole
