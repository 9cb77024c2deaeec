"""Convolutions with GroupNorm over an image or a signal; other features join before the hidden layer.

GroupNorm and not BatchNorm: it has no statistics of its own that would travel, and a row's answer and gradient do not
depend on the rest of its batch (Wu and He, arXiv 1803.08494).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedloop_core.models.logistic import TabularColumns
from fedloop_core.schema import FeatureSchema
from fedloop_core.task.document import CnnModel, SignalCnnModel

__all__ = ["ConvolutionNetwork", "image_network", "signal_network"]

_POOLS_FROM = 4  # halving a shorter side would leave GroupNorm a single value
_LARGEST_SIDE = 8  # of what is flattened, so that large inputs do not give huge layers


class ConvolutionNetwork(nn.Module):
    """``blocks`` over the image or signal, flattened, beside the tabular columns, then a hidden layer and the head."""

    def __init__(self, schema: FeatureSchema, blocks: nn.Sequential, flat: int, hidden: int) -> None:
        super().__init__()
        self.blocks = blocks
        tabular = bool(schema.numeric or schema.categorical)
        self.columns = TabularColumns(schema) if tabular else None
        width = flat + (self.columns.width if self.columns is not None else 0)
        self.head = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, schema.outputs))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Scores prepared inputs; the image or signal is the last of them."""
        columns = self.blocks(inputs[-1]).flatten(1)
        if self.columns is not None:
            columns = torch.cat([self.columns(*inputs[:-1]), columns], dim=1)
        outputs: Tensor = self.head(columns)
        return outputs


def image_network(schema: FeatureSchema, model: CnnModel) -> ConvolutionNetwork:
    """Blocks of 3x3 convolution, GroupNorm, ReLU and halving."""
    before, height, width = schema.tensors[0].shape
    layers: list[nn.Module] = []
    for channels in model.channels:
        layers += [nn.Conv2d(before, channels, 3, padding=1), _norm(channels), nn.ReLU()]
        if min(height, width) >= _POOLS_FROM:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        before = channels
    window = (math.ceil(height / _LARGEST_SIDE), math.ceil(width / _LARGEST_SIDE))
    if max(window) > 1:
        layers.append(nn.AvgPool2d(window))
    flat = before * (height // window[0]) * (width // window[1])
    return ConvolutionNetwork(schema, nn.Sequential(*layers), flat, model.hidden)


def signal_network(schema: FeatureSchema, model: SignalCnnModel) -> ConvolutionNetwork:
    """Blocks of convolution over ``kernel`` samples, GroupNorm, ReLU and halving."""
    before, length = schema.tensors[0].shape
    layers: list[nn.Module] = []
    padding = model.kernel // 2
    for channels in model.channels:
        layers += [nn.Conv1d(before, channels, model.kernel, padding=padding), _norm(channels), nn.ReLU()]
        length += 2 * padding - model.kernel + 1
        if length >= _POOLS_FROM:
            layers.append(nn.MaxPool1d(2))
            length //= 2
        before = channels
    window = math.ceil(length / _LARGEST_SIDE)
    if window > 1:
        layers.append(nn.AvgPool1d(window))
    return ConvolutionNetwork(schema, nn.Sequential(*layers), before * (length // window), model.hidden)


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(channels, 4), channels)
