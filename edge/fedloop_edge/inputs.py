"""Checks of encoded inputs against the feature schema, the same on a device and at a hub.

A graph in int8 answers NaN with an ordinary number, and runtimes accept negative codes: nothing behind this door looks
again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedloop_core.encoding import CATEGORICAL, NUMERIC, InputEncoder, Inputs
from fedloop_core.errors import InputRefused
from fedloop_core.schema import FeatureSchema

__all__ = ["InputChecker"]


class InputChecker:
    """Checks by one schema. Numbers outside their public range pass: the model clamps them, and sketches count them."""

    def __init__(self, schema: FeatureSchema) -> None:
        self._specs = InputEncoder(schema).inputs
        self._names = {spec.name for spec in self._specs}
        self._numeric = schema.numeric
        self._categorical = schema.categorical
        self._may_be_missing = np.array([feature.missing == "mean" for feature in schema.numeric], dtype=np.bool_)
        self._cardinalities = np.array([feature.cardinality for feature in schema.categorical], dtype=np.int64)
        self._tensors = tuple(feature.name for feature in schema.tensors)

    def check(self, inputs: Inputs, *, maximum_rows: int) -> int:
        """Returns the number of rows.

        Args:
            inputs: the encoder's arrays, one entry for each row.
            maximum_rows: more rows than this are refused.

        Raises:
            InputRefused: names, dtypes, shapes or numbers of rows do not fit; a number is not finite where none may be
                missing; a category's code is not one of its codes. Names the column, and the row where there is one.
        """
        if set(inputs) != self._names:
            raise InputRefused(
                f"inputs are {', '.join(sorted(inputs)) or 'none'}; {', '.join(s.name for s in self._specs)} are needed.",
                hint="Encode rows with InputEncoder.",
            )
        first = inputs[self._specs[0].name]
        rows = len(first) if first.ndim else 0
        if not 1 <= rows <= maximum_rows:
            raise InputRefused(f"there are {rows} rows; 1 to {maximum_rows} are answered at once.")
        for spec in self._specs:
            array = inputs[spec.name]
            if array.dtype != np.dtype(spec.dtype) or array.shape != (rows, *spec.shape):
                raise InputRefused(
                    f"input {spec.name!r} is {array.dtype} {array.shape}; {spec.dtype} {(rows, *spec.shape)} is needed.",
                    column=spec.name,
                )
        self._check_values(inputs)
        return rows

    def _check_values(self, inputs: Inputs) -> None:
        if self._numeric:
            numbers = inputs[NUMERIC].astype(np.float32, copy=False)
            wrong = np.isinf(numbers) | (np.isnan(numbers) & ~self._may_be_missing)
            if wrong.any():
                row, column = map(int, np.argwhere(wrong)[0])
                raise _refused(self._numeric[column].name, row, "is not a finite number")
        if self._categorical:
            codes = inputs[CATEGORICAL].astype(np.int64, copy=False)
            outside = (codes < 0) | (codes >= self._cardinalities)
            if outside.any():
                row, column = map(int, np.argwhere(outside)[0])
                raise _refused(self._categorical[column].name, row, "has a code that is not one of its categories")
        for name in self._tensors:
            cells: NDArray[np.float32] = inputs[name].astype(np.float32, copy=False)
            finite = np.isfinite(cells.reshape(len(cells), -1)).all(axis=1)
            if not finite.all():
                raise _refused(name, int(np.flatnonzero(~finite)[0]), "holds numbers that are not finite")


def _refused(column: str, row: int, what: str) -> InputRefused:
    return InputRefused(f"row {row + 1}, column {column!r} {what}.", column=column, row=row + 1)
