"""Copies of keys and certificates for the processes that need them, and for nobody else."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from fedloop_core.errors import ProcessFailed
from fedloop_core.processes.spec import HandedFile, ProcessSpec
from fedloop_core.processes.users import account, as_root

__all__ = ["hand_over"]

_LIMIT = 1 << 20  # keys and certificates are a few KiB


def hand_over(spec: ProcessSpec) -> None:
    """Copies the files of a process to where its user reads them; the copies are that user's alone (0600).

    Raises:
        ProcessFailed: a file is not there, is a link, belongs to somebody else, or cannot be written.
    """
    for file in spec.handed:
        try:
            content = _read(file)
            _write(file.target, content, spec.user)
        except OSError as error:
            where = error.filename or file.source
            raise ProcessFailed(
                f"process {spec.name} cannot be given {file.source}: {where}: {error.strerror}.", process=spec.name
            ) from error


def _read(file: HandedFile) -> bytes:
    descriptor = os.open(file.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as opened:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "is no plain file", str(file.source))
        if file.owner is not None and as_root() and found.st_uid != account(file.owner).uid:
            raise OSError(0, f"does not belong to {file.owner}", str(file.source))
        return opened.read(_LIMIT)


def _write(target: Path, content: bytes, user: str | None) -> None:
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
        if user is not None and as_root():
            owner = account(user)
            os.fchown(descriptor, owner.uid, owner.gid)
    temporary.replace(target)
