"""Plan what a private run costs, and audit that it keeps its promise."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedloop_core.commands import AS_JSON
from fedloop_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedloop_core.privacy.audit import AuditResult

__all__ = ["audit", "commands", "plan"]

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


@commands.command()
def audit(
    task: Annotated[str, typer.Argument(help="A preset or a task file.")],
    canaries: Annotated[int, typer.Option(min=8, help="Rows that are in or out by the toss of a coin.")] = 400,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of the run.", show_default="the task's")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Epsilon of the run.", show_default="the task's")] = None,
    sites: Annotated[
        int | None, typer.Option(min=1, help="Sites to divide the rows over; the first is audited.", show_default="3")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="A folder with one CSV for each site, or one CSV.")] = None,
    seed: Annotated[int | None, typer.Option(help="Make it repeatable; such an audit proves nothing.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Also write the result into this file, for `fedloop run card` and `fedloop simulate`."),
    ] = None,
    as_json: bool = AS_JSON,
) -> None:
    """Guess which canaries were trained on, and print the lower bound on epsilon beside what is claimed.

    Audits the updates of training alone, at the weights of an honest run: no counts, statistics, evaluations or verdicts, and no
    weights that a coordinator has made by hand. Trains on a rehearsal's rows and touches no ledger. The exit status is 1 when the
    claim is refuted.
    """
    from fedloop_core.noise import SeededNoise, SystemNoise
    from fedloop_simulations.auditing.audit import audit_training
    from fedloop_simulations.data import load_world
    from fedloop_simulations.tasks import chosen_task

    def tell(done: int, runs: int) -> None:
        if not as_json and sys.stderr.isatty():
            print(f"\rtraining {done} of {runs}", end="" if done < runs else "\n", file=sys.stderr, flush=True)

    chosen = chosen_task(task, rounds=rounds, epsilon=epsilon)
    if not chosen.privacy.private:
        raise UsageError(
            f"task {chosen.name!r} is not private: there is nothing to audit.", hint="Give a finite --epsilon."
        )
    rows = load_world(chosen, sites=sites, seed=seed or 0, data=data).sites[0].train
    noise = SystemNoise() if seed is None else SeededNoise(seed, "audit")
    found = audit_training(chosen, rows, canaries, noise, coins=noise.derive("coins"), progress=tell)
    if out is not None:
        found.write(out)
    if as_json:
        print(json.dumps(found.model_dump(mode="json") | {"refuted": found.refuted}))
    else:
        for line in _words(found):
            print(line)
        if out is not None:
            print(f"Written to {out}: `fedloop run card RUN --audit {out}` tells it in a model card.")
    if found.refuted:
        raise typer.Exit(1)


def _words(found: AuditResult) -> Iterator[str]:
    yield (
        f"{found.task}: {found.correct} of {found.guesses} guesses about {found.canaries} canaries were right, over {found.runs} "
        f"run{'' if found.runs == 1 else 's'} of {found.rounds} rounds (noise multiplier {found.noise_multiplier:.3f}, sampling "
        f"rate {found.sampling_rate:.3f})."
    )
    yield f"Claimed:     epsilon {found.claimed:.3f} at delta {found.delta:g} for these rounds."
    yield f"Lower bound: epsilon {found.bound:.3f}, with {found.confidence:.0%} confidence."
    if found.refuted:
        yield "The claim is refuted: the training does not keep its promise, or this was the one case in twenty. Audit again."
    else:
        yield "This is a lower bound, not a proof: a better adversary may find more, and no audit shows that epsilon is as claimed."
    if found.highest <= found.claimed:
        yield (
            f"With so few guesses no audit could have shown more than {found.highest:.3f}: broken noise may go unnoticed. Add "
            "--canaries, or audit at a smaller --epsilon."
        )
    yield (
        "Audited: the updates of training, at the weights of an honest run. Not audited: counts, statistics, evaluations, verdicts, "
        "and weights that a coordinator has made by hand."
    )
    if not found.private:
        yield "This audit can be repeated from its seed: it shows nothing about the noise that a site draws."
