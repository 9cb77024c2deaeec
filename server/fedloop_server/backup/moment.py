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
from fedloop_core.errors import BackupRefused, StorageError
from fedloop_server.backup.manifest import DATABASE
from fedloop_server.backup.walking import Kind, Walk, kind_of
from fedloop_server.sqlite_copy import SqliteSnapshot, snapshot

__all__ = ["Moment", "moment_of"]

_BUSY_SECONDS = 30
_SMALL = 1024 * 1024  # bytes of a file that is replaced as a whole, and is taken as it is
_TAIL = 64 * 1024
_ONCE_FOLDERS = frozenset({"blobs"})  # large, and nothing in them is of the moment


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
        BackupRefused: the home holds what no backup can.
        StorageError: something cannot be read, or the database stayed locked for half a minute.
    """
    taken, growing = Moment(), list[tuple[str, Path]]()
    with ExitStack() as lasting:
        with _writers_wait(home / DATABASE):
            for path, file in Walk(home, keys).files(without=_ONCE_FOLDERS):
                match kind_of(path):
                    case Kind.DATABASE:
                        taken.databases[path] = lasting.enter_context(snapshot(file))
                    case Kind.REPLACED:  # before the logs grow further: a countersignature names an entry of the log
                        _take_small(taken, path, file)
                    case Kind.GROWS:
                        growing.append((path, file))
                    case Kind.WRITTEN_ONCE:
                        pass
            for path, file in growing:
                _take_length(taken, path, file)
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


def _take_length(taken: Moment, path: str, file: Path) -> None:
    with file.open("rb") as log:
        if path == "audit.jsonl":
            fcntl.flock(log, fcntl.LOCK_SH)  # so that no entry comes between the head and the length
            taken.head = AuditLog(file).head()
        taken.lengths[path] = _end_of_lines(log)


def _take_small(taken: Moment, path: str, file: Path) -> None:
    if file.stat().st_size > _SMALL:
        raise BackupRefused(f"{file} has more than {_SMALL} bytes.", hint="Move it out of the coordinator's folder.")
    taken.contents[path] = file.read_bytes()


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
