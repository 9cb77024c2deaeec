"""Writes the report as one HTML file: inline style, inline SVG, no script, and no request to anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedloop_core.durable import write_bytes
from fedloop_simulations.report import charts
from fedloop_simulations.report.drawing import chart_style
from fedloop_simulations.report.headline import headline
from fedloop_simulations.report.model import RunReport
from fedloop_simulations.report.tables import (
    Table,
    artifact_table,
    device_table,
    drift_table,
    privacy_table,
    round_table,
    stream_table,
)

__all__ = ["Section", "Tile", "render_report", "write_report"]


@dataclass(frozen=True)
class Section:
    """One chart with what it says, its numbers, and a sentence for when there is nothing to draw."""

    title: str
    says: str
    chart: str
    table: Table
    nothing: str


@dataclass(frozen=True)
class Tile:
    """One number at the top."""

    name: str
    value: str
    note: str


def write_report(report: RunReport, path: Path) -> None:
    """Writes the report; the same report gives the same bytes.

    Raises:
        StorageError: the disk is full or the folder cannot be written.
    """
    write_bytes(path, render_report(report).encode())


def render_report(report: RunReport) -> str:
    """The report as an HTML document."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    with chart_style():
        sections = _sections(report)
    template = environment.get_template("template.html.j2")
    return template.render(report=report, headline=headline(report), tiles=_tiles(report), sections=sections)


def _sections(report: RunReport) -> tuple[Section, ...]:
    words = report.measure.words.capitalize()
    return (
        Section(
            f"{words} on the stream",
            "What the devices answered, compared with what was the case. Lines are 95 % intervals.",
            charts.stream_chart(report),
            stream_table(report),
            "No rows were streamed to devices.",
        ),
        Section(
            "Drift",
            "Each site's monitor compares a window of what its devices see with the site's own rows. Scores stay at the "
            "site; at the line chance is no longer a good explanation, and an alarm (ring) is reported.",
            charts.drift_chart(report),
            drift_table(report),
            "No windows were watched.",
        ),
        Section(
            "Devices",
            "Which version each device answered with. New versions arrive in waves.",
            charts.device_chart(report),
            device_table(report),
            "No devices took part.",
        ),
        Section(
            "Training",
            f"{words} of the shared model on each site's own evaluation rows, round by round. Bands are 95 % intervals"
            + (" and include the noise added for privacy." if report.epsilon is not None else "."),
            charts.round_chart(report),
            round_table(report),
            "No round was evaluated.",
        ),
        Section(
            "Privacy",
            "Epsilon that each site has spent on its own rows for life, against the budget that it set. Smaller is more "
            "private; a site refuses whatever would go beyond its budget.",
            charts.privacy_chart(report),
            privacy_table(report),
            "This task trains without differential privacy: no epsilon bounds what the model tells about a person.",
        ),
        Section(
            "Artifacts",
            "The files that devices can run, of the newest version. Latency is of one prediction on this machine.",
            charts.artifact_chart(report),
            artifact_table(report),
            "Nothing was exported.",
        ),
    )


def _tiles(report: RunReport) -> tuple[Tile, ...]:
    tiles = [
        Tile(charts.PHASES[phase.phase], report.shown(phase.value), f"{report.measure.words} on {phase.rows} rows")
        for phase in report.stream
    ]
    spent = [line.epsilon for line in report.privacy if line.epsilon is not None]
    if spent:
        budgets = [line.budget for line in report.privacy if line.budget is not None]
        note = f"most spent by a site, of {max(budgets):g}" if budgets else "most spent by a site"
        tiles.append(Tile("privacy, epsilon", f"{max(spent):.2f}", note))
    if report.whole_sites is not None:
        claimed = f"of {report.whole_sites.epsilon:g} claimed for a run"
        tiles.append(Tile("whole sites, epsilon", f"{report.whole_sites.spent:.2f}", claimed))
    serving = [version for version in report.serving.values() if version is not None]
    if serving:
        newest = max(serving)
        tiles.append(
            Tile("devices", f"{serving.count(newest)} of {len(report.devices)}", f"answer with version {newest}")
        )
    return tuple(tiles)
