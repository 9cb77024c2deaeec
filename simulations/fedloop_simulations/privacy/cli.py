"""Plan what a private run costs, and audit that it keeps its promise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedloop_core.commands import AS_JSON
from fedloop_core.errors import UsageError

__all__ = ["commands", "plan"]

commands = typer.Typer(no_args_is_help=True, suggest_commands=False, add_completion=False)


@commands.callback()
def _privacy() -> None:
    """Plan what a private run costs, and audit that it keeps its promise."""


@commands.command()
def plan(
    task: Annotated[str, typer.Argument(help="A preset or a task file.")],
    rows: Annotated[int, typer.Option(min=1, help="Training units of a site: rows, or values of privacy.unit_column.")],
    lifetime: Annotated[float, typer.Option(help="Epsilon for life of a site's rows, as in its site.toml.")] = 10.0,
    lifetime_delta: Annotated[float, typer.Option(help="Delta for life.")] = 1e-6,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of the run.", show_default="the task's")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Epsilon of the run.", show_default="the task's")] = None,
    sites: Annotated[int, typer.Option(min=1, help="Sites whose updates are averaged: their noise is too.")] = 1,
    plot: Annotated[Path | None, typer.Option(help="Also draw it, into this SVG file.")] = None,
    as_json: bool = AS_JSON,
) -> None:
    """Show epsilon by round, runs left in a lifetime, and what other rounds, batches and noise would buy.

    Reads no rows and charges nothing.
    """
    from rich.console import Console

    from fedloop_clients.privacy.forecast import Lifetime, alternatives_to
    from fedloop_core.durable import write_bytes
    from fedloop_core.models import initial_arrays
    from fedloop_simulations.privacy.plan_chart import plan_chart
    from fedloop_simulations.privacy.plan_table import plan_document, plan_table
    from fedloop_simulations.tasks import chosen_task

    if plot is not None and plot.suffix != ".svg":
        raise UsageError(f"{plot} is not named as an SVG file.", hint="Give --plot a name that ends in .svg.")
    chosen = chosen_task(task, rounds=rounds, epsilon=epsilon)
    if not chosen.privacy.private:
        raise UsageError(f"task {chosen.name!r} is not private: there is nothing to plan.", hint="Add --epsilon.")
    held = Lifetime(lifetime, lifetime_delta)
    parameters = sum(array.size for array in initial_arrays(chosen, 0).values())
    found = tuple(alternatives_to(chosen, rows, held, parameters=parameters, sites=sites))
    if plot is not None:
        write_bytes(plot, plan_chart(found, held).encode())
    if as_json:
        print(json.dumps(plan_document(chosen, found, held, sites)))
    else:
        Console().print(plan_table(chosen, found, held, sites))
