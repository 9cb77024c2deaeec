"""What the simulator itself measures of artifacts: latency on this machine, and agreement with the float artifact."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from fedloop_core.artifact import ArtifactDescription
from fedloop_core.dataset import Dataset
from fedloop_core.schema import ClassLabel
from fedloop_core.task.document import ExportTarget
from fedloop_edge.agent.runtimes import Runtime, load_runtime
from fedloop_server.release import PublishedArtifact
from fedloop_server.runs.candidate import FLOAT_REFERENCE

__all__ = ["ArtifactMeasurement", "measure_artifacts"]

_CALLS = 200
_ROWS = 500


@dataclass(frozen=True)
class ArtifactMeasurement:
    """Median microseconds of one prediction in the runtime, and the share of rows whose class the float artifact agrees on.

    There is no such share where the label is no class.
    """

    latency_us: float
    agreement: float | None


def measure_artifacts(
    artifacts: Sequence[PublishedArtifact], rows: Dataset
) -> Mapping[ExportTarget, ArtifactMeasurement]:
    """Measures the artifacts of one version, on at most 500 of these rows."""
    some = rows.take(np.arange(min(len(rows), _ROWS)))
    runtimes = {a.kind: load_runtime(ArtifactDescription.from_bytes(a.description), a.model) for a in artifacts}
    answers = {
        kind: runtime.run(some.inputs).argmax(axis=1)
        for kind, runtime in runtimes.items()
        if len(some) and isinstance(runtime.description.features.label, ClassLabel)
    }
    float_answers = answers.get(FLOAT_REFERENCE)
    measured: dict[ExportTarget, ArtifactMeasurement] = {}
    for kind, runtime in runtimes.items():
        agreement = None if float_answers is None else float((answers[kind] == float_answers).mean())
        measured[kind] = ArtifactMeasurement(_latency(runtime, some), agreement)
    return measured


def _latency(runtime: Runtime, rows: Dataset) -> float:
    if len(rows) == 0:
        return 0.0
    one = rows.take([0]).inputs
    seconds = []
    for _ in range(_CALLS):
        started = time.perf_counter()
        runtime.run(one)
        seconds.append(time.perf_counter() - started)
    return median(seconds) * 1e6
