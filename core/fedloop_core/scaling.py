"""The shared scaler of the numeric features: ``(value - mean) / deviation``, carried inside the model's graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedloop_core.arrays import NamedArrays
from fedloop_core.errors import UpdateRefused
from fedloop_core.schema import FeatureSchema

__all__ = ["SCALER_DEVIATION", "SCALER_MEAN", "Scaler"]

SCALER_MEAN = "scaler.mean"
SCALER_DEVIATION = "scaler.deviation"
_LEAST, _MOST = 1 / 100, 1 / 2  # deviations, as a share of the width of the public range
_ROUNDED = 1e-6  # relative: the arrays are float32


@dataclass(frozen=True)
class Scaler:
    """Mean and standard deviation of each numeric feature, float32 ``[numeric features]`` each."""

    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]

    @classmethod
    def from_ranges(cls, schema: FeatureSchema) -> Self:
        """From public ranges alone: the middle, and a quarter of the width (a range as mean ± 2 deviations)."""
        low = np.array([f.range[0] for f in schema.numeric], dtype=np.float64)
        high = np.array([f.range[1] for f in schema.numeric], dtype=np.float64)
        return cls(((low + high) / 2).astype(np.float32), ((high - low) / 4).astype(np.float32))

    @classmethod
    def from_moments(
        cls,
        schema: FeatureSchema,
        total: NDArray[np.float64],
        total_of_squares: NDArray[np.float64],
        count: NDArray[np.float64],
    ) -> Self:
        """From sums over training rows, possibly noised.

        Means are kept inside the public ranges and deviations between a hundredth and the half of their width, so that
        noise or a constant column never gives a scaler that explodes; the deviation has ``count - 1`` degrees of
        freedom.
        """
        low = np.array([f.range[0] for f in schema.numeric], dtype=np.float64)
        high = np.array([f.range[1] for f in schema.numeric], dtype=np.float64)
        width = high - low
        rows = np.maximum(count, 2.0)
        mean = np.clip(total / rows, low, high)
        variance = (total_of_squares - rows * mean**2) / (rows - 1)
        deviation = np.clip(np.sqrt(np.maximum(variance, 0.0)), width * _LEAST, width * _MOST)
        return cls(mean.astype(np.float32), deviation.astype(np.float32))

    @classmethod
    def identity(cls, schema: FeatureSchema) -> Self:
        """Changes nothing; for sites that scale by their own rows."""
        columns = len(schema.numeric)
        return cls(np.zeros(columns, dtype=np.float32), np.ones(columns, dtype=np.float32))

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """As named arrays that travel beside the weights."""
        return {SCALER_MEAN: self.mean, SCALER_DEVIATION: self.deviation}

    @classmethod
    def from_arrays(cls, arrays: NamedArrays) -> Self:
        """The scaler among the arrays that travel beside the weights."""
        return cls(arrays[SCALER_MEAN].astype(np.float32), arrays[SCALER_DEVIATION].astype(np.float32))

    @classmethod
    def received(cls, schema: FeatureSchema, arrays: NamedArrays) -> Self:
        """The scaler among arrays from the coordinator, which must be one that ``from_ranges`` or ``from_moments`` could give.

        Any other could make inputs as large as it likes, and so gradients that float32 cannot hold.

        Raises:
            UpdateRefused: none is there, it has other features, or a value that the public ranges do not allow.
        """
        if SCALER_MEAN not in arrays or SCALER_DEVIATION not in arrays:
            raise UpdateRefused("the scaler does not travel beside the weights.", reason="scaler")
        found = cls.from_arrays(arrays)
        for name, values in (("mean", found.mean), ("deviation", found.deviation)):
            if values.shape != (len(schema.numeric),):
                raise UpdateRefused(
                    f"the scaler's {name} has shape {values.shape}; the task has {len(schema.numeric)} numeric features.",
                    reason="shape",
                )
            if not np.isfinite(values).all():
                raise UpdateRefused(f"the scaler's {name} holds values that are not finite.", reason="not-finite")
        for at, feature in enumerate(schema.numeric):
            low, high = feature.range
            width, mean, deviation = high - low, float(found.mean[at]), float(found.deviation[at])
            slack = _ROUNDED * max(abs(low), abs(high))
            if not low - slack <= mean <= high + slack:
                raise UpdateRefused(
                    f"the scaler's mean of {feature.name} lies outside its public range.", reason="scaler"
                )
            if not width * _LEAST * (1 - _ROUNDED) <= deviation <= width * _MOST * (1 + _ROUNDED):
                raise UpdateRefused(
                    f"the scaler's deviation of {feature.name} is not between a hundredth and the half of the width of its "
                    "public range.",
                    reason="scaler",
                )
        return found
