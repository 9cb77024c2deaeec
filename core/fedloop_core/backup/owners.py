"""Owners by name: numbers mean other people on another machine."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from fedloop_core.backup.manifest import Owned

__all__ = ["acting_as_owner", "give_back", "owned"]


def owned(found: os.stat_result) -> Owned:
    """Rights and owners of a file or folder."""
    return Owned(mode=found.st_mode & 0o777, owners=_names(found.st_uid, found.st_gid))


@contextmanager
def acting_as_owner(file: Path) -> Iterator[None]:
    """As root and in a sticky folder: as the file's owner for the length of the block, in which nothing else may be done.

    SQLite opens what lies beside its file so that it would make it, were it not there. In a sticky folder Linux forbids that
    also to root when the file is somebody else's (``fs.protected_regular``, which Debian sets to 2).
    """
    found = file.stat()
    if os.geteuid() != 0 or found.st_uid == 0 or not file.parent.stat().st_mode & stat.S_ISVTX:
        yield
        return
    group = os.getegid()
    os.setegid(found.st_gid)
    os.seteuid(found.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)


def give_back(things: Iterable[tuple[Path, str]]) -> tuple[str, ...]:
    """Gives files and folders to whom they belonged, when this process may (as root); else they stay its own.

    Returns:
        Owners that this machine does not know; what is theirs stays this process's.
    """
    if os.geteuid() != 0:
        return ()
    unknown = set()
    for path, owners in things:
        numbers = _numbers(owners)
        if numbers is None:
            unknown.add(owners)
        else:
            os.chown(path, *numbers, follow_symlinks=False)
    return tuple(sorted(unknown - {""}))


@lru_cache(maxsize=64)
def _names(user: int, group: int) -> str:
    try:
        return f"{pwd.getpwuid(user).pw_name}:{grp.getgrgid(group).gr_name}"
    except KeyError:
        return ""


@lru_cache(maxsize=64)
def _numbers(owners: str) -> tuple[int, int] | None:
    user, _, group = owners.partition(":")
    try:
        return pwd.getpwnam(user).pw_uid, grp.getgrnam(group).gr_gid
    except KeyError:
        return None
