"""The users that processes run as, where the supervisor is root; elsewhere everything is the one user's."""

from __future__ import annotations

import getpass
import grp
import os
import pwd
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedloop_core.errors import NotSetUp

__all__ = ["Account", "account", "as_root", "become_owner", "check_users", "own_file", "own_folder", "own_tree"]


@dataclass(frozen=True)
class Account:
    """Numbers of a user."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]


def as_root() -> bool:
    """Whether this process may start others as other users."""
    return os.geteuid() == 0


def account(name: str) -> Account:
    """Looks a user up.

    Raises:
        NotSetUp: there is none of this name.
    """
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise NotSetUp(
            f"this machine has no user {name}.",
            hint="Install deploy/sysusers.d/fedloop.conf and run systemd-sysusers, or give --single-user.",
        ) from None
    return Account(name, found.pw_uid, found.pw_gid, tuple(os.getgrouplist(name, found.pw_gid)))


def check_users(names: Iterable[str]) -> None:
    """Finds out before anything is started whether all users are there.

    Raises:
        NotSetUp: names those that are not, or the folder that keeps one of them from this installation.
    """
    known = {entry.pw_name for entry in pwd.getpwall()}
    wanted = set(names)
    missing = sorted(wanted - known)
    if missing:
        raise NotSetUp(
            f"this machine has no user {', '.join(missing)}.",
            hint="Install deploy/sysusers.d/fedloop.conf and run systemd-sysusers, or give --single-user.",
        )
    program = Path(sys.executable).resolve()
    for name in sorted(wanted):
        closed = _closed_to(account(name), program)
        if closed is not None:
            raise NotSetUp(
                f"user {name} cannot run {program}: {closed} is closed to it.",
                hint="Install fedloop where all users can read it, such as /opt/fedloop, or give --single-user.",
            )


def _closed_to(who: Account, path: Path) -> Path | None:
    """The first part of a path that a user may not pass, or run; root passes everywhere."""
    if who.uid == 0:
        return None
    for place in (*reversed(path.parents), path):
        found = place.stat()
        shift = 6 if found.st_uid == who.uid else 3 if found.st_gid in who.groups else 0
        if not found.st_mode >> shift & 1:
            return place
    return None


def own_folder(path: Path, *, mode: int, user: str | None = None, group: str | None = None) -> None:
    """Makes a folder where there is none, and gives it owner (root when None), group and mode; for others than root: mode.

    Raises:
        NotSetUp: no such user or group.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if as_root():
        os.chown(path, *_numbers(user, group), follow_symlinks=False)
    if not path.is_symlink():
        path.chmod(mode)


def own_file(path: Path, *, mode: int, user: str | None = None, group: str | None = None) -> None:
    """Gives a plain file with one name owner, group and mode; links are left alone.

    Raises:
        NotSetUp: no such user or group.
    """
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        return
    if as_root():
        os.chown(path, *_numbers(user, group), follow_symlinks=False)
    path.chmod(mode)


def own_tree(path: Path, *, user: str | None) -> None:
    """Gives a folder or file, and all in it, to a user (root when None), when root; links and files of several names are left alone.

    Raises:
        NotSetUp: no such user.
    """
    if not as_root() or not path.exists():
        return
    uid, gid = _numbers(user, None)
    if path.is_symlink():
        return
    if path.is_file() and path.stat().st_nlink == 1:
        os.chown(path, uid, gid, follow_symlinks=False)
    for place, _, files in os.walk(path):
        os.chown(place, uid, gid, follow_symlinks=False)
        for name in files:
            file = Path(place, name)
            found = file.lstat()
            if not stat.S_ISREG(found.st_mode) or found.st_nlink == 1:
                os.chown(file, uid, gid, follow_symlinks=False)


def _numbers(user: str | None, group: str | None) -> tuple[int, int]:
    owner = account(user) if user else None
    uid, gid = (owner.uid, owner.gid) if owner else (0, 0)
    if group is not None:
        try:
            gid = grp.getgrnam(group).gr_gid
        except KeyError:
            raise NotSetUp(
                f"this machine has no group {group}.",
                hint="Install deploy/sysusers.d/fedloop.conf and run systemd-sysusers, or give --single-user.",
            ) from None
    return uid, gid


def become_owner(home: Path) -> None:
    """For commands that root gives: go on as the user whose home it is, so that no file in it becomes root's.

    That is the owner of the folder, or, in a folder of root, of the keys in it; for ordinary users nothing happens. There is
    no way back in this process.

    Raises:
        NotSetUp: that user cannot run this installation.
    """
    if not as_root() or not home.is_dir():
        return
    keys, found = home / "keys", home.stat()
    if found.st_uid == 0 and keys.is_dir() and not keys.is_symlink():
        found = keys.stat()
    if found.st_uid == 0:
        return
    who = _known(found.st_uid) or Account(f"number {found.st_uid}", found.st_uid, found.st_gid or found.st_uid, ())
    program = Path(sys.executable).resolve()
    closed = _closed_to(who, program)
    if closed is not None:
        raise NotSetUp(
            f"{home} belongs to user {who.name}, who cannot run {program}: {closed} is closed to it.",
            hint="Install fedloop where all users can read it, such as /opt/fedloop.",
        )
    os.environ.setdefault("LOGNAME", getpass.getuser())  # who acts is still who gave the command
    os.setgroups(who.groups)
    os.setresgid(who.gid, who.gid, who.gid)
    os.setresuid(who.uid, who.uid, who.uid)


def _known(uid: int) -> Account | None:
    try:
        return account(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return None
