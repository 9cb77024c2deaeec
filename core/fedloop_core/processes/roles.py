"""Who runs what of a coordinator or a site, and whose its folders are.

As root each kind of process gets a user of its own (``deploy/sysusers.d/fedloop.conf`` makes them). The home belongs to root
and is sticky: ``fedloop`` makes files in it and cannot take away those of others. Otherwise all is one user's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedloop_core.processes.requests import restart_requests
from fedloop_core.processes.users import as_root, check_users, own_folder, own_tree

__all__ = ["FLOWER", "FRONT", "LINK", "MAIN", "RELAY", "Roles"]

MAIN = "fedloop"
FLOWER = "fedloop-flower"
FRONT = "fedloop-front"
RELAY = "fedloop-relay"
LINK = "fedloop-link"
"""The group of those who may speak over the sockets of a home."""

_KEPT = ("logs", "restarts", "sockets", "flower", "front", "supervisor.json", "supervisor.lock")


@dataclass(frozen=True)
class Roles:
    """``separate``: each process runs as its own user."""

    separate: bool

    @classmethod
    def choose(cls, users: Iterable[str], *, single_user: bool) -> Roles:
        """Separate where this process is root, unless a person wants one user.

        Raises:
            NotSetUp: a user is missing, or cannot run this installation.
        """
        if not as_root() or single_user:
            return cls(separate=False)
        check_users(users)
        return cls(separate=True)

    def user(self, name: str) -> str | None:
        """Who runs a process, or owns a folder; None is the supervisor's own user."""
        return name if self.separate else None

    @property
    def sentence(self) -> str:
        """For the log: what this means."""
        if self.separate:
            return "each process runs as a user of its own"
        return "one user for all of them; only started as root, with its users made, are processes kept apart"

    def folder(self, path: Path, *, owner: str | None = None, group: str | None = None, mode: int = 0o700) -> Path:
        """Makes a folder: with owner, group and mode where users are separate, else its one user's alone."""
        if self.separate:
            own_folder(path, mode=mode, user=owner, group=group)
        else:
            own_folder(path, mode=0o700)
        return path

    def prepare(self, home: Path) -> None:
        """Makes the folders that every home has, and gives ``fedloop`` what is in it.

        Raises:
            NotSetUp: a user or group is missing.
        """
        own_folder(home, mode=0o1771 if self.separate else 0o711, group=MAIN if self.separate else None)
        self.folder(home / "logs", group=MAIN, mode=0o750)
        self.folder(restart_requests(home), owner=MAIN)
        self.folder(home / "sockets", group=LINK, mode=0o3770)
        own_folder(home / "flower", mode=0o711)
        for entry in home.iterdir():
            if entry.name not in _KEPT:
                own_tree(entry, user=self.user(MAIN))
