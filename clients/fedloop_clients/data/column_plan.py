"""Which of a source's columns a task needs, and what becomes of each: settled before the first row is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedloop_clients.data.cells.dates import parse_dates
from fedloop_clients.data.cells.faults import Fault
from fedloop_clients.data.cells.numbers import Numbers, parse_numbers
from fedloop_clients.data.cells.writing import Writing
from fedloop_clients.data.expressions import Expression
from fedloop_clients.data.mapping import Mappings
from fedloop_clients.data.unit_conversion import conversion
from fedloop_core.schema import DateFeature, NumericFeature, RegressionLabel

__all__ = ["NumberPlan"]

_Convert = Callable[[NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True)
class NumberPlan:
    """How one number comes about: from a column or by an expression, then in the task's unit."""

    name: str
    columns: tuple[str, ...]
    expression: Expression | None
    convert: _Convert | None
    date_format: str | None
    writing: Writing

    @classmethod
    def of(cls, feature: NumericFeature | DateFeature | RegressionLabel, mappings: Mappings) -> NumberPlan:
        """Settles it.

        Raises:
            SettingsInvalid: a unit that cannot be converted, or something that is said of a date and not of numbers.
        """
        mapping = mappings.of(feature.name)
        is_date = isinstance(feature, DateFeature)
        for key, said in (("unit", mapping.unit), ("expression", mapping.expression)):
            if is_date and said is not None:
                raise mappings.refuse(feature.name, key, "is said of a date; it is for numbers")
        if mapping.format is not None and not is_date:
            raise mappings.refuse(feature.name, "format", "is said of a number; it is for dates")
        expression = None if mapping.expression is None else Expression.parse(mapping.expression)
        return cls(
            feature.name,
            (mappings.column(feature.name),) if expression is None else expression.columns,
            expression,
            None if is_date else _converter(feature, mappings),
            (mapping.format or feature.format) if isinstance(feature, DateFeature) else None,
            mappings.writing(feature.name),
        )

    def parse(self, batch: pa.RecordBatch) -> Numbers:
        """The numbers of a batch that has the columns."""
        if self.date_format is not None:
            return parse_dates(batch.column(self.columns[0]), self.date_format, self.writing)
        if self.expression is None:
            return self._converted(parse_numbers(batch.column(self.columns[0]), self.writing))
        parts = {name: parse_numbers(batch.column(name), self.writing) for name in self.columns}
        missing = np.any([part.missing for part in parts.values()], axis=0)
        faults: dict[Fault, NDArray[np.bool_]] = {}
        for part in parts.values():
            for fault, rows in part.faults.items():
                faults[fault] = faults.get(fault, np.zeros_like(rows)) | rows
        values = self.expression.value({name: part.values for name, part in parts.items()})
        return self._converted(_with_result(values, missing, faults))

    def _converted(self, numbers: Numbers) -> Numbers:
        if self.convert is None:
            return numbers
        return Numbers(self.convert(numbers.values), numbers.missing, numbers.faults)


def _converter(feature: NumericFeature | DateFeature | RegressionLabel, mappings: Mappings) -> _Convert | None:
    unit = mappings.of(feature.name).unit
    if unit is None or isinstance(feature, DateFeature) or unit == feature.unit:
        return None
    try:
        return conversion(unit, feature.unit)
    except ValueError as error:
        raise mappings.refuse(feature.name, "unit", f"does not fit the task: {error}") from error


def _with_result(
    values: NDArray[np.float64], missing: NDArray[np.bool_], faults: dict[Fault, NDArray[np.bool_]]
) -> Numbers:
    """A result that is no number, although all that it is made of is."""
    known = missing.copy()
    for rows in faults.values():
        known |= rows
    largest = float(np.finfo(np.float32).max)
    unbounded = ~(np.abs(values) <= largest) & ~known
    if unbounded.any():
        faults[Fault.NOT_FINITE] = faults.get(Fault.NOT_FINITE, np.zeros_like(unbounded)) | unbounded
    values[unbounded | known] = np.nan
    return Numbers(values, missing, faults)
