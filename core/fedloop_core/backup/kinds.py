"""What the coordinator's home and a site's differ in, as the machinery of backups is told it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Literal

__all__ = ["Changing", "HomeKind", "KindName"]

KindName = Literal["fedloop-coordinator", "fedloop-site"]


class Changing(Enum):
    """How a file changes: what grows, is replaced or is a database is taken at one moment, all else at any later one."""

    DATABASE = auto()
    GROWS = auto()
    REPLACED = auto()
    WRITTEN_ONCE = auto()


@dataclass(frozen=True)
class HomeKind:
    """One kind of home.

    Args:
        name: as the manifest writes it.
        noun: as sentences name it.
        group: of its commands: ``fedloop GROUP backup``.
        signs: names of which at least one is in a home that was set up.
        secret: folders, directly in the home, that hold private keys.
        kept: whether a path in the home, with ``/``, belongs in a backup; locks and passing files never do.
        changing: how the file of a path changes.
        unhurried: folders, directly in the home, in which nothing is of the moment; it does not look at them.
        writers_wait: nothing that is of the moment changes for the length of the block, some milliseconds.
        nothing_goes: no file is deleted for the length of the block, the whole backup.
        opened: opens what was restored as the next start would, upgrades it, and raises FedloopError when it does not hold.
        subject: of a home, for the audit log.
    """

    name: KindName
    noun: str
    group: str
    signs: tuple[str, ...]
    secret: frozenset[str]
    kept: Callable[[str], bool]
    changing: Callable[[str], Changing]
    unhurried: frozenset[str]
    writers_wait: Callable[[Path], AbstractContextManager[None]]
    nothing_goes: Callable[[Path], AbstractContextManager[None]]
    opened: Callable[[Path], None]
    subject: Callable[[Path], str]
