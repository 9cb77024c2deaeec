"""The log of one supervised process: its lines with the time they came, in files that do not grow without end."""

from __future__ import annotations

import contextlib
import io
import logging
import logging.handlers
import os
import re
import time
from pathlib import Path

__all__ = ["LOG_BYTES", "LOG_FILES", "ProcessLog"]

LOG_BYTES = 10 * 1024 * 1024
LOG_FILES = 5
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")  # colours, and what could fake other lines
_LINE_BYTES = 16 * 1024  # a longer line is written in pieces


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
        formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(message)s", "%Y-%m-%dT%H:%M:%S")
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

    def close(self) -> None:
        """Writes what is left and closes the file."""
        self.flush()
        with contextlib.suppress(OSError):  # what could not be written before cannot now
            self._handler.close()

    def _write(self, line: bytes) -> None:
        text = _CONTROL.sub("", line.decode("utf-8", errors="replace"))
        self.seen = self.seen or (self._sign is not None and self._sign in text)
        self._handler.handle(logging.makeLogRecord({"msg": text, "levelno": logging.INFO}))
