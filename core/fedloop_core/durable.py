"""Writing what must survive: a temporary file in the same folder, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path

from fedloop_core.errors import StorageError

__all__ = ["append_line", "write_bytes", "write_secret"]


def write_bytes(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replaces ``path`` by ``content``, whole or not at all, also across a power cut.

    Raises:
        StorageError: the disk is full or the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):  # not there, or its folder is none
            temporary.unlink()
        raise StorageError(f"cannot write {path}: {error.strerror}.", hint="Free space or correct rights.") from error


def write_secret(path: Path, content: bytes) -> None:
    """Like ``write_bytes``, readable by the owner alone (0600)."""
    write_bytes(path, content, mode=0o600)


def append_line(path: Path, line: str, *, sync: bool = True) -> None:
    """Appends one line and, unless ``sync`` is off, waits until it is on the disk.

    Raises:
        StorageError: the disk is full or the file cannot be written.
    """
    content = line.encode() + b"\n"
    try:
        new = sync and not path.exists()
        descriptor = _open_to_append(path)
        try:
            if os.write(descriptor, content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            _sync_folder(path.parent)
    except OSError as error:
        raise StorageError(
            f"cannot append to {path}: {error.strerror}.", hint="Free space or correct rights."
        ) from error


def _open_to_append(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        return os.open(path, flags, 0o644)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o644)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
