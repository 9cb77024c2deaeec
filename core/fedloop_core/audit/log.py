"""The log as a file of JSON lines: several processes append to it, each entry on the disk before ``record`` returns."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fedloop_core.audit.chain import AuditHead, follow, read_line
from fedloop_core.audit.entries import MAXIMUM_LINE, AuditAction, AuditEntry, Detail, bounded_details, bounded_text
from fedloop_core.audit.export import export_json_lines, export_syslog
from fedloop_core.durable import append_line, cut_back
from fedloop_core.errors import StorageError

__all__ = ["AuditLog", "AuditReport"]

_MODE = 0o640


@dataclass(frozen=True)
class AuditReport:
    """A log whose chain holds: its head, and the bytes of a last line that a crash left unfinished (0: none)."""

    head: AuditHead
    unfinished: int


@dataclass(frozen=True)
class _Tail:
    head: AuditHead
    length: int  # bytes of all whole lines
    unfinished: int  # bytes after them


class AuditLog:
    """An append-only, hash-chained log. Threads and processes may share the file, and each may have its own object.

    ``clock`` gives seconds since 1970. Without ``durable`` nothing waits for the disk: for rehearsals.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time, *, durable: bool = True) -> None:
        self._path = path
        self._clock = clock
        self._durable = durable

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def record(self, actor: str, action: AuditAction, subject: str, **details: Detail) -> AuditEntry:
        """Appends an entry. Texts that are too long are cut; at most 16 details.

        Raises:
            AuditBroken: the last line is none that this log wrote: nothing can follow it.
            StorageError: the disk is full or the file cannot be written.
            ValueError: more than 16 details.
        """
        bounded = bounded_details(details)
        with self._locked(fcntl.LOCK_EX) as file:
            tail = self._tail(file)
            head = tail.head
            if tail.unfinished:  # its writer died in mid-write: the entry never counted
                cut_back(self._path, tail.length)
                head = _head_of(self._append(head, "audit", AuditAction.LINE_CUT, "log", {"bytes": tail.unfinished}))
            return self._append(head, bounded_text(actor), action, bounded_text(subject), bounded)

    def head(self) -> AuditHead:
        """The newest entry's number and digest, from the last line alone.

        Raises:
            AuditBroken: the last line is none that this log wrote.
            StorageError: the file cannot be read.
        """
        if not self._path.exists():
            return AuditHead()
        with self._locked(fcntl.LOCK_SH) as file:
            return self._tail(file).head

    def entries(self) -> Iterator[AuditEntry]:
        """All entries in order, checked while they are read; those that come meanwhile are left out.

        Raises:
            AuditBroken: names the first entry that does not follow.
            StorageError: the file cannot be read.
        """
        if not self._path.exists():
            return
        with self._locked(fcntl.LOCK_SH) as file:
            length = _whole_lines(file)
        with self._open(os.O_RDONLY) as file:  # without the lock: what is there stays as it is
            yield from follow(str(self._path), _lines(file, length))

    def export_json_lines(self) -> Iterator[str]:
        """``export_json_lines`` of all entries; raises as ``entries`` does."""
        return export_json_lines(self.entries())

    def export_syslog(self, host: str) -> Iterator[str]:
        """``export_syslog`` of all entries; raises as ``entries`` does."""
        return export_syslog(self.entries(), host)

    def verify(self) -> AuditReport:
        """Reads the whole log and checks that every entry follows from the one before it.

        Raises:
            AuditBroken: names the first entry that does not follow.
            StorageError: the file cannot be read.
        """
        head = AuditHead()
        for entry in self.entries():
            head = _head_of(entry)
        if not self._path.exists():
            return AuditReport(head, 0)
        with self._locked(fcntl.LOCK_SH) as file:
            return AuditReport(head, os.fstat(file.fileno()).st_size - _whole_lines(file))

    def _append(
        self, head: AuditHead, actor: str, action: AuditAction, subject: str, details: dict[str, Detail]
    ) -> AuditEntry:
        entry = AuditEntry(
            sequence=head.sequence + 1,
            unix=int(self._clock()),
            actor=actor,
            action=action,
            subject=subject,
            details=details,
            previous=head.digest.hex(),
            digest="0" * 64,
        ).sealed()
        append_line(self._path, entry.to_line(), sync=self._durable)
        return entry

    def _tail(self, file: BinaryIO) -> _Tail:
        length = _whole_lines(file)
        unfinished = os.fstat(file.fileno()).st_size - length
        if length == 0:
            return _Tail(AuditHead(), 0, unfinished)
        start = max(0, length - MAXIMUM_LINE - 2)
        file.seek(start)
        line = file.read(length - start).rstrip(b"\n").rpartition(b"\n")[2]
        return _Tail(_head_of(read_line(str(self._path), 0, line)), length, unfinished)

    @contextmanager
    def _locked(self, kind: int) -> Iterator[BinaryIO]:
        """The file, under a lock that ends with the block or the process."""
        flags = os.O_RDWR | os.O_CREAT if kind == fcntl.LOCK_EX else os.O_RDONLY
        with self._open(flags) as file:
            fcntl.flock(file, kind)
            yield file

    @contextmanager
    def _open(self, flags: int) -> Iterator[BinaryIO]:
        try:
            if flags & os.O_CREAT:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(self._path, flags | os.O_CLOEXEC, _MODE), "rb") as file:
                yield file
        except OSError as error:
            raise StorageError(
                f"audit log {self._path} cannot be used: {error.strerror}.", hint="Free space or correct rights."
            ) from error


def _head_of(entry: AuditEntry) -> AuditHead:
    return AuditHead(entry.sequence, bytes.fromhex(entry.digest))


def _whole_lines(file: BinaryIO) -> int:
    """Bytes up to the end of the last whole line."""
    size = os.fstat(file.fileno()).st_size
    end = size
    while end > 0:
        start = max(0, end - MAXIMUM_LINE)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _lines(file: BinaryIO, length: int) -> Iterator[bytes]:
    """Lines of the first ``length`` bytes, without their ends; one that is too long is given in part, and refused."""
    while length > 0:
        line = file.readline(min(length, MAXIMUM_LINE + 2))
        if not line:
            return
        length -= len(line)
        yield line.removesuffix(b"\n")
