"""``fedloop server retention``: what the coordinator holds, and when it goes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedloop_core.commands import AS_JSON, moment, tell_json, tell_table
from fedloop_core.errors import UsageError
from fedloop_server.cli.options import HOME, open_home

if TYPE_CHECKING:
    from fedloop_server.manager.retention import DueRuns, KeptWeights

__all__ = ["retention"]


def retention(
    delete: bool = typer.Option(False, "--delete", help="Delete now what is due; the service does so each hour."),
    dry_run: bool = typer.Option(False, "--dry-run", help="With --delete: say what would go, and delete nothing."),
    home: Path = HOME,
    as_json: bool = AS_JSON,
) -> None:
    """Show each store with its limit, the weights that are kept, and what is due now."""
    from fedloop_core.audit import AuditLog
    from fedloop_server.manager.retention import CoordinatorRetention
    from fedloop_server.manager.stores import coordinator_stores

    if dry_run and not delete:
        raise UsageError("--dry-run belongs to --delete.", hint="Without --delete nothing is deleted.")
    coordinator = open_home(home)
    limits = coordinator.settings.retention
    audit: AuditLog = coordinator.audit()
    with closing(coordinator.queue()) as queue:
        keeper = CoordinatorRetention(coordinator, queue, audit)
        due = keeper.once() if delete and not dry_run else keeper.due(limits)
        weights = keeper.weights()
    stores = coordinator_stores(limits)
    deleted = delete and not dry_run
    if as_json:
        tell_json(
            {
                "stores": [store.model_dump() for store in stores],
                "due_runs": [run.run_id for run in due.runs],
                "due_weights": [one.run_id for one in due.weights],
                "weights": [_told(one) for one in weights],
                "deleted": deleted,
            }
        )
        return
    if not delete:
        for store in stores:
            setting = f" ({store.setting})" if store.setting else ""
            print(f"{store.name}, in {store.place}: {store.holds}.")
            print(f"  kept {store.kept}; deleted by {store.deleted_by}{setting}; stays: {store.stays}.")
        _tell_weights(weights)
    _tell_due(due, deleted=deleted)


def _tell_weights(weights: Iterable[KeptWeights]) -> None:
    held = [one for one in weights if one.bytes]
    if held:
        print()
        head = ("run", "version", "stage", "ended", "bytes")
        tell_table(
            head,
            [
                (
                    one.run_id,
                    f"{one.version} of {one.task}",
                    one.stage.value,
                    moment(int(one.ended_unix or 0)),
                    str(one.bytes),
                )
                for one in held
            ],
        )


def _tell_due(due: DueRuns, *, deleted: bool) -> None:
    words = "deleted" if deleted else "due"
    for run in due.runs:
        print(f"{words}: run {run.run_id}, which made no version")
    for one in due.weights:
        print(f"{words}: weights of version {one.version} of {one.task}, in run {one.run_id}")
    if not due.runs and not due.weights:
        print("Nothing was due." if deleted else "Nothing is due.")


def _told(one: KeptWeights) -> dict[str, object]:
    return {
        "run": one.run_id,
        "task": one.task,
        "version": one.version,
        "stage": one.stage.value,
        "newest": one.newest,
        "wanted": one.wanted,
        "ended_unix": one.ended_unix,
        "bytes": one.bytes,
    }
