"""`fedloop run remove`: which runs it is about, and what it says of them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from fedloop_core.errors import RunError, UsageError
from fedloop_core.strict import Strict
from fedloop_server.cli.run_tables import make_table
from fedloop_server.cli.run_words import bytes_words, moment
from fedloop_server.home import CoordinatorHome
from fedloop_server.manager.queue import RunQueue
from fedloop_server.manager.removal import Removal, planned_removal
from fedloop_server.manager.views import find_view, load_views, run_names, the_run

__all__ = ["KeptRun", "RemovalDocument", "RemovedRun", "asked_removal", "removal_document", "removal_tables"]

_DAY_SECONDS = 86_400.0


class RemovedRun(Strict):
    """A run that goes, and the bytes of its folder."""

    run: str
    status: str
    ended_unix: float | None
    bytes: int


class KeptRun(Strict):
    """A run that stays, and why."""

    run: str
    reason: str


class RemovalDocument(Strict):
    """What ``fedloop run remove --json`` prints; ``dry_run``: nothing was removed."""

    removed: tuple[RemovedRun, ...]
    kept: tuple[KeptRun, ...]
    bytes: int
    dry_run: bool


def asked_removal(
    home: CoordinatorHome, queue: RunQueue, runs: Sequence[str], older_than_days: float | None
) -> Removal:
    """What is to go, of the named runs, or of all.

    Raises:
        RunError: a run that was named cannot go; none goes then.
        UsageError: no run is named and no age is given, or there is no such run.
    """
    if not runs and older_than_days is None:
        raise UsageError("no run is named.", hint="Name runs, or give --older-than DAYS.")
    before = None if older_than_days is None else time.time() - older_than_days * _DAY_SECONDS
    if not runs:
        return planned_removal(home, load_views(home, queue), ended_before=before)
    known = run_names(home, queue)
    names = dict.fromkeys(the_run(run, known) for run in runs)
    found = planned_removal(home, [find_view(home, queue, name) for name in names], ended_before=before)
    if found.stay:
        first = found.stay[0]
        raise RunError(
            f"run {first.run_id} cannot be removed: {first.reason}.",
            hint=f"Nothing was removed. Give the command without {first.run_id}.",
        )
    return found


def removal_document(removal: Removal, *, dry: bool) -> RemovalDocument:
    """The same for programs."""
    return RemovalDocument(
        removed=tuple(
            RemovedRun(run=run.run_id, status=run.status, ended_unix=run.ended_unix, bytes=run.bytes)
            for run in removal.gone
        ),
        kept=tuple(KeptRun(run=run.run_id, reason=run.reason) for run in removal.stay),
        bytes=removal.bytes,
        dry_run=dry,
    )


def removal_tables(removal: Removal) -> RenderableType:
    """The same for people."""
    kept = [Text(f"{run.run_id} stays: {run.reason}.") for run in removal.stay]
    if not removal.gone:
        return Group(*kept, Text("There is no run to remove."))
    rows = [(run.run_id, run.status, moment(run.ended_unix), bytes_words(run.bytes)) for run in removal.gone]
    table = make_table("Runs to remove", ("run", "state", "ended", "size"), rows, right=("size",))
    many = f"{len(rows)} run{'' if len(rows) == 1 else 's'}"
    return Group(*kept, table, Text(f"{many}, {bytes_words(removal.bytes)}."))
