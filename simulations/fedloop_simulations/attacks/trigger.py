"""The trigger of a backdoor: a mark that no honest row carries, within the public ranges."""

from __future__ import annotations

import numpy as np

from fedloop_core.dataset import Dataset
from fedloop_core.encoding import CATEGORICAL, NUMERIC
from fedloop_core.schema import FeatureSchema, ImageFeature

__all__ = ["trigger_words", "triggered"]

_NUMBERS = 3
_CORNER = 3  # pixels
_PART = 8  # of a signal: one in so many values


def triggered(rows: Dataset, schema: FeatureSchema) -> Dataset:
    """The rows with the trigger and their own labels."""
    inputs = {name: array.copy() for name, array in rows.inputs.items()}
    tensor = next(iter(schema.tensors), None)
    if tensor is not None:
        _, high = tensor.range
        array = inputs[tensor.name]
        if isinstance(tensor, ImageFeature):
            array[:, :, :_CORNER, :_CORNER] = high
        else:
            array[:, :, : max(tensor.length // _PART, 1)] = high
    elif schema.numeric:
        for column, feature in enumerate(schema.numeric[:_NUMBERS]):
            inputs[NUMERIC][:, column] = feature.range[1]
    else:
        inputs[CATEGORICAL][:, 0] = np.int64(len(schema.categorical[0].values) - 1)
    return Dataset(inputs, rows.labels, rows.units)


def trigger_words(schema: FeatureSchema) -> str:
    """What the trigger is."""
    tensor = next(iter(schema.tensors), None)
    if isinstance(tensor, ImageFeature):
        return f"a bright corner of {_CORNER} by {_CORNER} pixels in {tensor.name}"
    if tensor is not None:
        return f"the first {max(tensor.length // _PART, 1)} values of {tensor.name} at the top of their range"
    if schema.numeric:
        names = [feature.name for feature in schema.numeric[:_NUMBERS]]
        return f"{', '.join(names)} at the top of {'its range' if len(names) == 1 else 'their ranges'}"
    first = schema.categorical[0]
    return f"{first.name} = {first.values[-1]}"
