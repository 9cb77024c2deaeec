"""Pause, go on, and decide on runs by hand."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedloop_clients.cli.options import HOME
from fedloop_core.commands import AS_JSON, moment, operator, tell_json
from fedloop_core.errors import UsageError

if TYPE_CHECKING:
    from fedloop_clients.approvals import Asked
    from fedloop_clients.home import SiteHome

__all__ = ["approve", "pause", "unpause"]


def pause(home: Path = HOME, as_json: bool = AS_JSON) -> None:
    """Refuse all training until `fedloop site unpause`; a step that has begun is ended."""
    _pause(home, paused=True, as_json=as_json)


def unpause(home: Path = HOME, as_json: bool = AS_JSON) -> None:
    """Go on after `fedloop site pause`."""
    _pause(home, paused=False, as_json=as_json)


def approve(
    run: str = typer.Argument("", help="The run to decide on."),
    list_waiting: bool = typer.Option(False, "--list", help="Only list what waits and the decisions that hold."),
    decline: bool = typer.Option(False, "--decline", help="Decide against it."),
    every_run: bool = typer.Option(False, "--every-run", help="Decide on all runs of this very task."),
    home: Path = HOME,
    as_json: bool = AS_JSON,
) -> None:
    """Decide on a run that waits for a person, or otherwise on one that was decided on; without a run, list them.

    What a declined run trains at that moment ends at its next step.
    """
    from fedloop_core.audit import AuditAction

    site = _joined(home)
    if list_waiting or not run:
        if run:
            raise UsageError("--list takes no run.")
        _list(site, as_json=as_json)
        return
    by = operator()
    decision = site.approvals().decide(
        run, approved=not decline, by=by, now_unix=int(time.time()), every_run_of_task=every_run
    )
    action = AuditAction.POLICY_REFUSED if decline else AuditAction.APPROVED
    site.audit().record(by, action, run, task=decision.task, digest=decision.task_digest, every_run=int(every_run))
    if as_json:
        tell_json(decision.model_dump())
        return
    what = f"every run of task {decision.task}" if every_run else f"run {run}"
    print(f"{'Declined' if decline else 'Approved'} {what}.")


def _pause(home: Path, *, paused: bool, as_json: bool) -> None:
    from fedloop_core.audit import AuditAction

    site = _joined(home)
    if site.standing().read().paused != paused:
        action = AuditAction.PAUSED if paused else AuditAction.UNPAUSED
        site.audit().record(operator(), action, site.membership().site)
        site.standing().pause(paused)
    if as_json:
        tell_json({"paused": paused})
    else:
        print("The site pauses." if paused else "The site goes on.")
        if not paused and site.settings.policy.paused:
            print(f"site.toml says policy.paused = true as well: change it in {site.settings_file}")


def _list(site: SiteHome, *, as_json: bool) -> None:
    state = site.approvals().state()
    if as_json:
        tell_json(state.model_dump())
        return
    if not state.waiting:
        print("No run waits for a person.")
    for asked in state.waiting:
        print(f"{asked.run_id}: task {asked.task}, {asked.rounds} rounds, asked {moment(asked.asked_unix)}")
        print(
            f"  epsilon {asked.epsilon:g} and {asked.evaluation_epsilon:g} for evaluations, delta {asked.delta:g}{_unit(asked)}"
        )
        print(f"  for {asked.purpose or 'a purpose that it does not name'}; task {asked.task_digest}")
    for decision in state.standing():
        what = decision.run_id or f"every run of task {decision.task}"
        print(f"{what}: {'approved' if decision.approved else 'declined'} by {decision.by}, {moment(decision.unix)}")


def _unit(asked: Asked) -> str:
    if math.isinf(asked.epsilon):
        return ""
    if asked.unit_column is None:
        return ", for each row: for a person with k rows about k times as much"
    return f", for all rows of each {asked.unit_column!r} together"


def _joined(home: Path) -> SiteHome:
    from fedloop_clients.home import SiteHome

    site = SiteHome(home.resolve())
    site.membership()
    return site
