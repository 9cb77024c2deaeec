"""The charts of a report. Each takes the report and returns SVG, or an empty string when there is nothing to draw."""

from __future__ import annotations

from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedloop_core.measure import Measure
from fedloop_simulations.report.drawing import ALARM, INK, MUTED, SERIES, new_figure, quiet, to_svg
from fedloop_simulations.report.model import RunReport

__all__ = ["PHASES", "artifact_chart", "device_chart", "drift_chart", "privacy_chart", "round_chart", "stream_chart"]

PHASES = {"before": "before the shift", "under": "under the shift", "after": "with the new version"}
_NAMED_DEVICES = 24


def stream_chart(report: RunReport) -> str:
    """The measure of the devices' answers by phase, with intervals."""
    if not report.stream:
        return ""
    figure = new_figure(0.75 + 0.45 * len(report.stream))
    axes = figure.subplots()
    colours = {"before": SERIES[0], "under": ALARM, "after": SERIES[1]}
    for at, phase in enumerate(report.stream):
        colour = colours[phase.phase]
        axes.barh(at, phase.value, height=0.56, color=colour, alpha=0.85)
        axes.hlines(at, phase.low, phase.high, color=INK, linewidth=1.2)
        axes.vlines([phase.low, phase.high], at - 0.1, at + 0.1, color=INK, linewidth=1.2)
        axes.annotate(
            report.shown(phase.value),
            (0.0, at),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color="white",
            fontweight="bold",
        )
    axes.set_yticks(range(len(report.stream)), [PHASES[phase.phase] for phase in report.stream])
    axes.set_ylim(len(report.stream) - 0.5, -0.5)
    axes.set_xlim(0, _top(report.measure, max(phase.high for phase in report.stream)))
    if report.measure is Measure.ACCURACY:
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    quiet(axes, grid="x")
    axes.spines["bottom"].set_visible(False)
    return to_svg(figure, "stream", f"{report.measure.words.capitalize()} on the stream by phase")


def drift_chart(report: RunReport) -> str:
    """Drift scores of each site over time, the threshold, and the alarms."""
    if not report.drift:
        return ""
    figure = new_figure(3.1)
    axes = figure.subplots()
    for at, site in enumerate(report.sites):
        scores = sorted((score for score in report.drift if score.site == site), key=lambda score: score.tick)
        # a new version starts with a new reference: no line joins its scores to the old ones
        for version in sorted({score.version for score in scores}):
            own = [score for score in scores if score.version == version]
            axes.plot(
                [score.tick for score in own],
                [score.score for score in own],
                color=_colour(at),
                marker="o",
                markersize=3.5,
                label=site if version == scores[0].version else None,
            )
        alarms = [score for score in scores if score.alarmed]
        axes.scatter(
            [score.tick for score in alarms],
            [score.score for score in alarms],
            s=70,
            facecolors="none",
            edgecolors=ALARM,
            linewidths=1.6,
            zorder=5,
        )
    threshold = report.drift[0].threshold
    axes.axhline(threshold, color=ALARM, linestyle=(0, (5, 3)), linewidth=1.2)
    axes.annotate(
        "alarm at this line", (0, threshold), xytext=(3, 3), textcoords="offset points", color=ALARM, fontsize=9
    )
    _mark_shift(axes, report)
    axes.set_xlim(0, report.last_tick)
    axes.set_ylim(0, max(1.25 * threshold, 1.1 * max(score.score for score in report.drift)))
    axes.set_xlabel("tick")
    axes.set_ylabel("drift score")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    quiet(axes, grid="y")
    _legend_beside(axes, len(report.sites))
    return to_svg(figure, "drift", "Drift score of each site over time with its threshold")


def device_chart(report: RunReport) -> str:
    """Which version each device answers with, over time."""
    devices = report.devices
    if not devices:
        return ""
    named = len(devices) <= _NAMED_DEVICES
    figure = new_figure(0.9 + (0.24 * len(devices) if named else 4.5))
    axes = figure.subplots()
    versions = sorted({change.version for change in report.device_versions if change.version is not None})
    for at, device in enumerate(devices):
        changes = sorted((c for c in report.device_versions if c.device == device), key=lambda change: change.tick)
        ends = [*(change.tick for change in changes), max(report.last_tick, changes[-1].tick + 1)]
        for change, (start, end) in zip(changes, pairwise(ends), strict=True):
            if change.version is not None and end > start:
                colour = _colour(versions.index(change.version))
                axes.barh(at, end - start, left=start, height=0.7 if named else 1.0, color=colour, alpha=0.85)
    _mark_shift(axes, report)
    axes.set_xlim(0, max(1, report.last_tick))
    axes.set_ylim(len(devices) - 0.5, -0.5)
    axes.set_yticks(range(len(devices)) if named else [], [_short(device) for device in devices] if named else [])
    if not named:
        axes.set_ylabel(f"{len(devices)} devices")
    axes.set_xlabel("tick")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    quiet(axes, grid="x")
    axes.spines["left"].set_visible(False)
    handles = [Patch(color=_colour(at), alpha=0.85, label=f"version {version}") for at, version in enumerate(versions)]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return to_svg(figure, "devices", "Version in service on each device over time")


def round_chart(report: RunReport) -> str:
    """The measure of each site by round, one panel for each run."""
    if not report.rounds:
        return ""
    versions = sorted({point.version for point in report.rounds})
    figure = new_figure(3.1)
    panels = figure.subplots(1, len(versions), sharey=True, squeeze=False)[0]
    for axes, version in zip(panels, versions, strict=True):
        for at, site in enumerate(report.sites):
            points = sorted(
                (point for point in report.rounds if (point.version, point.site) == (version, site)),
                key=lambda point: point.round,
            )
            where, colour = [point.round for point in points], _colour(at)
            axes.plot(where, [point.value for point in points], color=colour, marker="o", markersize=3.5, label=site)
            axes.fill_between(
                where, [point.low for point in points], [point.high for point in points], color=colour, alpha=0.1, lw=0
            )
        axes.set_title(f"Run of version {version}")
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        quiet(axes, grid="y")
    low = min(point.value for point in report.rounds)
    bottom = max(0.0, min(0.5, low - 0.1)) if report.measure.rises else 0.0
    panels[0].set_ylim(bottom, 1.01 * _top(report.measure, max(point.value for point in report.rounds)))
    panels[0].set_ylabel(f"{report.measure.words} on evaluation rows")
    if report.measure is Measure.ACCURACY:
        panels[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _legend_beside(panels[-1], len(report.sites))
    return to_svg(figure, "rounds", f"{report.measure.words.capitalize()} of each site by round")


def privacy_chart(report: RunReport) -> str:
    """Epsilon spent for life against the budget, training and evaluation rows of each site."""
    lines = [line for line in report.privacy if line.epsilon is not None]
    if not lines:
        return ""
    figure = new_figure(0.95 + 0.52 * len(lines))
    axes = figure.subplots()
    for at, line in enumerate(lines):
        rows = ((-0.18, line.epsilon, line.budget), (0.18, line.evaluation_epsilon, line.evaluation_budget))
        for number, (offset, spent, budget) in enumerate(rows):
            if budget is not None:
                axes.barh(at + offset, budget, height=0.3, color=MUTED, alpha=0.35)
            if spent is not None:
                axes.barh(at + offset, spent, height=0.3, color=SERIES[number], alpha=0.9)
                axes.annotate(
                    f"{spent:.2f}",
                    (spent, at + offset),
                    xytext=(4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=9,
                )
    axes.set_yticks(range(len(lines)), [line.site for line in lines])
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.margins(x=0.08)
    axes.set_xlabel("epsilon for life")
    quiet(axes, grid="x")
    axes.spines["left"].set_visible(False)
    handles = [
        Patch(color=SERIES[0], alpha=0.9, label="training rows"),
        Patch(color=SERIES[1], alpha=0.9, label="evaluation rows"),
        Patch(color=MUTED, alpha=0.35, label="budget"),
    ]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return to_svg(figure, "privacy", "Privacy spent against budget by site")


def artifact_chart(report: RunReport) -> str:
    """Size and latency of the newest version's artifacts side by side."""
    if not report.artifacts:
        return ""
    newest = max(line.version for line in report.artifacts)
    lines = [line for line in report.artifacts if line.version == newest]
    figure = new_figure(0.95 + 0.36 * len(lines))
    size, latency = figure.subplots(1, 2, sharey=True)
    for at, line in enumerate(lines):
        size.barh(at, line.bytes / 1000, height=0.58, color=SERIES[0], alpha=0.85)
        _value(size, line.bytes / 1000, at)
        if line.latency_us is not None:
            latency.barh(at, line.latency_us, height=0.58, color=SERIES[1], alpha=0.85)
            _value(latency, line.latency_us, at)
    size.set_yticks(range(len(lines)), [line.kind for line in lines])
    size.set_ylim(len(lines) - 0.5, -0.5)
    size.set_xlabel("file, kB")
    latency.set_xlabel("one prediction, µs (median)")
    for axes in (size, latency):
        axes.margins(x=0.18)
        quiet(axes, grid="x")
        axes.spines["left"].set_visible(False)
    return to_svg(figure, "artifacts", "Size and latency of the newest version's artifacts")


def _top(measure: Measure, highest: float) -> float:
    """Where an axis of the measure ends: shares at 1, errors a little above the highest."""
    return 1.0 if measure.rises else max(1.1 * highest, 1e-9)


def _value(axes: Axes, value: float, at: int) -> None:
    axes.annotate(f"{value:,.1f}", (value, at), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)


def _mark_shift(axes: Axes, report: RunReport) -> None:
    if report.drift_tick is None:
        return
    axes.axvline(report.drift_tick, color=INK, linestyle=(0, (1, 2)), linewidth=1.3)
    axes.annotate(
        "the world changes",
        (report.drift_tick, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4, 2),
        textcoords="offset points",
        va="bottom",
        fontsize=9,
    )


def _legend_beside(axes: Axes, sites: int) -> None:
    """Site names beside the axes: as many as there are colours, then one line for the others."""
    handles, labels = axes.get_legend_handles_labels()
    shown = list(zip(handles, labels, strict=True))[: len(SERIES)]
    keys = [handle for handle, _ in shown]
    names = [label for _, label in shown]
    if sites > len(shown):
        keys.append(Line2D([], [], linestyle="none"))
        names.append(f"and {sites - len(shown)} more")
    axes.legend(keys, names, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _colour(at: int) -> str:
    return SERIES[at % len(SERIES)]


def _short(device: str) -> str:
    return device if len(device) <= 18 else f"{device[:17]}…"
