"""From raw inputs to what a backbone takes, and back to the label's unit: modules without trainable parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedloop_core.errors import UpdateRefused
from fedloop_core.scaling import Scaler
from fedloop_core.schema import CategoricalFeature, FeatureSchema, NumericFeature

__all__ = ["CodeOffsets", "NumericScaling", "OneHot", "RangeRestoring", "RangeScaling"]


class NumericScaling(nn.Module):
    """Clamps numbers to their public ranges and scales them: ``(value - mean) / deviation``.

    Float32 ``[rows, numeric features]`` in and out. A missing value (NaN) becomes 0, which is the mean, where the
    feature allows it; elsewhere NaN stays NaN, so that it shows in the answer.
    """

    def __init__(self, schema: FeatureSchema) -> None:
        super().__init__()
        features = schema.numeric
        self.register_buffer("low", torch.tensor([f.range[0] for f in features], dtype=torch.float32))
        self.register_buffer("high", torch.tensor([f.range[1] for f in features], dtype=torch.float32))
        self.register_buffer("fill", torch.tensor([_fill(f) for f in features], dtype=torch.float32))
        self.register_buffer("mean", torch.zeros(len(features)))
        self.register_buffer("deviation", torch.ones(len(features)))
        self._fills = any(feature.missing == "mean" for feature in features)
        self.set_scaler(Scaler.from_ranges(schema))

    low: Tensor
    high: Tensor
    fill: Tensor
    mean: Tensor
    deviation: Tensor

    def set_scaler(self, scaler: Scaler) -> None:
        """Takes the means and deviations over.

        Raises:
            UpdateRefused: another number of features, values that are not finite, or a deviation not above 0.
        """
        for name, values in (("mean", scaler.mean), ("deviation", scaler.deviation)):
            if values.shape != tuple(self.mean.shape):
                raise UpdateRefused(
                    f"the scaler's {name} has shape {values.shape}; the task has {len(self.mean)} numeric features.",
                    reason="shape",
                )
            if not np.isfinite(values).all():
                raise UpdateRefused(f"the scaler's {name} holds values that are not finite.", reason="not-finite")
        if (scaler.deviation <= 0).any():
            raise UpdateRefused("the scaler has a deviation that is not above 0.", reason="scaler")
        self.mean.copy_(torch.from_numpy(scaler.mean.astype(np.float32)))
        self.deviation.copy_(torch.from_numpy(scaler.deviation.astype(np.float32)))

    def forward(self, numbers: Tensor) -> Tensor:
        """Scales ``numbers``."""
        clamped = torch.clamp(numbers, self.low, self.high)
        scaled = (clamped - self.mean) / self.deviation
        # Last, and from the raw numbers: runtimes differ in what clamping does to NaN.
        return torch.where(torch.isnan(numbers), self.fill, scaled) if self._fills else scaled


class RangeScaling(nn.Module):
    """Clamps an image or signal to its public range and scales that range to [-1, 1]."""

    def __init__(self, bounds: tuple[float, float]) -> None:
        super().__init__()
        self.low, self.high = bounds
        self.middle = (self.low + self.high) / 2
        self.reach = (self.high - self.low) / 2

    def forward(self, values: Tensor) -> Tensor:
        """Scales ``values``, whatever their shape."""
        return (torch.clamp(values, self.low, self.high) - self.middle) / self.reach


class RangeRestoring(nn.Module):
    """Takes [-1, 1] back to a public range; what lies beyond stays beyond."""

    def __init__(self, bounds: tuple[float, float]) -> None:
        super().__init__()
        low, high = bounds
        self.middle = (low + high) / 2
        self.reach = (high - low) / 2

    def forward(self, values: Tensor) -> Tensor:
        """Restores ``values``, whatever their shape."""
        return values * self.reach + self.middle


class OneHot(nn.Module):
    """Codes int64 ``[rows, features]`` to float32 ``[rows, width]``: one column for each category of each feature."""

    def __init__(self, features: Sequence[CategoricalFeature]) -> None:
        super().__init__()
        pairs = [(at, code) for at, feature in enumerate(features) for code in range(feature.cardinality)]
        self.width = len(pairs)
        self.register_buffer("feature", torch.tensor([at for at, _ in pairs], dtype=torch.int64))
        self.register_buffer("code", torch.tensor([code for _, code in pairs], dtype=torch.int64))

    feature: Tensor
    code: Tensor

    def forward(self, codes: Tensor) -> Tensor:
        """Compares each code with each of its feature's categories."""
        return (codes.index_select(1, self.feature) == self.code).to(torch.float32)


class CodeOffsets(nn.Module):
    """Moves each feature's codes into a range of their own, so that one embedding table serves all features."""

    def __init__(self, features: Sequence[CategoricalFeature]) -> None:
        super().__init__()
        starts = [sum(f.cardinality for f in features[:at]) for at in range(len(features))]
        self.entries = sum(feature.cardinality for feature in features)
        self.register_buffer("start", torch.tensor(starts, dtype=torch.int64))

    start: Tensor

    def forward(self, codes: Tensor) -> Tensor:
        """Int64 ``[rows, features]`` in and out."""
        return codes + self.start


def _fill(feature: NumericFeature) -> float:
    return 0.0 if feature.missing == "mean" else math.nan
