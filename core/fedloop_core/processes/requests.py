"""What makes a supervisor restart a process that is well: a request, or a file that has changed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedloop_core.durable import write_bytes
from fedloop_core.errors import UsageError

__all__ = ["FileMarks", "request_restart", "restart_requests", "take_requests"]

_FOLDER = "restarts"


def request_restart(folder: Path, name: str) -> None:
    """Asks the supervisor of a folder to restart one of its processes; nothing happens when none runs.

    Raises:
        UsageError: no process can have this name.
        StorageError: the request cannot be written.
    """
    if not name.replace("-", "").isalnum():
        raise UsageError(f"no process is named {name!r}.")
    write_bytes(restart_requests(folder) / name, b"")


def restart_requests(folder: Path) -> Path:
    """Where requests lie: whoever may write there may restart processes, and no more than that."""
    return folder / _FOLDER


def take_requests(folder: Path, names: Iterable[str]) -> tuple[str, ...]:
    """The processes that somebody wants to be restarted; the requests are gone afterwards."""
    taken = []
    for name in names:
        try:
            (restart_requests(folder) / name).unlink()
        except OSError:
            continue
        taken.append(name)
    return tuple(taken)


@dataclass(frozen=True)
class FileMarks:
    """What files looked like: another mark means that one was written, came or went."""

    marks: tuple[tuple[int, int, int] | None, ...]

    @classmethod
    def of(cls, paths: Iterable[Path]) -> FileMarks:
        """As they are now."""
        return cls(tuple(_mark(path) for path in paths))


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - a link's target is what the process reads
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
