"""Inputs drawn from what is public or already charged: ranges, vocabularies and the scaler. No row of data enters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedloop_core.encoding import CATEGORICAL, NUMERIC, Inputs
from fedloop_core.scaling import Scaler
from fedloop_core.schema import CategoricalFeature, FeatureSchema, ImageFeature, SignalFeature

__all__ = ["synthetic_inputs"]

_MISSING_SHARE = 0.1
_COARSE_CELLS = 5
_SPARSE_SHARE = 0.15


def synthetic_inputs(schema: FeatureSchema, scaler: Scaler, rows: int, *, seed: tuple[int, ...]) -> Inputs:
    """Rows as ``InputEncoder`` gives them, all inside the public ranges.

    Numbers are normal with the scaler's mean and deviation, and missing in a tenth of the cells where they may be, at
    least once for each such feature. Categories take every code in turn. Images and signals take three textures in
    turn: noise, a coarse mosaic, and a few bright cells on an even ground, each with a contrast of its own.
    """
    generator = np.random.default_rng(seed)
    inputs: Inputs = {}
    if schema.numeric:
        inputs[NUMERIC] = _numbers(schema, scaler, rows, generator)
    if schema.categorical:
        columns = [_codes(feature, rows, generator) for feature in schema.categorical]
        inputs[CATEGORICAL] = np.stack(columns, axis=1)
    for tensor in schema.tensors:
        inputs[tensor.name] = np.stack([_texture(tensor, row, generator) for row in range(rows)])
    return inputs


def _numbers(schema: FeatureSchema, scaler: Scaler, rows: int, generator: np.random.Generator) -> NDArray[np.float32]:
    low = np.array([feature.range[0] for feature in schema.numeric])
    high = np.array([feature.range[1] for feature in schema.numeric])
    drawn = scaler.mean + generator.standard_normal((rows, len(low))) * scaler.deviation
    numbers = np.clip(drawn, low, high).astype(np.float32)
    missing = generator.random(numbers.shape) < _MISSING_SHARE
    for column, feature in enumerate(schema.numeric):
        missing[column % rows, column] = True
        missing[:, column] &= feature.missing == "mean"
    numbers[missing] = np.nan
    return numbers


def _codes(feature: CategoricalFeature, rows: int, generator: np.random.Generator) -> NDArray[np.int64]:
    return generator.permutation(np.arange(rows, dtype=np.int64) % feature.cardinality)


def _texture(feature: ImageFeature | SignalFeature, row: int, generator: np.random.Generator) -> NDArray[np.float32]:
    channels, *sides = feature.shape
    match row % 3:
        case 0:
            cells = generator.random(feature.shape)
        case 1:
            cells = generator.random((channels, *(min(side, _COARSE_CELLS) for side in sides)))
            for axis, side in enumerate(sides, start=1):
                cells = cells.take(np.arange(side) * cells.shape[axis] // side, axis=axis)
        case _:
            cells = (generator.random(feature.shape) < _SPARSE_SHARE).astype(np.float64)
    contrast = generator.uniform(0.3, 1.0)
    ground = generator.uniform(0.0, 1.0 - contrast)
    low, high = feature.range
    values: NDArray[np.float64] = low + (high - low) * (ground + contrast * cells)
    return np.clip(values, low, high).astype(np.float32)
