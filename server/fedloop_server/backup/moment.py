"""One moment of a running coordinator: what its database, journals and logs say at the same time.

Whoever changes a run writes its journal and the database in turns. While the database's write lock is held its content stands
still, so that content together with the present length of a journal is a state in which the coordinator really was, and from
which it could be taken up after a crash. The lock is held for the time that a look at each journal takes. Everything else is
written once under a name of its own, before it is named in a journal, a database or a pointer file, and can be copied later.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from fedloop_core.audit import AuditHead, AuditLog
from fedloop_core.errors import StorageError
from fedloop_server.backup.manifest import is_kept
from fedloop_server.sqlite_copy import SqliteSnapshot, snapshot

__all__ = ["Moment", "moment_of"]

_BUSY_SECONDS = 30
_SMALL = 1024 * 1024  # bytes of a file that is replaced as a whole, and is taken as it is
_TAIL = 64 * 1024
_REPLACED = (
    "*.toml",
    "*.json",
    "*.countersigned/*",
    "keys/**/*",
    "front/**/*",
    "**/timestamp.json",
)  # before what they name


@dataclass
class Moment:
    """What must be taken at once.

    ``lengths`` are bytes of files that only grow, ``contents`` those of small files that are replaced, ``databases``
    snapshots; all by path in the home.
    """

    head: AuditHead = field(default_factory=AuditHead)
    lengths: dict[str, int] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    databases: dict[str, SqliteSnapshot] = field(default_factory=dict)


@contextmanager
def moment_of(home: Path, *, keys: bool) -> Iterator[Moment]:
    """Takes the moment; its snapshots last as long as the block.

    Raises:
        StorageError: something cannot be read, or the database stayed locked for half a minute.
    """
    taken = Moment()
    with ExitStack() as lasting:
        with _writers_wait(home / "coordinator.db"):
            for path in sorted(home.glob("*.db")):
                if is_kept(path.name, keys=keys):
                    taken.databases[path.name] = lasting.enter_context(snapshot(path))
            for pattern in _REPLACED:
                for path in sorted(home.glob(pattern)):
                    _take_small(taken, home, path, keys=keys)
            for path in sorted(home.glob("runs/*/*.jsonl")):
                taken.lengths[path.relative_to(home).as_posix()] = _whole_lines(path)
            _take_audit(taken, home)
        yield taken


@contextmanager
def _writers_wait(database: Path) -> Iterator[None]:
    if not database.exists():
        yield
        return
    try:
        with closing(sqlite3.connect(database, timeout=_BUSY_SECONDS, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise StorageError(
            f"cannot read {database}: {error}.", hint="Try again when the coordinator is less busy."
        ) from error


def _take_audit(taken: Moment, home: Path) -> None:
    path = home / "audit.jsonl"
    if not path.exists():
        return
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # so that no entry comes between the head and the length
        taken.head = AuditLog(path).head()
        taken.lengths[path.name] = _end_of_lines(file)


def _take_small(taken: Moment, home: Path, path: Path, *, keys: bool) -> None:
    name = path.relative_to(home).as_posix()
    if is_kept(name, keys=keys) and path.is_file() and path.stat().st_size <= _SMALL:
        taken.contents[name] = path.read_bytes()


def _whole_lines(path: Path) -> int:
    with path.open("rb") as file:
        return _end_of_lines(file)


def _end_of_lines(file: BinaryIO) -> int:
    """Bytes up to the end of the last whole line: one that is being written does not count yet."""
    end = os.fstat(file.fileno()).st_size
    while end > 0:
        start = max(0, end - _TAIL)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
