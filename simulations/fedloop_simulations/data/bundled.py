"""Data that ship with scikit-learn, encoded for the presets of the same name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fedloop_core.dataset import Dataset
from fedloop_core.encoding import InputEncoder, Row
from fedloop_core.task import Task

__all__ = ["BUNDLED", "bundled_rows"]


def bundled_rows(preset: str, task: Task) -> Dataset:
    """All rows of a bundled data set, each a unit of its own.

    Raises:
        ColumnValueInvalid: the task's features do not fit the data (an image of another size, say).
        LabelUnknown: the task's classes do not fit the data.
    """
    rows, labels = BUNDLED[preset]()
    encoder = InputEncoder(task.feature_schema)
    units = tuple(f"row-{number}" for number in range(1, len(rows) + 1))
    return Dataset(encoder.encode(rows), encoder.encode_labels(labels), units)


def _breast_cancer() -> tuple[Sequence[Row], Sequence[str]]:
    from sklearn.datasets import load_breast_cancer  # here, since it takes a second

    bunch = load_breast_cancer()
    names = [name.replace(" ", "_") for name in bunch.feature_names]
    rows: list[Row] = [dict(zip(names, map(float, values), strict=True)) for values in bunch.data]
    return rows, [str(bunch.target_names[target]) for target in bunch.target]


def _digits() -> tuple[Sequence[Row], Sequence[str]]:
    from sklearn.datasets import load_digits  # here, since it takes a second

    bunch = load_digits()
    rows: list[Row] = [{"image": image} for image in bunch.images]
    return rows, [str(target) for target in bunch.target]


BUNDLED: Mapping[str, Callable[[], tuple[Sequence[Row], Sequence[str]]]] = {
    "breast-cancer": _breast_cancer,
    "digits": _digits,
}
"""Rows and labels by the name of the preset."""
