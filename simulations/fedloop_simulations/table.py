"""The closing table of a simulation."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedloop_simulations.summary import Metric, Summary

__all__ = ["closing_table"]


def closing_table(summary: Summary) -> RenderableType:
    """Sites, versions, and what the devices answered, for a terminal."""
    parts: list[RenderableType] = [_sites(summary)]
    if summary.versions:
        parts.append(_versions(summary))
    if summary.devices:
        parts.append(_stream(summary))
    parts.extend(Text(line) for line in _sentences(summary))
    return Group(*parts)


def _sites(summary: Summary) -> Table:
    table = Table(title="Sites", title_justify="left")
    for name, justify in (("site", "left"), ("rows", "right"), ("feedback", "right"), ("held-out accuracy", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("epsilon of training rows", justify="right")
    held_out = summary.runs[0].held_out if summary.runs else {}
    for site in summary.sites:
        own = f"{held_out[site.name]:.3f}" if site.name in held_out else "-"
        spent = "no privacy" if site.epsilon is None else f"{site.epsilon:.2f} of {site.budget:.2f}"
        table.add_row(site.name, str(site.rows), str(site.feedback_rows), own, spent)
    if held_out:
        table.add_section()
        table.add_row("mean", "", "", f"{sum(held_out.values()) / len(held_out):.3f}", "")
    return table


def _versions(summary: Summary) -> Table:
    noise = " (with noise for privacy)" if summary.epsilon is not None else ""
    table = Table(title=f"Versions, as measured at the sites{noise}", title_justify="left")
    for name in ("version", "artifact", "bytes", "accuracy", "agrees with float"):
        table.add_column(name, justify="left" if name == "artifact" else "right")
    for version in summary.versions:
        for artifact in version.artifacts:
            agreement = "-" if artifact.agreement is None else f"{artifact.agreement:.3f}"
            table.add_row(
                str(version.number), artifact.kind, f"{artifact.bytes:,}", _interval(artifact.metrics), agreement
            )
    return table


def _stream(summary: Summary) -> Table:
    table = Table(title="What the devices answered", title_justify="left")
    table.add_column("phase")
    table.add_column("rows", justify="right")
    table.add_column("accuracy", justify="right")
    accuracy = summary.stream_accuracy
    rows = (
        ("before the change", accuracy.before),
        ("under it, old version", accuracy.under),
        ("new version", accuracy.after),
    )
    for name, metric in rows:
        if metric is not None:
            table.add_row(name, f"{metric.rows:.0f}", _interval(metric))
    return table


def _sentences(summary: Summary) -> Iterable[str]:
    drift = summary.drift
    if drift.detected:
        yield f"Drift was told by {drift.detected_by} at tick {drift.detected_at_tick}."
    elif drift.injected_at_tick is not None:
        yield "The injected drift was not told by any site."
    if summary.devices:
        newest = max((device.version or 0 for device in summary.devices), default=0)
        serving = sum(device.version == newest for device in summary.devices)
        yield f"Version {newest} serves on {serving} of {len(summary.devices)} devices."
    for out in summary.left_out:
        when = f"round {out.round}" if out.round else out.run
        yield f"{out.site} was left out of {when}: {out.code}, {out.reason}."
    if not summary.private:
        why = "its noise can be repeated from the seed" if summary.epsilon is not None else "it trained without noise"
        yield f"This rehearsal is not private: {why}."


def _interval(metric: Metric | None) -> str:
    return "-" if metric is None else f"{metric.accuracy:.3f} [{metric.low:.3f}, {metric.high:.3f}]"
