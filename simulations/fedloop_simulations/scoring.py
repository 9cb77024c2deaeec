"""What the simulator itself measures, by the same scores and estimates as sites and coordinator: only it sees all rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedloop_clients.evaluation import exact_scores
from fedloop_core.measure import measure_of
from fedloop_core.schema import ClassLabel, Label
from fedloop_server.runs.answers import measured_in
from fedloop_server.runs.estimates import estimate
from fedloop_server.runs.events import Measured
from fedloop_simulations.summary import Metric

__all__ = ["CONFIDENCE", "measured_answers", "measured_outputs", "metric_of"]

CONFIDENCE = 0.95
"""Of every interval that a simulation tells."""


def measured_outputs(
    label: Label, outputs: NDArray[np.float32], outcomes: NDArray[np.generic], name: str = "all"
) -> Sequence[Measured]:
    """What a model's outputs, float32 ``[rows, outputs]``, are worth by the outcomes of the same rows."""
    return measured_in(name, label, exact_scores(label, outputs, outcomes).message())


def measured_answers(label: Label, predicted: NDArray[np.float64], outcomes: NDArray[np.generic]) -> Sequence[Measured]:
    """The same of answers: places in the classes, or predicted numbers; float64 ``[rows]``."""
    if isinstance(label, ClassLabel):
        outputs = np.eye(len(label.classes), dtype=np.float32)[predicted.astype(np.int64)]
        return measured_outputs(label, outputs, outcomes.astype(np.int64))
    return measured_outputs(label, predicted[:, np.newaxis].astype(np.float32), outcomes)


def metric_of(label: Label, measured: Iterable[Measured]) -> Metric | None:
    """The estimate for a summary; none where nothing was measured."""
    found = tuple(measured)
    if not found:
        return None
    value = estimate(label, found, CONFIDENCE)
    return Metric.of(measure_of(label), value=value.value, low=value.low, high=value.high, rows=value.total)
