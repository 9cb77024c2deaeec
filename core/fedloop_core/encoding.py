"""From rows as people write them to the arrays that a model takes, the same at sites, on devices and in exports.

Inputs of a model, in this order, each present only if the schema has such features:

- ``numeric``: float32 ``[rows, numeric features]``, NaN where a value is missing and may be;
- ``categorical``: int64 ``[rows, categorical features]``, codes: place in the vocabulary, then other, then missing;
- one input for each image or signal, named as the feature: float32 ``[rows, *shape]``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedloop_core.errors import ColumnMissing, ColumnValueInvalid, LabelUnknown
from fedloop_core.schema import (
    CategoricalFeature,
    ClassLabel,
    FeatureSchema,
    ImageFeature,
    NumericFeature,
    RegressionLabel,
    SignalFeature,
    days_since_1970,
)

__all__ = ["CATEGORICAL", "NUMERIC", "Cell", "InputEncoder", "InputSpec", "Inputs", "Row"]

NUMERIC = "numeric"
CATEGORICAL = "categorical"

Cell = str | int | float | bool | NDArray[np.generic] | Sequence[object] | None
Row = Mapping[str, Cell]
Inputs = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class InputSpec:
    """One input of a model: its name, numpy dtype name and shape of one row."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class InputEncoder:
    """Encodes and checks rows by a schema; holds nothing but the schema."""

    def __init__(self, schema: FeatureSchema) -> None:
        self.schema = schema
        self._dates = schema.dates
        self._codes = {
            feature.name: {value: code for code, value in enumerate(feature.values)} for feature in schema.categorical
        }

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The model's inputs in order."""
        specs: list[InputSpec] = []
        if self.schema.numeric:
            specs.append(InputSpec(NUMERIC, "float32", (len(self.schema.numeric),)))
        if self.schema.categorical:
            specs.append(InputSpec(CATEGORICAL, "int64", (len(self.schema.categorical),)))
        specs.extend(InputSpec(feature.name, "float32", feature.shape) for feature in self.schema.tensors)
        return tuple(specs)

    def encode(self, rows: Sequence[Row]) -> Inputs:
        """Encodes rows to arrays with one entry for each row.

        Raises:
            ColumnMissing: a feature has no cell in a row.
            ColumnValueInvalid: a cell does not fit its feature. Out-of-range numbers are no error: see
                ``out_of_range``.
        """
        encoded: Inputs = {
            spec.name: np.empty((len(rows), *spec.shape), dtype=np.dtype(spec.dtype)) for spec in self.inputs
        }
        for at, row in enumerate(rows):
            for column, number in enumerate(self.schema.numeric):
                encoded[NUMERIC][at, column] = self._number(number, row, at)
            for column, category in enumerate(self.schema.categorical):
                encoded[CATEGORICAL][at, column] = self._code(category, row, at)
            for tensor in self.schema.tensors:
                encoded[tensor.name][at] = self._tensor(tensor, row, at)
        return encoded

    def encode_labels(self, labels: Sequence[Cell]) -> NDArray[np.generic]:
        """Class labels to int64 places in ``classes``; numbers of a regression to float32.

        Raises:
            LabelUnknown: a label that is not one of the classes, or not a finite number.
        """
        label = self.schema.label
        if isinstance(label, ClassLabel):
            codes = {name: code for code, name in enumerate(label.classes)}
            out = np.empty(len(labels), dtype=np.int64)
            for at, cell in enumerate(labels):
                text = _text(cell)
                if text not in codes:
                    raise LabelUnknown(
                        f"row {at + 1}: label {text!r} is not one of {', '.join(label.classes)}"
                        f"{_meant(text, label.classes)}.",
                        hint="Correct the row, or map the site's own codes to the task's classes.",
                        row=at + 1,
                    )
                out[at] = codes[text]
            return out
        if isinstance(label, RegressionLabel):
            values = np.array([_float(cell) for cell in labels], dtype=np.float32)
            if not np.isfinite(values).all():
                row = int(np.flatnonzero(~np.isfinite(values))[0]) + 1
                raise LabelUnknown(f"row {row}: the target {label.name!r} is not a finite number.", row=row)
            return values
        raise LabelUnknown("survival labels are encoded as two columns, time and event, not as one.")

    def out_of_range(self, inputs: Inputs) -> NDArray[np.bool_]:
        """Which rows hold a number outside its public range; missing values do not count."""
        rows = len(next(iter(inputs.values())))
        outside = np.zeros(rows, dtype=np.bool_)
        if self.schema.numeric:
            low = np.array([f.range[0] for f in self.schema.numeric], dtype=np.float32)
            high = np.array([f.range[1] for f in self.schema.numeric], dtype=np.float32)
            values = inputs[NUMERIC].astype(np.float32)
            outside |= ((values < low) | (values > high)).any(axis=1)
        for tensor in self.schema.tensors:
            cells = inputs[tensor.name].reshape(rows, -1).astype(np.float32)
            outside |= ((cells < tensor.range[0]) | (cells > tensor.range[1])).any(axis=1)
        return outside

    def _number(self, feature: NumericFeature, row: Row, at: int) -> float:
        cell = _cell(feature.name, row, at)
        if _is_missing(cell):
            if feature.missing == "mean":
                return math.nan
            raise _invalid(feature.name, at, "is missing, and this feature may not be")
        date = self._dates.get(feature.name)
        value = _float(cell) if date is None else _days(cell, date.format)
        if date is not None and not math.isfinite(value):
            raise _invalid(feature.name, at, f"is no date as {date.format} writes it: {cell!r}")
        if not math.isfinite(value):
            comma = " (write a decimal point)" if isinstance(cell, str) and cell.count(",") == 1 else ""
            raise _invalid(feature.name, at, f"is not a finite number: {cell!r}{comma}")
        return value

    def _code(self, feature: CategoricalFeature, row: Row, at: int) -> int:
        cell = _cell(feature.name, row, at)
        if _is_missing(cell):
            if feature.missing == "category":
                return feature.cardinality - 1
            raise _invalid(feature.name, at, "is missing, and this feature may not be")
        code = self._codes[feature.name].get(_text(cell))
        if code is not None:
            return code
        if feature.other:
            return len(feature.values)
        raise _invalid(
            feature.name,
            at,
            f"has the value {_text(cell)!r}, which is not in its vocabulary{_meant(_text(cell), feature.values)}",
        )

    def _tensor(self, feature: ImageFeature | SignalFeature, row: Row, at: int) -> NDArray[np.float32]:
        cell = _cell(feature.name, row, at)
        try:
            value = np.asarray(cell, dtype=np.float32)
        except (TypeError, ValueError):
            raise _invalid(feature.name, at, "is not an array of numbers") from None
        if value.size != math.prod(feature.shape):
            wanted = "x".join(map(str, feature.shape))
            raise _invalid(feature.name, at, f"has {value.size} numbers; {wanted} are needed")
        if not np.isfinite(value).all():
            raise _invalid(feature.name, at, "holds numbers that are not finite")
        return value.reshape(feature.shape)


def _cell(name: str, row: Row, at: int) -> Cell:
    if name not in row:
        raise ColumnMissing(
            f"row {at + 1} has no column {name!r}.", hint="Every feature of the task needs one.", column=name
        )
    return row[name]


def _invalid(column: str, at: int, what: str) -> ColumnValueInvalid:
    return ColumnValueInvalid(f"row {at + 1}, column {column!r} {what}.", column=column, row=at + 1)


def _meant(text: str, known: Sequence[str]) -> str:
    """The known spelling that differs in case and blanks alone; told, never put in silently."""
    same = [name for name in known if name.strip().casefold() == text.strip().casefold()]
    return f" (did you mean {same[0]!r}?)" if same else ""


def _is_missing(cell: Cell) -> bool:
    if cell is None or (isinstance(cell, str) and cell == ""):
        return True
    return isinstance(cell, float | np.floating) and math.isnan(float(cell))


def _float(cell: Cell) -> float:
    if isinstance(cell, bool) or not isinstance(cell, str | int | float | np.number):
        return math.nan
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _days(cell: Cell, date_format: str) -> float:
    """Days of a date that is text; a number is days already."""
    if not isinstance(cell, str):
        return _float(cell)
    try:
        return days_since_1970(cell, date_format)
    except ValueError:
        return math.nan


def _text(cell: Cell) -> str:
    """Category and label text: whole numbers lose a trailing ``.0`` so that 3 and 3.0 are one category."""
    if isinstance(cell, bool | np.bool_):
        return "1" if cell else "0"
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return str(cell)
