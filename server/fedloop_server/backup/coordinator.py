"""What the machinery of backups is told of a coordinator's home.

Whoever changes a run writes its journal and the database in turns. While the database's write lock is held its content stands
still, so that content together with the present length of a journal is a state in which the coordinator really was. Old
checkpoints, and sums that were unmasked, are all that is ever deleted, and are not while a backup is written.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from fedloop_core.backup import Changing, HomeKind, held_still
from fedloop_core.backup import back_up as write_backup
from fedloop_core.backup import check_archive as check_any_archive
from fedloop_core.backup import check_restore as check_any_restore
from fedloop_core.backup import restore as make_home
from fedloop_server.database import Database
from fedloop_server.runs.thinning import nothing_is_thinned

__all__ = ["COORDINATOR", "back_up", "check_archive", "check_restore", "restore"]

_DATABASE = "coordinator.db"
_SECRET = frozenset({"keys", "front"})
_LEFT_OUT = frozenset({"flower", "logs", "sockets", "supervisor.json", "registry.db"})


def _is_kept(path: str) -> bool:
    return path.partition("/")[0] not in _LEFT_OUT


def _changing(path: str) -> Changing:
    first, *middle, last = path.split("/") if "/" in path else ("", path)
    if last.endswith(".db"):
        return Changing.DATABASE
    if path == "audit.jsonl" or (first == "runs" and len(middle) == 1 and last.endswith(".jsonl")):
        return Changing.GROWS
    settings = not first and last.endswith((".toml", ".json"))
    if settings or first in _SECRET or first.endswith(".countersigned") or last == "timestamp.json":
        return Changing.REPLACED
    return Changing.WRITTEN_ONCE


def _opened(home: Path) -> None:
    if (home / _DATABASE).exists():
        Database(f"sqlite:///{(home / _DATABASE).resolve()}").close()


COORDINATOR = HomeKind(
    name="fedloop-coordinator",
    noun="coordinator",
    group="server",
    signs=(_DATABASE, "server.toml", "keys"),
    secret=_SECRET,
    kept=_is_kept,
    changing=_changing,
    unhurried=frozenset({"blobs"}),  # large
    writers_wait=lambda home: held_still(home / _DATABASE),
    nothing_goes=lambda home: nothing_is_thinned(home / "runs"),
    opened=_opened,
    subject=lambda _: "coordinator",
)

back_up = partial(write_backup, COORDINATOR)
check_archive = partial(check_any_archive, COORDINATOR)
check_restore = partial(check_any_restore, COORDINATOR)
restore = partial(make_home, COORDINATOR)
