"""Values that can be read and are probably not what the task means."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedloop_clients.doctor.finding import Finding, warning
from fedloop_core.dataset import Dataset
from fedloop_core.encoding import NUMERIC
from fedloop_core.schema import ClassLabel, RegressionLabel
from fedloop_core.task import Task

__all__ = ["strange_values"]

_MOST = 0.5  # of a column's values: a few beyond the range are only extreme


def strange_values(path: Path, rows: Dataset, task: Task) -> Iterator[Finding]:
    """Warns of each column of which most values lie outside the task's range, and of a label that is always the same.

    Args:
        path: the file, for the sentences.
        rows: those of its rows that fit the task.
        task: names columns, ranges and classes.
    """
    if len(rows) == 0:
        return
    schema, label = task.feature_schema, task.label
    for at, feature in enumerate(schema.numeric):
        yield from _beyond(path, feature.name, feature.unit or "", feature.range, rows.inputs[NUMERIC][:, at])
    if isinstance(label, RegressionLabel):
        yield from _beyond(path, label.name, "", label.range, rows.labels)
    if isinstance(label, ClassLabel) and len(found := np.unique(rows.labels)) == 1:
        yield warning(
            f"{path}: all {len(rows)} rows have the class {label.classes[int(found[0])]!r} in column {label.name!r}: nothing can "
            "be learnt from them alone.",
            "Are the others in another file, or written otherwise? See data.map in site.toml.",
        )


def _beyond(
    path: Path, column: str, unit: str, bounds: tuple[float, float], values: NDArray[np.generic]
) -> Iterator[Finding]:
    numbers = values.astype(np.float64)
    present = numbers[np.isfinite(numbers)]
    low, high = bounds
    outside = int(((present < low) | (present > high)).sum())
    if outside > _MOST * len(present):
        yield warning(
            f"{path}: {outside} of {len(present)} rows have values of column {column!r} outside the task's range, {low:g} to "
            f"{high:g}{f' {unit}' if unit else ''}; they count as its end.",
            "Is it in another unit? Convert the column.",
        )
