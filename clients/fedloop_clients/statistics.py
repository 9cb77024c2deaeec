"""Sums over training rows for a scaler that all sites share."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedloop_clients.training.rows import UnitIndex
from fedloop_core.dataset import Dataset
from fedloop_core.encoding import NUMERIC
from fedloop_core.newton import design_matrix
from fedloop_core.noise import NoiseSource
from fedloop_core.scaling import Scaler
from fedloop_core.schema import FeatureSchema
from fedloop_core.task.document import NewtonRaphson, Task

__all__ = ["Moments", "exact_moments", "noised_moments", "own_scaler"]


@dataclass(frozen=True)
class Moments:
    """Sum, sum of squares and number of present values of each column, float64 ``[columns]`` each."""

    total: NDArray[np.float64]
    total_of_squares: NDArray[np.float64]
    count: NDArray[np.float64]

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """As named arrays that travel beside the answer."""
        return {"sum": self.total, "sum_of_squares": self.total_of_squares, "count": self.count}


def exact_moments(task: Task, rows: Dataset) -> Moments:
    """Exact sums of values clamped to their public ranges: of numeric features, for Newton of every design column."""
    schema = task.feature_schema
    newton = isinstance(task.training, NewtonRaphson)
    values = design_matrix(rows.inputs, schema) if newton else _clamped(schema, rows)
    present = np.isfinite(values)
    return Moments(np.nansum(values, axis=0), np.nansum(values**2, axis=0), present.sum(axis=0).astype(np.float64))


def noised_moments(schema: FeatureSchema, rows: Dataset, noise_multiplier: float, noise: NoiseSource) -> Moments:
    """Sums of numeric features under Gaussian noise; one release of ``GaussianCharge(noise_multiplier)``.

    Each unit gives one vector, the mean over its rows of (v, v^2, 1) for each feature with v in [-1, 1] by the public
    range; a missing value gives zeros. Its L2 norm is at most ``sqrt(3 d)``, and ``sqrt(2 d + 1)`` where no value may be
    missing, since all features then share one count. What is answered is in the features' own units again: that is
    post-processing, as is a count of at least 1.
    """
    features = schema.numeric
    columns = len(features)
    low, high = np.array([feature.range for feature in features], dtype=np.float64).T
    middle, reach = (low + high) / 2, (high - low) / 2
    scaled = (_clamped(schema, rows) - middle) / reach
    shared = all(feature.missing == "refuse" for feature in features)
    present = np.isfinite(scaled).astype(np.float64)
    values = np.nan_to_num(scaled, nan=0.0)
    counts = present[:, :1] if shared else present
    sums = _sum_of_unit_means(np.concatenate([values, values**2, counts], axis=1), rows.units)
    sensitivity = math.sqrt(2 * columns + (1 if shared else columns))
    sums += noise.normal(sums.shape, noise_multiplier * sensitivity)
    first, second, count = sums[:columns], sums[columns : 2 * columns], np.maximum(sums[2 * columns :], 1.0)
    return Moments(
        first * reach + count * middle,
        second * reach**2 + 2 * first * reach * middle + count * middle**2,
        np.broadcast_to(count, (columns,)).copy(),
    )


def own_scaler(schema: FeatureSchema, rows: Dataset) -> Scaler:
    """The scaler of a site that scales by its own training rows; nothing of it leaves the site."""
    values = _clamped(schema, rows)
    count = np.isfinite(values).sum(axis=0).astype(np.float64)
    return Scaler.from_moments(schema, np.nansum(values, axis=0), np.nansum(values**2, axis=0), count)


def _clamped(schema: FeatureSchema, rows: Dataset) -> NDArray[np.float64]:
    low, high = np.array([feature.range for feature in schema.numeric], dtype=np.float64).T
    return np.clip(rows.inputs[NUMERIC].astype(np.float64), low, high)


def _sum_of_unit_means(vectors: NDArray[np.float64], units: tuple[str, ...]) -> NDArray[np.float64]:
    index = UnitIndex.of(units)
    weights = np.empty(len(vectors))
    weights[index.rows] = np.repeat(1 / index.sizes, index.sizes)
    return np.asarray(weights @ vectors, dtype=np.float64)
