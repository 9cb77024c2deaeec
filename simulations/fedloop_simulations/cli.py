"""Rehearse the whole loop on this machine: train, release, drift, retrain."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedloop_core.errors import StorageError, UsageError

__all__ = ["simulate"]

_OURS = ("coordinator", "sites", "devices", "cards", "summary.json", "report.html")


def simulate(
    task: Annotated[str, typer.Argument(help="A preset or a task file.")] = "breast-cancer",
    sites: Annotated[
        int | None, typer.Option(help="Sites to divide the rows over.", show_default="3, or as the data say")
    ] = None,
    devices: Annotated[int, typer.Option(min=1, help="Edge devices, spread over the sites.")] = 6,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training in a run.", show_default="the task's")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Privacy of one run; inf trains without.", show_default="the task's")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            help="Epsilon that a site's rows may spend for life.",
            show_default="2.5 times that of a run, and the verdicts",
        ),
    ] = None,
    scaling: Annotated[
        Literal["range", "federated", "per-site"] | None,
        typer.Option(help="Where the scaling of numeric features comes from.", show_default="the task's"),
    ] = None,
    drift: Annotated[
        Literal["covariate", "label", "concept", "none"],
        typer.Option(help="How the world changes once version 1 serves."),
    ] = "covariate",
    attack: Annotated[
        str | None,
        typer.Option(
            help="Let sites lie: KIND[:SITES[:STRENGTH]]. KIND is scaling, sign-flip, label-flip, backdoor or alie; SITES how many, "
            "or their names with commas; STRENGTH the kind's own.",
            show_default="all sites are honest",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Make the run repeatable. Its noise can then be guessed: it says private: false."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="A folder with one CSV for each site, one CSV, or the four hospitals' files.")
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(help="What `fedloop privacy audit TASK --out FILE` wrote, to be told in cards and report."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for report.html, summary.json and all that the parts store.")] = (
        Path("runs/simulation")
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier simulation in --out.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Download the four hospitals' files without asking.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of a table.")] = False,
) -> None:
    """Rehearse the whole loop on this machine: train, release, drift, retrain.

    TASK is a preset (breast-cancer, digits, heart) or the path of a task.toml.
    """
    # Heavy imports stay in here: `fedloop --help` must not wait for torch.
    from rich.console import Console

    from fedloop_core.privacy.audit import AuditResult
    from fedloop_simulations.attacks import AttackOrder
    from fedloop_simulations.cards import cards_of, write_cards
    from fedloop_simulations.data import load_world
    from fedloop_simulations.progress import Progress
    from fedloop_simulations.report import write_report
    from fedloop_simulations.settings import SimulationSettings
    from fedloop_simulations.simulation import Simulation
    from fedloop_simulations.table import closing_table
    from fedloop_simulations.tasks import chosen_task
    from fedloop_simulations.telling import report_of, summary_of

    order = None if attack is None else AttackOrder.parse(attack)
    chosen = chosen_task(task, rounds=rounds, epsilon=epsilon, scaling=scaling)
    audited = None if audit is None else AuditResult.read(audit, chosen.name)
    settings = SimulationSettings(
        out=out, devices=devices, seed=seed, drift=drift, budget=budget, attack=order, audit=audited
    )
    if budget is not None and not chosen.privacy.private:
        raise UsageError("a budget needs privacy: none is kept at epsilon inf.", hint="Leave --budget out.")
    console = Console(stderr=True)
    world = load_world(chosen, sites=sites, seed=seed or 0, data=data, confirm=_confirm(yes, as_json))
    if order is not None:
        order.by([rows.name for rows in world.sites], world.task)  # before anything is cleared away for it
    _clear(out, force)
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(console))
        progress.rows_skipped(world)
        simulation = Simulation(settings, world, progress, seed)
        stack.callback(simulation.close)
        simulation.run()
        summary = summary_of(simulation)
        report = report_of(simulation, summary)
        write_cards(cards_of(simulation.coordinator, chosen, audited), out)
    (out / "summary.json").write_text(summary.model_dump_json(indent=1) + "\n", encoding="utf-8")
    write_report(report, out / "report.html")
    if as_json:
        print(summary.model_dump_json())
        return
    Console().print(closing_table(summary))
    print(f"Report: {out / 'report.html'}   Summary: {out / 'summary.json'}")


def _confirm(yes: bool, as_json: bool) -> Callable[[str], bool]:
    if yes:
        return lambda _: True
    if as_json or not sys.stdin.isatty():
        return lambda _: False  # nobody is there to ask
    return typer.confirm


def _clear(out: Path, force: bool) -> None:
    """Makes room for a new simulation; touches nothing that is not a simulation's.

    Raises:
        UsageError: the folder holds something, or is none.
        StorageError: it cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        there = sorted(path.name for path in out.iterdir())
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{out} cannot be a folder: a file is in its way.", hint="Name another --out.") from error
    except OSError as error:
        raise StorageError(f"{out} cannot be written: {error.strerror}.", hint="Name another --out.") from error
    strangers = [name for name in there if name not in _OURS]
    if strangers:
        raise UsageError(f"{out} holds {strangers[0]}, which no simulation wrote.", hint="Name another --out.")
    if there and not force:
        raise UsageError(f"{out} holds an earlier simulation.", hint="Name another --out, or add --force.")
    for name in there:
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
