"""The log of one supervised process: its lines with the time they came, in files that do not grow without end."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import logging
import logging.handlers
import os
import re
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LOG_BYTES", "LOG_DAYS", "LOG_FILES", "LogFile", "ProcessLog", "log_files", "outdated"]

LOG_BYTES = 10 * 1024 * 1024
LOG_FILES = 5
LOG_DAYS = 90
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")  # colours, and what could fake other lines
_LINE_BYTES = 16 * 1024  # a longer line is written in pieces
_TIME = "%Y-%m-%dT%H:%M:%S"
_STAMP = len("2026-01-31T12:00:00")
_NAME = re.compile(r"[^.].*\.log(\.\d+)?")


@dataclass(frozen=True)
class LogFile:
    """A file of a process's log, and when its first and last lines were written (seconds since 1970).

    ``current``: it is still written to.
    """

    path: Path
    first_unix: int
    last_unix: int
    bytes: int
    current: bool


def outdated(files: Iterable[LogFile], keep_seconds: float, now_unix: float) -> tuple[tuple[LogFile, ...], bool]:
    """Which files go, and whether the current one is put aside. Pure.

    A file is written to for half of the time at most, and goes when its last line is as old as the other half: so no line
    becomes older than all of it.
    """
    half = keep_seconds / 2
    files = tuple(files)
    gone = tuple(file for file in files if not file.current and file.last_unix < now_unix - half)
    return gone, any(file.current and file.bytes and file.first_unix < now_unix - half for file in files)


def log_files(folder: Path, name: str | None = None) -> tuple[LogFile, ...]:
    """The files of the log of one process, or of all that wrote into a folder; what cannot be read is left out."""
    pattern = "*.log*" if name is None else f"{name}.log*"
    found = (_log_file(path) for path in sorted(folder.glob(pattern)) if _NAME.fullmatch(path.name))
    return tuple(file for file in found if file is not None)


def _log_file(path: Path) -> LogFile | None:
    try:
        known = path.lstat()
        if not stat.S_ISREG(known.st_mode):
            return None
        with path.open("rb") as stream:
            first = _moment(stream.read(_STAMP))
    except OSError:
        return None
    last = int(known.st_mtime)
    return LogFile(path, last if first is None else first, last, known.st_size, path.suffix == ".log")


def _moment(line: bytes) -> int | None:
    """When a line was written, as it says itself."""
    try:
        return int(dt.datetime.strptime(line.decode(), _TIME).replace(tzinfo=dt.UTC).timestamp())
    except ValueError:
        return None


class _PrivateFile(logging.handlers.RotatingFileHandler):
    """Readable by owner and group; a link in its place is refused; a full disk loses lines and is counted."""

    lost = 0

    def _open(self) -> io.TextIOWrapper:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.baseFilename, flags, 0o640)
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="replace")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - logging's signature
        """Counts; the process itself must not suffer from its log."""
        self.lost += 1


class ProcessLog:
    """Takes what a process wrote, in pieces as they come, and writes whole lines."""

    def __init__(self, path: Path, *, limit: int = LOG_BYTES, files: int = LOG_FILES) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._handler = _PrivateFile(path, maxBytes=limit, backupCount=files - 1)
        formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(message)s", _TIME)
        formatter.converter = time.gmtime
        self._handler.setFormatter(formatter)
        self._rest = b""
        self._sign: str | None = None
        self.seen = False

    @property
    def lost(self) -> int:
        """Lines that could not be written."""
        return self._handler.lost

    def look_for(self, sign: str | None) -> None:
        """From now on ``seen`` says whether the process has written a line that holds this text."""
        self._sign, self.seen = sign, False

    def feed(self, content: bytes) -> None:
        """What the process wrote next."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            for begin in range(0, max(len(line), 1), _LINE_BYTES):
                self._write(line[begin : begin + _LINE_BYTES])
        while len(self._rest) >= _LINE_BYTES:
            self._write(self._rest[:_LINE_BYTES])
            self._rest = self._rest[_LINE_BYTES:]

    def say(self, sentence: str) -> None:
        """A line of the supervisor's own."""
        self.flush()
        self._write(f"[supervisor] {sentence}".encode())

    def flush(self) -> None:
        """Writes a line that was not ended."""
        if self._rest:
            self._write(self._rest)
            self._rest = b""

    def forget(self, keep_seconds: float, now_unix: float) -> int:
        """Deletes files whose lines are older than that, and puts the current one aside in time; returns how many went."""
        gone, aside = outdated(log_files(self.path.parent, self.path.stem), keep_seconds, now_unix)
        deleted = 0
        for file in gone:
            with contextlib.suppress(OSError):  # the next look tries it again
                file.path.unlink()
                deleted += 1
        if aside:
            with contextlib.suppress(OSError):
                self._handler.doRollover()
        return deleted

    def close(self) -> None:
        """Writes what is left and closes the file."""
        self.flush()
        with contextlib.suppress(OSError):  # what could not be written before cannot now
            self._handler.close()

    def _write(self, line: bytes) -> None:
        text = _CONTROL.sub("", line.decode("utf-8", errors="replace"))
        self.seen = self.seen or (self._sign is not None and self._sign in text)
        self._handler.handle(logging.makeLogRecord({"msg": text, "levelno": logging.INFO}))
