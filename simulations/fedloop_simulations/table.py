"""The closing table of a simulation."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedloop_core.measure import Measure
from fedloop_simulations.attacks.telling import attack_sentences, bounded_sentences
from fedloop_simulations.summary import AttackSummary, Metric, Summary

__all__ = ["closing_table"]


def closing_table(summary: Summary) -> RenderableType:
    """Sites, versions, and what the devices answered, for a terminal."""
    parts: list[RenderableType] = [Text(line, style="bold") for line in attack_sentences(summary)]
    if summary.attack is not None:
        parts.append(_attack(summary.attack))
    parts.append(_sites(summary))
    if summary.versions:
        parts.append(_versions(summary))
    if summary.devices:
        parts.append(_stream(summary))
    parts.extend(Text(line) for line in _sentences(summary))
    return Group(*parts)


def _attack(attack: AttackSummary) -> Table:
    table = Table(title=f"Updates under attack, aggregation by {attack.rule}", title_justify="left")
    table.add_column("site")
    for name in ("folded", "refused", "shortened", "norm as it came", "share of each"):
        table.add_column(name, justify="right")
    for line in (*attack.sites, attack.honest):
        table.add_row(
            f"{line.site} (lies)" if line.site else "the honest ones",
            str(line.folded),
            f"{line.refused} ({', '.join(line.codes)})" if line.refused else "0",
            str(line.bounded),
            "-" if line.norm is None else f"{line.norm:.3g}",
            "-" if line.share is None else f"{line.share:.3f}",
        )
    return table


def _sites(summary: Summary) -> Table:
    table = Table(title="Sites", title_justify="left")
    for name, justify in (
        ("site", "left"),
        ("rows", "right"),
        ("feedback", "right"),
        (f"held-out {summary.measure.words}", "right"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("epsilon of training rows", justify="right")
    held_out = summary.runs[0].held_out if summary.runs else {}
    for site in summary.sites:
        own = _number(held_out[site.name], summary) if site.name in held_out else "-"
        spent = "no privacy" if site.epsilon is None else f"{site.epsilon:.2f} of {site.budget:.2f}"
        table.add_row(site.name, str(site.rows), str(site.feedback_rows), own, spent)
    if held_out:
        table.add_section()
        table.add_row("mean", "", "", _number(sum(held_out.values()) / len(held_out), summary), "")
    return table


def _versions(summary: Summary) -> Table:
    noise = " (with noise for privacy)" if summary.epsilon is not None else ""
    table = Table(title=f"Versions, as measured at the sites{noise}", title_justify="left")
    for name in ("version", "artifact", "bytes", summary.measure.words, "agrees with float"):
        table.add_column(name, justify="left" if name == "artifact" else "right")
    for version in summary.versions:
        for artifact in version.artifacts:
            agreement = "-" if artifact.agreement is None else f"{artifact.agreement:.3f}"
            table.add_row(
                str(version.number),
                artifact.kind,
                f"{artifact.bytes:,}",
                _interval(artifact.metrics, summary),
                agreement,
            )
    return table


def _stream(summary: Summary) -> Table:
    table = Table(title="What the devices answered", title_justify="left")
    table.add_column("phase")
    table.add_column("rows", justify="right")
    table.add_column(summary.measure.words, justify="right")
    stream = summary.stream
    rows = (
        ("before the change", stream.before),
        ("under it, old version", stream.under),
        ("new version", stream.after),
    )
    for name, metric in rows:
        if metric is not None:
            table.add_row(name, f"{metric.rows:.0f}", _interval(metric, summary))
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
    if summary.measure is Measure.CONCORDANCE and summary.devices:
        yield "Devices answered with log hazards; outcomes of a survival label do not come back from them."
    yield from bounded_sentences(summary)
    for out in summary.left_out:
        when = f"round {out.round}" if out.round else out.run
        yield f"{out.site} was left out of {when}: {out.code}, {out.reason}."
    if not summary.private:
        why = "its noise can be repeated from the seed" if summary.epsilon is not None else "it trained without noise"
        yield f"This rehearsal is not private: {why}."


def _interval(metric: Metric | None, summary: Summary) -> str:
    if metric is None:
        return "-"
    low, high = _number(metric.low, summary), _number(metric.high, summary)
    return f"{_number(metric.value, summary)} [{low}, {high}]"


def _number(value: float, summary: Summary) -> str:
    """Shares with three decimals, errors with four digits, in the label's unit."""
    return f"{value:.3f}" if summary.measure.rises else f"{value:.4g}"
