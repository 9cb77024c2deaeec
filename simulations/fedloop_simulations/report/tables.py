"""The numbers under each chart, as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedloop_simulations.report.charts import PHASES
from fedloop_simulations.report.model import RoundPoint, RunReport, StreamPhase
from fedloop_simulations.report.spelling import percent

__all__ = ["Table", "artifact_table", "device_table", "drift_table", "privacy_table", "round_table", "stream_table"]

_NONE = "—"


@dataclass(frozen=True)
class Table:
    """Headings and rows of text; the first ``words`` columns are words, the others numbers."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1


def stream_table(report: RunReport) -> Table:
    """The measure by phase."""
    rows = (
        (
            PHASES[phase.phase],
            report.shown(phase.value),
            _interval(report, phase),
            str(phase.rows),
        )
        for phase in report.stream
    )
    return Table(("phase", report.measure.words, "95 % interval", "rows"), tuple(rows))


def drift_table(report: RunReport) -> Table:
    """Scores by window."""
    rows = (
        (
            score.site,
            "alarm" if score.alarmed else "quiet",
            str(score.version),
            str(score.window),
            str(score.tick),
            f"{score.score:.2f}",
            f"{score.threshold:.2f}",
        )
        for score in sorted(report.drift, key=lambda score: (score.tick, report.sites.index(score.site)))
    )
    return Table(("site", "verdict", "version", "window", "tick", "score", "threshold"), tuple(rows), words=2)


def device_table(report: RunReport) -> Table:
    """Changes of version."""
    rows = (
        (change.device, _NONE if change.version is None else str(change.version), str(change.tick))
        for change in sorted(report.device_versions, key=lambda change: (change.tick, change.device))
    )
    return Table(("device", "version", "from tick"), tuple(rows))


def round_table(report: RunReport) -> Table:
    """The measure by run, round and site."""
    points = sorted(report.rounds, key=lambda point: (point.version, point.round, report.sites.index(point.site)))
    rows = (
        (
            point.site,
            str(point.version),
            str(point.round),
            report.shown(point.value),
            _interval(report, point),
        )
        for point in points
    )
    return Table(("site", "version", "round", report.measure.words, "95 % interval"), tuple(rows))


def privacy_table(report: RunReport) -> Table:
    """Epsilon by site."""
    rows = (
        (line.site, *_numbers((line.epsilon, line.budget, line.evaluation_epsilon, line.evaluation_budget), ".3f"))
        for line in report.privacy
    )
    return Table(("site", "training rows", "budget", "evaluation rows", "budget"), tuple(rows))


def artifact_table(report: RunReport) -> Table:
    """Files of every version."""
    rows = (
        (
            line.kind,
            str(line.version),
            f"{line.bytes:,}",
            *_numbers((line.latency_us,), ",.1f"),
            _NONE if line.value is None else report.shown(line.value),
            _NONE if line.agreement is None else percent(line.agreement),
        )
        for line in report.artifacts
    )
    headings = ("artifact", "version", "bytes", "latency, µs", report.measure.words, "agrees with float")
    return Table(headings, tuple(rows))


def _interval(report: RunReport, found: RoundPoint | StreamPhase) -> str:
    return f"{report.shown(found.low)} to {report.shown(found.high)}"


def _numbers(values: Iterable[float | None], form: str) -> tuple[str, ...]:
    return tuple(_NONE if value is None else format(value, form) for value in values)
