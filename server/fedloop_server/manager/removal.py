"""Runs that are over and no longer needed: which may go, and taking them away for good.

A run whose version is registered stays: later runs may start warm from its weights, which lie in its folder and nowhere else.
The registry remembers every run that ever began, so that no other gets its name: the sites know runs by it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fedloop_core.errors import RunBusy, StorageError
from fedloop_server.home import CoordinatorHome
from fedloop_server.manager.queue import RunQueue
from fedloop_server.manager.state import Wish
from fedloop_server.manager.views import BrokenRun, RunView
from fedloop_server.registry import Registry
from fedloop_server.runs.lock import drives

__all__ = ["Removable", "Removal", "Stays", "bytes_of", "planned_removal", "remove_run"]

_OVER = frozenset({"finished", "failed", "stopped"})


@dataclass(frozen=True)
class Removable:
    """A run that may go, and the bytes of its folder; ``ended_unix`` None when nobody knows when it ended."""

    run_id: str
    status: str
    ended_unix: float | None
    bytes: int


@dataclass(frozen=True)
class Stays:
    """A run that may not go, and why."""

    run_id: str
    reason: str


@dataclass(frozen=True)
class Removal:
    """What becomes of the runs that were asked about."""

    gone: tuple[Removable, ...]
    stay: tuple[Stays, ...]

    @property
    def bytes(self) -> int:
        """Of all that may go."""
        return sum(run.bytes for run in self.gone)


def planned_removal(
    home: CoordinatorHome, views: Sequence[RunView | BrokenRun], *, ended_before: float | None = None
) -> Removal:
    """Which of these runs may go; nothing is changed.

    Args:
        home: the coordinator's folder.
        views: the runs.
        ended_before: seconds since 1970; runs that ended later stay. None: whenever they ended.
    """
    gone, stay = [], []
    with closing(home.registry()) as registry:
        for view in views:
            name = view.run_id if isinstance(view, BrokenRun) else view.plan.run_id
            ended = _ended_unix(view)
            why = _why_it_stays(view, name, registry)
            if not why and ended_before is not None and (ended is None or ended > ended_before):
                why = "it ended later than that" if ended is not None else "nobody knows when it ended"
            if why:
                stay.append(Stays(name, why))
            else:
                gone.append(Removable(name, view.status, ended, bytes_of(view.folder)))
    return Removal(tuple(gone), tuple(stay))


def remove_run(home: CoordinatorHome, queue: RunQueue, run_id: str) -> None:
    """Takes a run that may go out of the queue and deletes its folder.

    What is left when it is cut short is removed by the next call, whatever run that is for.

    Raises:
        RunBusy: a process drives it, or a backup is being written, or old checkpoints of a run are being deleted.
        RunError: it is not over.
        StorageError: queue or folder cannot be written.
    """
    runs, folder = home.folder / "runs", home.run_folder(run_id)
    if not folder.exists():
        queue.remove(run_id, lambda: None)
        return
    aside = runs / f".{run_id}.{secrets.token_hex(4)}.removed"
    try:
        descriptor = os.open(runs, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with drives(folder):
                queue.remove(run_id, lambda: folder.rename(aside))
            for left in runs.glob(".*.removed"):
                shutil.rmtree(left)
        finally:
            os.close(descriptor)
    except BlockingIOError as error:
        raise RunBusy(
            f"run {run_id} cannot be removed now: a backup is being written, or a run deletes its old checkpoints.",
            hint="Try again.",
        ) from error
    except OSError as error:
        raise StorageError(
            f"run {run_id} cannot be removed: {error}.", hint="Correct rights, then try again."
        ) from error


def bytes_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _why_it_stays(view: RunView | BrokenRun, name: str, registry: Registry) -> str:
    made = registry.made_by(name)
    if made is not None:
        return (
            f"it made version {made.number} of {made.task}, and its folder holds the weights that later runs start from"
        )
    queued = view.queued
    if view.status not in _OVER:
        return f"it is {view.status}"
    if queued is not None and (not queued.job.settled or queued.wish is not Wish.NONE):
        return "not all that it needed has been let go yet" if queued.wish is Wish.NONE else "it is to be resumed"
    if isinstance(view, RunView) and view.driver is not None:
        return f"process {view.driver} still drives it"
    return ""


def _ended_unix(view: RunView | BrokenRun) -> float | None:
    if isinstance(view, RunView):
        return view.ended_unix
    return None if view.queued is None else view.queued.job.ended_unix
