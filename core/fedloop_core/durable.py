"""Writing what must survive: a temporary file in the same folder, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path

from fedloop_core.errors import DiskFull, StorageError

__all__ = ["append_line", "cut_back", "sync_path", "write_bytes", "write_secret"]


def write_bytes(path: Path, content: bytes | memoryview, *, mode: int = 0o644, sync: bool = True) -> None:
    """Replaces ``path`` by ``content``, whole or not at all, also across a power cut unless ``sync`` is off.

    Raises:
        DiskFull: there is no room.
        StorageError: the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.replace(path)
        if sync:
            sync_path(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):  # not there, or its folder is none
            temporary.unlink()
        raise _failed("write", path, error) from error


def write_secret(path: Path, content: bytes | memoryview, *, sync: bool = True) -> None:
    """Like ``write_bytes``, readable by the owner alone (0600)."""
    write_bytes(path, content, mode=0o600, sync=sync)


def append_line(path: Path, line: str, *, sync: bool = True) -> None:
    """Appends one line and, unless ``sync`` is off, waits until it is on the disk; for one writer at a time.

    A line that cannot be written whole is taken back, so that the next one does not continue it.

    Raises:
        DiskFull: there is no room.
        StorageError: the file cannot be written.
    """
    try:
        descriptor = _open_to_append(path)
        try:
            length = os.fstat(descriptor).st_size
            try:
                _write_all(descriptor, line.encode() + b"\n")
                if sync:
                    os.fsync(descriptor)
                    if length == 0:
                        sync_path(path.parent)
            except BaseException:
                with contextlib.suppress(OSError):  # the caller who must be sure uses ``cut_back``
                    os.ftruncate(descriptor, length)
                raise
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _failed("append to", path, error) from error


def cut_back(path: Path, length: int) -> None:
    """Shortens a file to ``length`` bytes, on the disk; one that is not longer, or not there, stays as it is.

    Raises:
        StorageError: the file cannot be written.
    """
    try:
        if not path.exists() or path.stat().st_size <= length:
            return
        with path.open("r+b") as file:
            file.truncate(length)
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(f"cannot shorten {path}: {error.strerror}.", hint="Correct rights.") from error


def sync_path(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk.

    Raises:
        OSError: it cannot be opened or written.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _failed(what: str, path: Path, error: OSError) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"cannot {what} {path}: {error.strerror}.", hint="Free space.")
    return StorageError(f"cannot {what} {path}: {error.strerror}.", hint="Correct rights.")


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        written = os.write(descriptor, content)
        if written == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        content = content[written:]


def _open_to_append(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        return os.open(path, flags, 0o644)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o644)
