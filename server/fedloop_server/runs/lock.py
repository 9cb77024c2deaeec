"""One process at a time drives a run: a lock on a file in the run's folder, which ends with the process that holds it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedloop_core.errors import RunBusy, StorageError

__all__ = ["driver_of", "drives"]

_FILE = "driver.lock"
_TRIES = 20
_PAUSE = 0.02  # seconds


@contextmanager
def drives(folder: Path) -> Iterator[None]:
    """Holds the lock of a run's folder and writes this process's id into it.

    Raises:
        RunBusy: another process, or another part of this one, drives the run; names the process.
        StorageError: the folder cannot be written.
    """
    path = folder / _FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}.", hint="Correct rights.") from error
    try:
        if not _take(descriptor):
            raise RunBusy(
                f"run {folder.name} is driven by process {_written(descriptor) or 'unknown'} already.",
                hint="Wait for it to end, or stop the run.",
            )
        with suppress(OSError):  # a full disk: the lock holds without the number too
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def driver_of(folder: Path) -> int | None:
    """The process that drives a run now, 0 when its id is not known; None when nobody does.

    Raises:
        StorageError: the lock's file cannot be read.
    """
    path = folder / _FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}.", hint="Correct rights.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _written(descriptor)
    else:
        return None
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    """Takes the lock; waits a little, since whoever asks for the driver holds it for a moment."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE)
        else:
            return True
    return False


def _written(descriptor: int) -> int:
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else 0
