"""A site's watch over numbers and hazards: sketches are compared, and only outcomes that devices send count as errors."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from fedloop_clients.feedback.store import FeedbackStore
from fedloop_clients.feedback.watch import SiteWatch, reference_of
from fedloop_clients.monitoring.monitor import DriftKind, MonitorPlan, Reference
from fedloop_clients.monitoring.verdict import VerdictPlan
from fedloop_core.dataset import Dataset
from fedloop_core.errors import FeedbackRefused
from fedloop_core.noise import SeededNoise
from fedloop_core.profile import Profile
from fedloop_core.scaling import Scaler
from fedloop_core.sketch import Sketch
from fedloop_core.task.document import Task
from fedloop_edge.agent.runtimes import Runtime
from fedloop_edge.hub import ReceivedExample, ReceivedSketch

WINDOW = 40


@dataclass(frozen=True)
class FirstColumn:
    """A model that answers with the first feature, which is the outcome of these tests' rows."""

    task: Task

    @property
    def description(self) -> Any:
        """As far as a watch looks."""
        return SimpleNamespace(features=self.task.feature_schema)

    def run(self, inputs: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Outputs, one for each row."""
        return inputs["numeric"][:, :1].astype(np.float32)


def task_of(label: dict[str, Any]) -> Task:
    return Task.model_validate(
        {
            "format": 1,
            "name": "watched",
            "features": [{"kind": "numeric", "name": "x", "range": (0.0, 100.0)}],
            "label": label,
            "model": {"kind": "logistic"},
            "privacy": {"epsilon": float("inf")},
        },
        strict=False,
    )


NUMBER = task_of({"kind": "regression", "name": "y", "range": (0.0, 100.0)})
SURVIVAL = task_of({"kind": "survival", "time": "t", "event": "e", "time_range": (0.0, 9.0)})


def rows_of(task: Task, count: int, seed: int) -> Dataset:
    values = np.random.default_rng(seed).uniform(0, 100, count).astype(np.float32)
    labels = values if task is NUMBER else np.stack([values, np.ones(count, np.float32)], axis=1)
    return Dataset({"numeric": values[:, np.newaxis]}, labels, tuple(f"{seed}-{at}" for at in range(count)))


def watching(task: Task) -> tuple[SiteWatch, Reference]:
    profile = Profile.for_schema(task.feature_schema, Scaler.from_ranges(task.feature_schema))
    runtime = cast("Runtime", FirstColumn(task))
    reference = reference_of(profile, runtime, rows_of(task, 200, 1), rows_of(task, 60, 2))
    plan = MonitorPlan.for_task(task, sites=1, window_rows=WINDOW, reference_rows=200)
    watch = SiteWatch(task, FeedbackStore(":memory:", task.feature_schema), SeededNoise(1), lambda *_: None)
    watch.begin(1, reference, plan, VerdictPlan.for_profile(plan, profile, float("inf")))
    return watch, reference


def see(watch: SiteWatch, reference: Reference, task: Task, seed: int) -> Dataset:
    """A window of the same world arrives."""
    rows = rows_of(task, WINDOW, seed)
    sketch = Sketch.empty(reference.sketch.profile).add(
        rows.inputs, rows.inputs["numeric"][:, 0], np.ones(WINDOW, np.float32)
    )
    watch.sketch("device", ReceivedSketch("q", seed, sketch.to_message(task=task.name, version=1, window=1)))
    return rows


def example(number: int, value: float, *, predicted: str, label: str) -> ReceivedExample:
    return ReceivedExample(
        queue_id="q",
        sequence=number,
        task="watched",
        version=1,
        prediction_id=f"p{number}",
        inputs={"numeric": np.array([[value]], np.float32)},
        predicted=predicted,
        label=label,
        unit="",
        observed_unix=0,
    )


@pytest.mark.parametrize(("off", "alarmed"), [(0.0, False), (9.0, False), (30.0, True)])
def test_numbers_far_from_their_outcomes_are_errors(off: float, alarmed: bool) -> None:
    watch, reference = watching(NUMBER)
    assert (reference.quality.rows, reference.quality.wrong) == (60, 0)
    rows = see(watch, reference, NUMBER, 5)
    for number, value in enumerate(rows.labels.tolist(), start=1):
        outcome = value + off if value < 50 else value - off
        watch.labelled("device", example(number, value, predicted=f"{value:.9g}", label=f"{outcome:.9g}"))
    window = watch.close_window(least_rows=WINDOW)
    assert window is not None
    assert window.finding.alarmed is alarmed
    assert not alarmed or window.finding.kind is DriftKind.QUALITY


def test_a_number_that_is_none_is_refused_before_it_is_kept() -> None:
    watch, _ = watching(NUMBER)
    with pytest.raises(FeedbackRefused):
        watch.labelled("device", example(1, 5.0, predicted="ten", label="10"))


def test_hazards_are_watched_without_outcomes() -> None:
    watch, reference = watching(SURVIVAL)
    assert reference.quality.rows == 0
    see(watch, reference, SURVIVAL, 5)
    window = watch.close_window(least_rows=WINDOW)
    assert window is not None
    assert not window.finding.alarmed
