"""Labels of a batch: places in the classes, numbers, or times and events."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedloop_clients.data.cells.categories import parse_classes
from fedloop_clients.data.cells.faults import Fault
from fedloop_clients.data.column_plan import NumberPlan
from fedloop_clients.data.findings import Findings
from fedloop_clients.data.mapping import Mappings
from fedloop_core.schema import ClassLabel, Label, RegressionLabel, SurvivalLabel, label_columns

__all__ = ["LabelReader"]


class LabelReader:
    """Reads the label of a task.

    Args:
        label: the task's.
        mappings: what the site says of its columns.

    Raises:
        SettingsInvalid: the site says something of the label that it cannot be.
    """

    def __init__(self, label: Label, mappings: Mappings) -> None:
        self._label = label
        self._mappings = mappings
        self._numbers = tuple(NumberPlan.of(part, mappings) for part in _numbers_of(label))

    def columns(self) -> dict[str, tuple[str, ...]]:
        """The site's columns, by the task's name for what comes of them."""
        if self._numbers:
            return {plan.name: plan.columns for plan in self._numbers}
        return {name: (self._mappings.column(name),) for name in label_columns(self._label).values()}

    def none(self) -> NDArray[np.generic]:
        """The labels of no rows."""
        match self._label:
            case ClassLabel():
                return np.empty(0, dtype=np.int64)
            case RegressionLabel():
                return np.empty(0, dtype=np.float32)
            case SurvivalLabel():
                return np.empty((0, 2), dtype=np.float32)

    def read(self, columns: pa.RecordBatch, found: Findings) -> NDArray[np.generic]:
        """Labels of all rows, with what is wrong with them told to ``found``."""
        match self._label:
            case ClassLabel(name=name, classes=classes):
                codes = parse_classes(
                    columns.column(self._mappings.column(name)), classes, self._mappings.writing(name)
                )
                found.take_missing(name, codes.missing, may_be_missing=False)
                found.take(name, Fault.UNKNOWN_LABEL, codes.unknown)
                return codes.values
            case RegressionLabel():
                return self._parts(columns, found)[0].astype(np.float32)
            case SurvivalLabel(time=time_name, event=event_name):
                time, event = self._parts(columns, found)
                found.take(time_name, Fault.UNKNOWN_LABEL, time < 0)
                found.take(event_name, Fault.UNKNOWN_LABEL, np.isfinite(event) & (event != 0) & (event != 1))
                return np.stack([time, event], axis=1).astype(np.float32)

    def _parts(self, columns: pa.RecordBatch, found: Findings) -> list[NDArray[np.float64]]:
        parts: list[NDArray[np.float64]] = []
        for plan in self._numbers:
            numbers = plan.parse(columns)
            found.take_numbers(plan.name, numbers, may_be_missing=False)
            parts.append(numbers.values)
        return parts


def _numbers_of(label: Label) -> tuple[RegressionLabel, ...]:
    """The numbers that a label is made of."""
    match label:
        case ClassLabel():
            return ()
        case RegressionLabel():
            return (label,)
        case SurvivalLabel(time=time, event=event, time_range=time_range):
            return (
                RegressionLabel(kind="regression", name=time, range=time_range),
                RegressionLabel(kind="regression", name=event, range=(0.0, 1.0)),
            )
