"""Norms and weighted sums of rows' gradients, layer by layer, from what went into a layer and the gradient of what came out.

A row's gradient of a layer's weights is a sum of outer products, so its norm, and a sum of such gradients with one factor for each
row, can be had without writing down a gradient for each row (Goodfellow 2015, arXiv 1510.01799; Li et al. 2021, arXiv 2110.05679; Bu et
al. 2022, arXiv 2210.00038). In all shapes ``n`` is the number of rows and ``t`` the number of places at which a row uses the weights.

A norm must be that of what is then added, and not of what would be added without rounding: over places a gradient may cancel, and what
float32 leaves of two numbers of 1e9 is of length 100. So a gradient that is a sum over places is either written down, and its own
values are measured and added, or measured and added in float64, with the rounding of that on top.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedloop_clients.training.bounding import LARGEST, lengths

__all__ = ["LayerGradients", "LayerRule", "rule_of"]

_MOST_WRITTEN = 1 << 22  # values of rows' gradients of one layer that are kept until they are summed: 16 MiB


@dataclass(frozen=True)
class LayerGradients:
    """What one layer gives: ``squared_norms`` float64 ``[n]`` of each row's gradient, all parameters of the layer together.

    ``weighted_sums`` takes factors float32 ``[n]`` and gives the sum over rows of factor times gradient, for each parameter that the layer
    has, weight before bias.
    """

    squared_norms: Tensor
    weighted_sums: Callable[[Tensor], list[Tensor]]


class LayerRule(Protocol):
    """How one layer's gradients follow from what went in and the gradient of what came out."""

    def __call__(self, entered: Tensor, gradient: Tensor) -> LayerGradients:
        """Of all rows of a batch."""


def rule_of(layer: nn.Module) -> LayerRule | None:
    """The rule of a layer; None when its kind, or a setting of it, has none.

    Only exact kinds: a subclass may do anything.
    """
    make = _RULES.get(type(layer))
    return None if make is None else make(layer)


@dataclass(frozen=True)
class _Affine:
    """``weight @ x + bias`` at ``t`` places.

    ``columns`` makes of what went in ``[n, inputs, t]``, ``gradients`` of a gradient ``[n, outputs, t]``.
    """

    bias: bool
    shape: tuple[int, ...]
    columns: Callable[[Tensor], Tensor]
    gradients: Callable[[Tensor], Tensor]

    def __call__(self, entered: Tensor, gradient: Tensor) -> LayerGradients:
        x, g = self.columns(entered), self.gradients(gradient)
        weights = self._weights(x, g)
        over_places = g.sum(dim=2) if self.bias else None
        if over_places is None:
            return LayerGradients(weights.squared_norms, lambda factors: [weights.sum(factors).reshape(self.shape)])
        return LayerGradients(
            weights.squared_norms + lengths(over_places).square(),
            lambda factors: [weights.sum(factors).reshape(self.shape), factors @ over_places],
        )

    def _weights(self, x: Tensor, g: Tensor) -> _WeightGradients:
        rows, inputs, places = x.shape
        outputs = g.shape[1]
        if places == 1:
            return _at_one_place(x[:, :, 0], g[:, :, 0])
        if places**2 <= inputs * outputs:
            return _by_products(x, g)
        if rows * inputs * outputs <= _MOST_WRITTEN:
            written = torch.bmm(g, x.mT).flatten(1)
            return _WeightGradients(lengths(written).square(), lambda factors: factors @ written)
        return _by_row(x, g)


@dataclass(frozen=True)
class _WeightGradients:
    """Of an affine layer's weight: ``squared_norms`` ``[n]``; ``sum`` takes factors ``[n]`` and gives ``outputs * inputs`` values."""

    squared_norms: Tensor
    sum: Callable[[Tensor], Tensor]


def _at_one_place(x: Tensor, g: Tensor) -> _WeightGradients:
    """Of ``[n, inputs]`` and ``[n, outputs]``: nothing is summed within a row, so its norm is the product of two.

    A factor times a gradient may be so small that float32 rounds it by as much as itself, and a great ``x`` would make that great again.
    """
    of_x = lengths(x)
    norms = (of_x * lengths(g)).masked_fill(of_x > LARGEST, math.inf)
    return _WeightGradients(norms.square(), lambda factors: (g * factors[:, None]).mT @ x)


def _by_products(x: Tensor, g: Tensor) -> _WeightGradients:
    """In float64, by the products of what each pair of places has in common.

    Where a row's places cancel, the sum of products is rounding and nothing else, and may even be below 0. That rounding is less than
    ``inputs + outputs + t**2`` times 2**-52 of the square of what the places have together (Higham 2002, section 3.1), and added to it.
    """
    (_, inputs, places), outputs = x.shape, g.shape[1]
    x, g = x.double(), g.double()
    norms = (torch.bmm(x.mT, x) * torch.bmm(g.mT, g)).sum(dim=(1, 2)).clamp(min=0.0)
    together = (torch.linalg.vector_norm(x, dim=1) * torch.linalg.vector_norm(g, dim=1)).sum(dim=1)
    rounding = (inputs + outputs + places**2) * torch.finfo(torch.float64).eps * together.square()

    def summed(factors: Tensor) -> Tensor:
        weighted = (g * factors[:, None, None]).transpose(0, 1).flatten(1)
        return (weighted @ x.transpose(0, 1).flatten(1).mT).float()

    return _WeightGradients(norms + rounding, summed)


def _by_row(x: Tensor, g: Tensor) -> _WeightGradients:
    """Written down twice, some rows at a time: to measure, and to add the very same values."""
    step = max(_MOST_WRITTEN // (x.shape[1] * g.shape[1]), 1)
    starts = range(0, len(x), step)

    def written(at: int) -> Tensor:
        return torch.bmm(g[at : at + step], x[at : at + step].mT).flatten(1)

    def summed(factors: Tensor) -> Tensor:
        total = factors[:step] @ written(0)
        for at in starts[1:]:
            total += factors[at : at + step] @ written(at)
        return total

    return _WeightGradients(torch.cat([lengths(written(at)) for at in starts]).square(), summed)


def _linear(layer: nn.Linear) -> LayerRule:
    def places_last(values: Tensor) -> Tensor:
        return values.flatten(1, -2).mT if values.dim() > 2 else values[:, :, None]

    return _Affine(layer.bias is not None, tuple(layer.weight.shape), places_last, places_last)


def _convolution(layer: nn.Conv1d | nn.Conv2d) -> LayerRule | None:
    if layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return None
    kernel, stride, padding, dilation = (
        _both(values) for values in (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    )
    flat = isinstance(layer, nn.Conv1d)
    if flat:  # a signal is an image of height one
        padding, stride, dilation = (0, padding[1]), (1, stride[1]), (1, dilation[1])
        kernel = (1, kernel[1])

    def windows(entered: Tensor) -> Tensor:
        """As ``torch.nn.functional.unfold``, which takes three to seven times as long."""
        image = entered[:, :, None, :] if flat else entered
        padded = functional.pad(image, (padding[1], padding[1], padding[0], padding[0])).contiguous()
        rows, channels, height, width = padded.shape
        high, wide = (
            (side - dilation[at] * (kernel[at] - 1) - 1) // stride[at] + 1 for at, side in enumerate((height, width))
        )
        by_row, by_channel, down, right = padded.stride()
        steps = (by_row, by_channel, down * dilation[0], right * dilation[1], down * stride[0], right * stride[1])
        view = padded.as_strided((rows, channels, *kernel, high, wide), steps)
        return view.reshape(rows, channels * kernel[0] * kernel[1], high * wide)

    def flattened(gradient: Tensor) -> Tensor:
        return gradient.flatten(2)

    return _Affine(layer.bias is not None, tuple(layer.weight.shape), windows, flattened)


def _both(values: tuple[int, ...]) -> tuple[int, int]:
    return (values[0], values[-1])


@dataclass(frozen=True)
class _Scale:
    """``weight * normalised + bias``, whose gradients are no larger than the layer: they are written down."""

    bias: bool
    shape: tuple[int, ...]
    normalised: Callable[[Tensor], Tensor]
    channels_first: bool

    def __call__(self, entered: Tensor, gradient: Tensor) -> LayerGradients:
        parts = self._rows(entered, gradient)
        norms = torch.stack([lengths(part) for part in parts]).square().sum(dim=0)
        return LayerGradients(norms, lambda factors: [(factors @ part).reshape(self.shape) for part in parts])

    def _rows(self, entered: Tensor, gradient: Tensor) -> list[Tensor]:
        """``[n, values]`` for each parameter."""
        parts = [gradient * self.normalised(entered), *([gradient] if self.bias else [])]
        values = math.prod(self.shape)
        if self.channels_first:
            return [part.reshape(len(part), values, -1).sum(dim=2) for part in parts]
        return [part.reshape(len(part), -1, values).sum(dim=1) for part in parts]


def _group_norm(layer: nn.GroupNorm) -> LayerRule:
    def normalised(entered: Tensor) -> Tensor:
        return functional.group_norm(entered, layer.num_groups, eps=layer.eps)

    return _Scale(layer.bias is not None, tuple(layer.weight.shape), normalised, channels_first=True)


def _layer_norm(layer: nn.LayerNorm) -> LayerRule:
    def normalised(entered: Tensor) -> Tensor:
        return functional.layer_norm(entered, layer.normalized_shape, eps=layer.eps)

    return _Scale(layer.bias is not None, tuple(layer.weight.shape), normalised, channels_first=False)


@dataclass(frozen=True)
class _Lookup:
    """Rows of a table; a row of the batch may look one of them up more than once."""

    shape: tuple[int, int]

    def __call__(self, entered: Tensor, gradient: Tensor) -> LayerGradients:
        codes, g = entered.flatten(1), gradient.flatten(1, -2)
        entries, width = self.shape
        places = torch.arange(len(codes), device=codes.device)[:, None] * entries + codes
        looked_up, which = torch.unique(places, return_inverse=True)  # each entry that a row looks up, once
        written = g.new_zeros(len(looked_up), width).index_add_(0, which.flatten(), g.flatten(0, 1))
        row, entry = looked_up // entries, looked_up % entries
        norms = lengths(written).new_zeros(len(codes)).index_add_(0, row, lengths(written).square())

        def weighted_sums(factors: Tensor) -> list[Tensor]:
            return [g.new_zeros(self.shape).index_add_(0, entry, written * factors[row, None])]

        return LayerGradients(norms, weighted_sums)


def _embedding(layer: nn.Embedding) -> LayerRule | None:
    if layer.padding_idx is not None or layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse:
        return None
    return _Lookup((layer.num_embeddings, layer.embedding_dim))


_RULES: dict[type[nn.Module], Callable[..., LayerRule | None]] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
}
