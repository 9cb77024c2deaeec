"""The monitor of one model version at one site: exact sketches in, findings out, and state in between.

Every window is tested twice: alone, which sees a sudden shift however long the quiet before it, and together with all
windows since activation, which gathers evidence for a small lasting one. Three families of tests run on each: columns
(covariate drift), predictions, and errors against labels that came back (quality; the only one that sees a change of
concept). Confidence is counted and shown, never tested: the reference holds training rows, on which a model is surer.

False alarms. ``false_alarm`` bounds the probability that *any* site's monitor *ever* alarms during a version's life in
an unchanged world, by union bounds all the way: over sites, over windows (window i spends 6 / (pi i)^2 of the total,
which adds up to 1 over endless windows), over the families, over the window alone and all windows, over columns.

The bounds ask for rows that are drawn independently; they hold for dependent columns.

Power, 30 columns, 4 sites, ``false_alarm`` 0.02, reference of 90 rows: in the first window a column alarms when its
distribution functions lie 0.55 apart (25 rows) or 0.43 (50 rows), which a normal column shifted by 1.5 or 1.15
deviations does half of the time. On the breast cancer data, 40 seeds, windows of 25 / 50 rows: recalibrated instruments
seen in the first window by all; an outcome mix changed from 37 % to about 75 % or 10 % by 16 / 29 in the first and
33 / 37 within four; labels that mean something else on 40 % of the rows by 36 / 40 in the first, all by the third.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from fedloop_clients.monitoring.statistics import distance, excess_error_p, p_value
from fedloop_core.errors import SketchRefused
from fedloop_core.sketch import Sketch
from fedloop_core.strict import Strict
from fedloop_core.task.document import Task

__all__ = ["DriftKind", "ErrorCount", "Finding", "Monitor", "MonitorPlan", "MonitorState", "Reference", "Test"]

Natural = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class DriftKind(StrEnum):
    """What moved: inputs, predictions, or the error rate."""

    COVARIATE = "covariate"
    PREDICTION = "prediction"
    QUALITY = "quality"


class ErrorCount(Strict):
    """Labelled rows and how many of them were predicted wrongly."""

    rows: Natural = 0
    wrong: Natural = 0

    @model_validator(mode="after")
    def _wrong_are_among_the_rows(self) -> Self:
        if self.wrong > self.rows:
            raise ValueError(f"{self.wrong} of {self.rows} rows cannot be wrong")
        return self

    def plus(self, other: ErrorCount) -> ErrorCount:
        """Both together."""
        return ErrorCount(rows=self.rows + other.rows, wrong=self.wrong + other.wrong)


class MonitorPlan(Strict):
    """Public numbers, fixed before any data is seen.

    ``window_rows`` and ``reference_rows`` are lower bounds that the plan assumes of windows and references; smaller
    ones are still handled, with less power. They bound the sensitivity of a released verdict.
    """

    false_alarm: Annotated[float, Field(gt=0, lt=0.5)]
    sites: Count
    window_rows: Count
    reference_rows: Count

    @classmethod
    def for_task(cls, task: Task, *, sites: int, window_rows: int | None = None, reference_rows: int) -> Self:
        """The plan of a task; a window is one sketch unless told otherwise."""
        rows = task.feedback.sketch_rows if window_rows is None else window_rows
        return cls(
            false_alarm=task.retraining.false_alarm, sites=sites, window_rows=rows, reference_rows=reference_rows
        )

    def alpha(self, window: int) -> float:
        """What window number ``window`` (from 1) may spend at this site."""
        return self.false_alarm / self.sites * 6.0 / (math.pi * window) ** 2


@dataclass(frozen=True)
class Reference:
    """The world as it was: the site's own rows over the served version's profile, with that version's predictions.

    ``quality`` must come from evaluation rows: training rows would make the version look better than it is.
    """

    sketch: Sketch
    quality: ErrorCount


class MonitorState(Strict):
    """What a monitor remembers between windows; nothing else is needed to go on after a restart."""

    version: Count
    windows: Natural = 0
    flat: tuple[Natural, ...]
    rows: Natural = 0
    missing: Natural = 0
    out_of_range: Natural = 0
    quality: ErrorCount = ErrorCount()
    alarmed_at: Count | None = None


class Test(Strict):
    """One test of one window: ``p`` against the share ``alpha`` of the false alarms that it may spend."""

    __test__ = False  # not a class of pytest's

    kind: DriftKind
    column: str
    cumulative: bool
    p: float
    alpha: float

    @property
    def alarmed(self) -> bool:
        """Whether the difference is too large for chance."""
        return self.p <= self.alpha

    @property
    def strength(self) -> float:
        """Log p over log alpha: 0 without any difference, 1 at the threshold, 2 at its square. Comparable across tests."""
        return math.log(max(self.p, 1e-300)) / math.log(self.alpha)


class Finding(Strict):
    """What one window shows. Exact: it stays in the site; ``release_verdict`` makes the statement that may leave.

    ``score`` is the strength of the strongest test, with the threshold at 1. ``distance`` is the largest distance of
    any column or of the predictions, of this window alone, scaled down if window or reference are smaller than planned.
    """

    version: int
    window: int
    rows: int
    alarmed: bool
    strongest: Test
    alarms: tuple[Test, ...]
    distance: float

    @property
    def score(self) -> float:
        """Strength of the strongest test."""
        return max(0.0, self.strongest.strength)

    @property
    def kind(self) -> DriftKind | None:
        """What moved most, if this window alarms."""
        return self.strongest.kind if self.alarmed else None


@dataclass(frozen=True)
class Monitor:
    """Compares windows with a reference by a plan; holds no state of its own."""

    plan: MonitorPlan
    reference: Reference
    version: int

    def start(self) -> MonitorState:
        """The state before the first window of this version."""
        return MonitorState(version=self.version, flat=(0,) * len(self.reference.sketch.flat))

    def update(
        self, state: MonitorState, window: Sketch, labelled: ErrorCount | None = None
    ) -> tuple[MonitorState, Finding]:
        """Takes in the next window and the labels that came back since the last one. Pure.

        Raises:
            SketchRefused: the window or the state is not of this version and profile.
        """
        profile = self.reference.sketch.profile
        if state.version != self.version or len(state.flat) != len(self.reference.sketch.flat):
            raise SketchRefused(
                f"the monitor's state is of version {state.version}; version {self.version} is watched.",
                reason="version",
            )
        before = Sketch(profile, np.array(state.flat, dtype=np.int64), state.rows, state.missing, state.out_of_range)
        together = before.merge(window)
        labels = labelled or ErrorCount()
        number = state.windows + 1
        tests = tuple(self._tests(number, window, together, labels, state.quality.plus(labels)))
        alarms = tuple(test for test in tests if test.alarmed)
        after = MonitorState(
            version=self.version,
            windows=number,
            flat=tuple(together.flat.tolist()),
            rows=together.rows,
            missing=together.missing,
            out_of_range=together.out_of_range,
            quality=state.quality.plus(labels),
            alarmed_at=state.alarmed_at or (number if alarms else None),
        )
        finding = Finding(
            version=self.version,
            window=number,
            rows=window.rows,
            alarmed=bool(alarms),
            strongest=max(tests, key=lambda test: test.strength),
            alarms=alarms,
            distance=self._distance(window),
        )
        return after, finding

    def _tests(
        self, number: int, window: Sketch, together: Sketch, labels: ErrorCount, all_labels: ErrorCount
    ) -> Iterator[Test]:
        # the first window and all windows so far are the same rows: one look, with the whole of the spending
        looks = (
            [(together, all_labels, True)] if number == 1 else [(window, labels, False), (together, all_labels, True)]
        )
        alpha = self.plan.alpha(number) / len(DriftKind) / len(looks)
        profile, reference = self.reference.sketch.profile, self.reference.sketch
        features = len(profile.features)
        for sketch, errors, cumulative in looks:
            for at, column in enumerate(profile.columns[:-1]):
                kind = DriftKind.COVARIATE if at < features else DriftKind.PREDICTION
                yield Test(
                    kind=kind,
                    column=column.name,
                    cumulative=cumulative,
                    p=p_value(column, reference.counts[at], sketch.counts[at]),
                    alpha=alpha / features if kind is DriftKind.COVARIATE else alpha,
                )
            known = self.reference.quality
            yield Test(
                kind=DriftKind.QUALITY,
                column="error",
                cumulative=cumulative,
                p=excess_error_p(errors.wrong, errors.rows, known.wrong, known.rows),
                alpha=alpha,
            )

    def _distance(self, window: Sketch) -> float:
        reference = self.reference.sketch
        tested = zip(reference.profile.columns[:-1], reference.counts[:-1], window.counts[:-1], strict=True)
        largest = max(distance(column, known, seen) for column, known, seen in tested)
        return (
            largest
            * min(1.0, window.rows / self.plan.window_rows)
            * min(1.0, reference.rows / self.plan.reference_rows)
        )
