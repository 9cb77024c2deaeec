"""One moment of a running home: what its databases, journals, logs and small files say at the same time.

While its kind makes the writers wait, the databases stand still, so that their content together with the present length of
each log is a state in which the home really was, and from which it could be taken up after a crash. That lasts as long as a
look at each of these files. Everything else is written once under a name of its own, before it is named in one of them, and
can be copied later.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from fedloop_core.audit import AuditHead, AuditLog
from fedloop_core.backup.kinds import Changing, HomeKind
from fedloop_core.backup.manifest import AUDIT_LOG
from fedloop_core.backup.sqlite_copy import SqliteSnapshot, snapshot
from fedloop_core.backup.walking import Walk
from fedloop_core.errors import BackupRefused

__all__ = ["Moment", "moment_of"]

_SMALL = 16 * 1024 * 1024  # bytes of a file that is replaced as a whole, and is taken as it is
_TAIL = 64 * 1024


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
def moment_of(kind: HomeKind, home: Path, *, keys: bool) -> Iterator[Moment]:
    """Takes the moment; its snapshots last as long as the block.

    Raises:
        BackupRefused: the home holds what no backup can.
        StorageError: something cannot be read, or a database stayed locked for half a minute.
    """
    taken, growing = Moment(), list[tuple[str, Path]]()
    with ExitStack() as lasting:
        with kind.writers_wait(home):
            for path, file in Walk(kind, home, keys).files(without=kind.unhurried):
                match kind.changing(path):
                    case Changing.DATABASE:
                        taken.databases[path] = lasting.enter_context(snapshot(file))
                    case Changing.REPLACED:  # before the logs grow further: such a file may name an entry of a log
                        _take_small(taken, path, file)
                    case Changing.GROWS:
                        growing.append((path, file))
                    case Changing.WRITTEN_ONCE:
                        pass
            for path, file in growing:
                _take_length(taken, path, file)
        yield taken


def _take_length(taken: Moment, path: str, file: Path) -> None:
    with file.open("rb") as log:
        if path == AUDIT_LOG:
            fcntl.flock(log, fcntl.LOCK_SH)  # so that no entry comes between the head and the length
            taken.head = AuditLog(file).head()
        taken.lengths[path] = _end_of_lines(log)


def _take_small(taken: Moment, path: str, file: Path) -> None:
    if file.stat().st_size > _SMALL:
        raise BackupRefused(f"{file} has more than {_SMALL} bytes.", hint="Move it to another folder.")
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
