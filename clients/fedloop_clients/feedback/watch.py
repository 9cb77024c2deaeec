"""The site's watch over one task: takes what devices send, and says after each window whether the world has changed.

Labelled examples go to the store, sketches into the open window, status reports to whoever steers the rollout. Everything
exact stays in the site; what ``close_window`` returns as a verdict was charged when the watch of its version began.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedloop_clients.feedback.store import FeedbackStore
from fedloop_clients.monitoring.monitor import ErrorCount, Finding, Monitor, MonitorPlan, MonitorState, Reference
from fedloop_clients.monitoring.verdict import Verdict, VerdictPlan, VerdictState, release_verdict
from fedloop_core.dataset import Dataset
from fedloop_core.errors import FeedbackRefused, SketchRefused
from fedloop_core.noise import NoiseSource
from fedloop_core.profile import Profile
from fedloop_core.schema import ClassLabel, Label, RegressionLabel, SurvivalLabel
from fedloop_core.sketch import Sketch
from fedloop_core.task.document import Task
from fedloop_edge.agent.runtimes import Runtime
from fedloop_edge.hub import ReceivedExample, ReceivedSketch, ReceivedStatus

__all__ = ["KnownUnits", "SiteWatch", "StatusObserver", "WatchedWindow", "reference_of"]

_TOLERATED = 0.1

StatusObserver = Callable[[str, ReceivedStatus], None]


@dataclass(frozen=True)
class WatchedWindow:
    """One closed window: what it shows, which stays in the site, and the verdict, which may leave it."""

    finding: Finding
    verdict: Verdict
    threshold: float


@dataclass(frozen=True)
class KnownUnits:
    """Whose rows a watch may look at, where it may not look at everybody's: ``may_read`` of a unit, ``most`` rows of each.

    Sketches of devices, which do not know whose rows they count, are passed over then. Windows are made here, of the rows that
    come back with a label and a unit.
    """

    may_read: Callable[[str], bool]
    most: int


@dataclass
class _Watched:
    """The version under watch; ``open`` collects rows of the next window, ``seen`` names the sketches that were taken in.

    ``rows_of`` counts the rows that were taken in of each unit, where only those of some units may be.
    """

    monitor: Monitor
    state: MonitorState
    verdicts: VerdictState
    open: Sketch
    labels: ErrorCount
    units: KnownUnits | None
    seen: set[tuple[str, int]] = field(default_factory=set)
    rows_of: Counter[str] = field(default_factory=Counter)

    def takes(self, unit: str) -> bool:
        """Whether one more row of a unit may be looked at."""
        known = self.units
        return known is not None and unit != "" and known.may_read(unit) and self.rows_of[unit] < known.most


class SiteWatch:
    """A ``fedloop_edge.hub.FeedbackSink`` for one task at one site; hubs call it from several threads."""

    def __init__(self, task: Task, store: FeedbackStore, noise: NoiseSource, observe: StatusObserver) -> None:
        self._task = task
        self._store = store
        self._noise = noise
        self._observe = observe
        self._lock = threading.Lock()
        self._watched: _Watched | None = None
        self.stale_sketches = 0
        self.passed_over = 0

    @property
    def version(self) -> int | None:
        """The version that is watched; None before the first, and while none can be paid for."""
        watched = self._watched
        return None if watched is None else watched.monitor.version

    def begin(
        self,
        version: int,
        reference: Reference,
        plan: MonitorPlan,
        verdict_plan: VerdictPlan,
        units: KnownUnits | None = None,
    ) -> None:
        """Watches a version from now on. Charge ``verdict_plan.charge`` before the first window is closed.

        Args:
            version: the version that devices serve.
            reference: what its rows are compared with.
            plan: of the monitor.
            verdict_plan: of what is told.
            units: whose rows may be looked at; None: everybody's.
        """
        monitor = Monitor(plan, reference, version)
        with self._lock:
            self._watched = _Watched(
                monitor=monitor,
                state=monitor.start(),
                verdicts=VerdictState.start(verdict_plan, self._noise.derive(f"verdict threshold {version}")),
                open=Sketch.empty(reference.sketch.profile),
                labels=ErrorCount(),
                units=units,
            )

    def rest(self) -> None:
        """Watches nothing until the next version: nobody can pay for more verdicts."""
        with self._lock:
            self._watched = None

    def labelled(self, device_id: str, example: ReceivedExample) -> None:
        """Keeps an example and counts whether its version was right.

        Raises:
            FeedbackRefused: the prediction is not one of the task's.
        """
        wrong = int(_is_wrong(self._task.label, example))
        if not self._store.add(device_id, example):
            return
        with self._lock:
            watched = self._watched
            if watched is None or example.version != watched.monitor.version:
                return
            if watched.units is None:
                watched.labels = watched.labels.plus(ErrorCount(rows=1, wrong=wrong))
            elif watched.takes(example.unit):
                watched.rows_of[example.unit] += 1
                watched.labels = watched.labels.plus(ErrorCount(rows=1, wrong=wrong))
                watched.open = _with_row(watched.open, self._task.label, example)

    def sketch(self, device_id: str, sketch: ReceivedSketch) -> None:  # noqa: ARG002  all devices of a site are one
        """Adds a sketch to the open window, once; one of another version, or of rows of anybody, is counted and dropped.

        Raises:
            SketchRefused: the counts are not over the version's profile, or no rows can give them.
        """
        message = sketch.message
        with self._lock:
            watched = self._watched
            if watched is None or (message.task, message.version) != (self._task.name, watched.monitor.version):
                self.stale_sketches += 1
                return
            if watched.units is not None:
                self.passed_over += 1
                return
            number = (sketch.queue_id, sketch.sequence)
            if number not in watched.seen:  # a hub that could not note it down passes it on again
                watched.open = watched.open.merge(Sketch.from_message(message, watched.open.profile))
                watched.seen.add(number)

    def status(self, device_id: str, report: ReceivedStatus) -> None:
        """Passes a report on."""
        self._observe(device_id, report)

    def close_window(self, *, least_rows: int) -> WatchedWindow | None:
        """Judges the open window if it has enough rows, and opens the next."""
        with self._lock:
            watched = self._watched
            if watched is None or watched.open.rows < least_rows:
                return None
            watched.state, finding = watched.monitor.update(watched.state, watched.open, watched.labels)
            noise = self._noise.derive(f"verdict {finding.version} {finding.window}")
            watched.verdicts, verdict = release_verdict(watched.verdicts, finding, noise)
            watched.open = Sketch.empty(watched.open.profile)
            watched.labels = ErrorCount()
            plan = watched.verdicts.plan
            threshold = plan.threshold(finding.window) if plan.private else 1.0
            return WatchedWindow(finding, verdict, threshold)


def reference_of(profile: Profile, runtime: Runtime, rows: Dataset, evaluation: Dataset) -> Reference:
    """The world as a version's own data show it: all rows with its predictions, and its errors on evaluation rows.

    Raises:
        SketchRefused: there is no row at all.
    """
    if len(rows) == 0:
        raise SketchRefused("a site without rows has nothing to compare devices with.", reason="rows")
    label = runtime.description.features.label
    predicted, confidence = _answers(label, runtime, rows)
    sketch = Sketch.empty(profile).add(rows.inputs, predicted, confidence)
    if len(evaluation) == 0:
        return Reference(sketch, ErrorCount())
    guessed, _ = _answers(label, runtime, evaluation)
    return Reference(sketch, _errors(label, guessed, evaluation.labels))


def _errors(label: Label, predicted: NDArray[np.generic], outcomes: NDArray[np.generic]) -> ErrorCount:
    """How many predictions were wrong; none are counted for survival, whose outcomes devices do not send."""
    match label:
        case ClassLabel():
            wrong = predicted != outcomes
        case RegressionLabel():
            wrong = _is_off(label, predicted, outcomes)
        case SurvivalLabel():
            return ErrorCount()
    return ErrorCount(rows=len(wrong), wrong=int(wrong.sum()))


def _with_row(sketch: Sketch, label: Label, example: ReceivedExample) -> Sketch:
    """With the example's row. How sure the device was did not come back with it, and is not tested.

    Raises:
        FeedbackRefused: the prediction is not one of the task's.
    """
    try:
        if isinstance(label, ClassLabel):
            predicted: NDArray[np.generic] = np.array([label.classes.index(example.predicted)])
        else:
            predicted = np.array([float(example.predicted)], dtype=np.float32)
    except ValueError as error:
        raise FeedbackRefused("an example's prediction is not one of the task's.") from error
    return sketch.add(example.inputs, predicted, np.ones(1))


def _is_wrong(label: Label, example: ReceivedExample) -> bool:
    if not isinstance(label, RegressionLabel):
        return example.predicted != example.label
    try:
        predicted, outcome = np.array([float(example.predicted)]), np.array([float(example.label)])
    except ValueError as error:
        raise FeedbackRefused("an example's prediction or outcome is not a number.") from error
    return bool(_is_off(label, predicted, outcome)[0])


def _is_off(label: RegressionLabel, predicted: NDArray[np.generic], outcomes: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Which numbers are wrong: further from the outcome than a tenth of the label's range, and those that are not finite.

    The line is public. One drawn from the reference's own errors would make the comparison of two counts invalid.
    """
    low, high = label.range
    outcome = np.clip(outcomes.astype(np.float64), low, high)
    near: NDArray[np.bool_] = np.abs(predicted.astype(np.float64) - outcome) <= _TOLERATED * (high - low)
    return ~near


def _answers(label: Label, runtime: Runtime, rows: Dataset) -> tuple[NDArray[np.generic], NDArray[np.float64]]:
    """Predicted class and its probability for each row; the number and 1 where the label is no class, as devices count."""
    logits = runtime.run(rows.inputs).astype(np.float64)
    if not isinstance(label, ClassLabel):
        return logits[:, 0].astype(np.float32), np.ones(len(logits))
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    return probabilities.argmax(axis=1).astype(np.int64), probabilities.max(axis=1)
