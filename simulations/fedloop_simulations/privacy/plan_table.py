"""A forecast as a table for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedloop_clients.privacy.forecast import Alternative, Forecast, Lifetime, RoundCost
from fedloop_core.task import Task

__all__ = ["plan_document", "plan_table"]

_LINES = 10  # of the table of rounds


def plan_table(task: Task, alternatives: Sequence[Alternative], lifetime: Lifetime, sites: int) -> RenderableType:
    """What the run is, epsilon by round, what other choices would buy, and warnings."""
    present = _present(alternatives)
    parts: list[RenderableType] = [Text(line) for line in _sentences(task, present, lifetime, sites)]
    parts += [Text(), Text("Epsilon by round, with statistics and count of units", style="italic"), _rounds(present)]
    parts += [
        Text(),
        Text("What other choices would buy (noise: times as long as the longest signal)", style="italic"),
        _choices(alternatives, lifetime),
    ]
    drowned = [one.name for one in alternatives if one.forecast is None]
    parts += [Text(f"No noise is enough for: {', '.join(drowned)}.")] if drowned else []
    parts += [Text(f"warning: {warning}") for warning in present.warnings]
    return Group(*parts)


def plan_document(task: Task, alternatives: Sequence[Alternative], lifetime: Lifetime, sites: int) -> dict[str, object]:
    """The same as JSON."""
    present = _present(alternatives)
    return {
        "task": task.name,
        "unit_column": task.privacy.unit_column,
        "units": present.units,
        "sites": sites,
        "epsilon_by_loss": present.by_loss(),
        "neighbours": "add-or-remove-one-unit",
        "lifetime": {"epsilon": lifetime.epsilon, "delta": lifetime.delta, "order": lifetime.order},
        "by_round": [{"round": one.round, "epsilon": one.epsilon} for one in present.by_round],
        "alternatives": [
            {"name": one.name} | ({} if one.forecast is None else _numbers(one.forecast)) for one in alternatives
        ],
        "warnings": list(present.warnings),
    }


def _present(alternatives: Sequence[Alternative]) -> Forecast:
    present = alternatives[0].forecast
    if present is None:
        raise ValueError("the task as it is has a forecast")
    return present


def _sentences(task: Task, present: Forecast, lifetime: Lifetime, sites: int) -> tuple[str, ...]:
    unit = f"all rows with one value of {task.privacy.unit_column!r}" if task.privacy.unit_column else "a row"
    charge = present.plan.round
    return (
        f"{task.name}: a run at a site with {present.units:,} training units; a unit is {unit}.",
        (
            f"It costs these units epsilon {present.epsilon:.3f} at delta {present.delta:g} (adding or removing one unit), "
            f"{present.by_loss():.3f} by loss distributions; evaluation rows pay {task.privacy.epsilon_of_evaluations:g} of their own."
        ),
        (
            f"Noise multiplier {charge.noise_multiplier:.3f}, sampling rate {charge.sampling_rate:.4f}, "
            f"{charge.steps} steps in each of {present.rounds} rounds, {present.plan.expected_batch_size:.0f} units a step."
        ),
        (
            f"A step's noise is {present.loudness.per_step:.2f} times as long as its longest signal ({sites} "
            f"site{'' if sites == 1 else 's'}, {present.loudness.parameters:,} parameters), over the whole run "
            f"{present.loudness.per_run:.2f} times."
        ),
        f"A lifetime budget of {lifetime.epsilon:g} at {lifetime.delta:g} holds {_runs(present.runs)}.",
    )


def _rounds(present: Forecast) -> Table:
    table = _table()
    table.add_column("round", justify="right")
    table.add_column("epsilon", justify="right")
    for one in _thinned(present.by_round):
        table.add_row(str(one.round), f"{one.epsilon:.3f}")
    return table


def _table() -> Table:
    """Narrow enough for a terminal of 80 columns."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)


def _thinned(points: Sequence[RoundCost]) -> list[RoundCost]:
    lines = min(len(points), _LINES)
    return [points[round(at * (len(points) - 1) / max(lines - 1, 1))] for at in range(lines)]


def _choices(alternatives: Sequence[Alternative], lifetime: Lifetime) -> Table:
    table = _table()
    table.add_column("choice", no_wrap=True)
    for name in (
        "rounds",
        "batch",
        "epsilon",
        "sigma",
        "noise,\nstep",
        "noise,\nrun",
        f"runs in\n{lifetime.epsilon:g}",
    ):
        table.add_column(name, justify="right")
    for one in alternatives:
        found = one.forecast
        if found is None:
            table.add_row(one.name, *["-"] * 7)
            continue
        table.add_row(
            one.name,
            str(found.rounds),
            f"{found.plan.expected_batch_size:.0f}",
            f"{found.epsilon:.2f}",
            f"{found.plan.round.noise_multiplier:.3f}",
            f"{found.loudness.per_step:.2f}",
            f"{found.loudness.per_run:.2f}",
            str(found.runs),
        )
    return table


def _runs(count: int) -> str:
    return "no such run" if count == 0 else "1 such run" if count == 1 else f"{count} such runs"


def _numbers(found: Forecast) -> dict[str, object]:
    return {
        "rounds": found.rounds,
        "batch": found.plan.expected_batch_size,
        "epsilon": found.epsilon,
        "delta": found.delta,
        "noise_multiplier": found.plan.round.noise_multiplier,
        "sampling_rate": found.plan.round.sampling_rate,
        "steps": found.plan.round.steps * found.rounds,
        "noise_over_signal_step": found.loudness.per_step,
        "noise_over_signal_run": found.loudness.per_run,
        "runs_in_lifetime": found.runs,
    }
