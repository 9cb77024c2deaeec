"""Runs side by side: where their tasks differ, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fedloop_core.strict import Strict
from fedloop_server.cli.run_documents import EstimateDocument, RunDocument
from fedloop_server.cli.run_tables import make_table
from fedloop_server.cli.run_telling import document_of
from fedloop_server.cli.run_words import estimate_words, took_words
from fedloop_server.manager.views import RunView

__all__ = ["ComparedRun", "Comparison", "comparison_of", "comparison_tables"]


class ComparedRun(Strict):
    """One of the runs: how it ended, and its figures. ``epsilon`` is the largest that a site spent in it."""

    run: str
    status: str
    rounds: int
    sites: int
    measure: str
    measured: EstimateDocument | None
    measured_by_site: dict[str, EstimateDocument]
    epsilon: float | None
    version: int | None
    seconds: float


class Comparison(Strict):
    """What ``fedloop run compare --json`` prints.

    ``differences`` holds, by key of the task's document or of the run's plan, the value in each run, in the order of
    ``runs``, as JSON text; a key that a run does not have is ``null``.
    """

    runs: tuple[ComparedRun, ...]
    differences: dict[str, tuple[str, ...]]


def comparison_of(views: Sequence[RunView]) -> Comparison:
    """The runs in the order given."""
    documents = [document_of(view) for view in views]
    return Comparison(runs=tuple(map(_compared, documents)), differences=dict(_differences(views)))


def comparison_tables(found: Comparison) -> RenderableType:
    """Two tables: differences of the tasks, figures of the runs."""
    names = [run.run for run in found.runs]
    parts: list[RenderableType] = []
    if found.differences:
        rows = [(key, *values) for key, values in found.differences.items()]
        parts.append(make_table("What differs", ("key", *names), rows))
    else:
        parts.append(Text("Their tasks and plans are the same."))
    parts.append(make_table("What came of it", ("", *names), list(_figures(found.runs))))
    return Group(*parts)


def _compared(document: RunDocument) -> ComparedRun:
    spent = [site.epsilon for site in document.sites if site.epsilon is not None]
    return ComparedRun(
        run=document.line.run,
        status=document.line.status,
        rounds=document.line.round,
        sites=document.line.sites,
        measure=document.measure,
        measured=document.measured,
        measured_by_site={site.site: site.measured for site in document.sites if site.measured is not None},
        epsilon=max(spent) if spent and document.planned_epsilon is not None else None,
        version=document.line.version,
        seconds=document.seconds,
    )


def _figures(runs: Sequence[ComparedRun]) -> Iterator[tuple[str, ...]]:
    yield ("state", *(run.status for run in runs))
    yield ("rounds", *(str(run.rounds) for run in runs))
    yield ("sites", *(str(run.sites) for run in runs))
    for measure in dict.fromkeys(run.measure for run in runs):
        of_measure = [run if run.measure == measure else None for run in runs]
        words = measure.replace("_", " ")
        yield (f"{words}, all sites", *(estimate_words(None if run is None else run.measured) for run in of_measure))
        for site in sorted({site for run in of_measure if run is not None for site in run.measured_by_site}):
            cells = (None if run is None else run.measured_by_site.get(site) for run in of_measure)
            yield (f"{words}, {site}", *map(estimate_words, cells))
    yield ("epsilon, largest of a site", *("-" if run.epsilon is None else f"{run.epsilon:.3f}" for run in runs))
    yield ("version", *("-" if run.version is None else str(run.version) for run in runs))
    yield ("took", *(took_words(run.seconds) for run in runs))


def _differences(views: Sequence[RunView]) -> Iterator[tuple[str, tuple[str, ...]]]:
    flat = [dict(_flat(view)) for view in views]
    for key in dict.fromkeys(key for one in flat for key in one):
        values = tuple(one.get(key, "null") for one in flat)
        if len(set(values)) > 1:
            yield key, values


def _flat(view: RunView) -> Iterator[tuple[str, str]]:
    plan = view.plan
    settings = {"seed": plan.seed, "expected_sites": plan.expected_sites, "warm_from": plan.warm_from}
    yield from _leaves("", {"plan": {**settings, "export": plan.export}, **json.loads(plan.task.canonical())})


def _leaves(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every value by the key that leads to it; lists of objects that have names by these names."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}" if key else name, inner)
    elif isinstance(value, list) and value and all(isinstance(part, dict) and "name" in part for part in value):
        for part in value:
            yield from _leaves(f"{key}.{part['name']}", {name: v for name, v in part.items() if name != "name"})
    else:
        yield key, json.dumps(value)
