"""Numbers and survival times go through the whole loop from a person's own tables to the report."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedloop_core.measure import Measure
from fedloop_core.schema import label_columns
from fedloop_simulations.data import load_world
from fedloop_simulations.progress import Progress
from fedloop_simulations.report import render_report
from fedloop_simulations.settings import SimulationSettings
from fedloop_simulations.simulation import Simulation
from fedloop_simulations.summary import Summary
from fedloop_simulations.table import closing_table
from fedloop_simulations.telling import report_of, summary_of


def write_tables(target: Any, folder: Path) -> None:
    """One CSV for each site, as a person would have it."""
    folder.mkdir()
    header = [f.name for f in target.task.features] + list(label_columns(target.task.label).values())
    for site, rows in target.rows.items():
        with (folder / f"{site}.csv").open("w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(header)
            for values, label in zip(rows.inputs["numeric"].tolist(), rows.labels.tolist(), strict=True):
                lines.writerow([*values, *(label if isinstance(label, list) else [label])])


@pytest.mark.parametrize(
    ("kind", "gate", "unit"),
    [
        ("regression", {"maximum_error": 0.3}, "points"),
        ("survival", {"minimum_concordance": 0.55}, ""),
    ],
)
def test_own_tables_become_versions_with_their_own_measure(
    kind: str, gate: dict[str, float], unit: str, targets: Any, tmp_path: Path
) -> None:
    target = targets[kind].changed(gates={"quality": gate}, feedback={"sketch_rows": 8}, retraining={"enabled": False})
    task = target.task
    write_tables(target, tmp_path / "tables")
    world = load_world(task, data=tmp_path / "tables")
    assert sum(len(site.train) + len(site.evaluation) for site in world.sites) > 100
    settings = SimulationSettings(out=tmp_path / "out", devices=3, seed=1)
    simulation = Simulation(settings, world, Progress(Console(quiet=True)), seed=1)
    try:
        simulation.run()
        summary = summary_of(simulation)
        page = render_report(report_of(simulation, summary))
        metrics = simulation.coordinator.registry.version(task.name, 1).metrics
        fed_back = [site.admit_feedback().training_rows for site in simulation.sites] if kind == "regression" else []
    finally:
        simulation.close()

    measure = {"regression": Measure.ABSOLUTE_ERROR, "survival": Measure.CONCORDANCE}[kind]
    assert {metric.metric for metric in metrics} == {measure.value}
    assert {metric.scope for metric in metrics} == {"all", *target.rows}
    assert (summary.measure, summary.unit, summary.stream_accuracy) == (measure, unit, None)
    assert Summary.model_validate_json(summary.model_dump_json()) == summary
    (version,) = summary.versions
    assert version.released
    assert version.reasons[0].startswith(f"onnx-fp32: {measure.words}: ")
    assert version.float_metrics is not None
    assert version.float_metrics.accuracy is None
    assert version.float_metrics.low < version.float_metrics.value < version.float_metrics.high
    assert version.float_metrics.rows == sum(len(site.evaluation) for site in world.sites)
    # Rows of the calm world are answered as rows that were held out; outcomes come back where devices can be told.
    before, held_out = summary.stream.before, summary.runs[0].held_out
    assert before is not None
    assert set(held_out) == set(target.rows)
    assert before.low <= sum(held_out.values()) / 3 <= before.high
    assert all(rows > 10 for rows in fed_back)

    terminal = io.StringIO()
    Console(width=160, file=terminal).print(closing_table(summary))
    told = terminal.getvalue()
    assert measure.words in told
    assert ("do not come back" in told) is (kind == "survival")
    assert f"{measure.words.capitalize()} on the stream" in page
