"""One owner for a folder, held by a lock that the kernel gives back when the owner's process dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedloop_core.errors import AlreadyRunning, StorageError

__all__ = ["folder_lock"]


@contextmanager
def folder_lock(folder: Path, name: str = "supervisor.lock") -> Iterator[None]:
    """Holds the folder for what the lock's name says; children do not inherit it.

    Raises:
        AlreadyRunning: another process has it.
        StorageError: the lock cannot be made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / name, flags, 0o600)
    except OSError as error:
        raise StorageError(f"cannot lock {folder}: {error.strerror}.", hint="Correct rights.") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(
                f"the processes of {folder} run already.", hint="Stop them first, or give another --home."
            ) from None
        yield
    finally:
        os.close(descriptor)
