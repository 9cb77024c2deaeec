"""The files of a home that belong in a backup, and of what kind each is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

from fedloop_server.backup.manifest import SECRET, Owned, check_path, is_kept
from fedloop_server.backup.owners import owned

__all__ = ["Kind", "Walk", "kind_of"]


class Kind(Enum):
    """How a file changes: what grows, is replaced or is a database is taken at one moment, all else at any later one."""

    DATABASE = auto()
    GROWS = auto()
    REPLACED = auto()
    WRITTEN_ONCE = auto()


def kind_of(path: str) -> Kind:
    """The kind of a file, by its path in the home."""
    first, *middle, last = path.split("/") if "/" in path else ("", path)
    if last.endswith(".db"):
        return Kind.DATABASE
    if path == "audit.jsonl" or (first == "runs" and len(middle) == 1 and last.endswith(".jsonl")):
        return Kind.GROWS
    settings = not first and last.endswith((".toml", ".json"))
    if settings or first in SECRET or first.endswith(".countersigned") or last == "timestamp.json":
        return Kind.REPLACED
    return Kind.WRITTEN_ONCE


@dataclass
class Walk:
    """A walk through a home; notes the folders, and what is neither file nor folder, as it comes by them."""

    home: Path
    keys: bool
    folders: dict[str, Owned] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    def files(self, *, without: frozenset[str] = frozenset()) -> Iterator[tuple[str, Path]]:
        """Files that are kept, in order; not those of the folders ``without``, directly in the home.

        Raises:
            BackupRefused: a name that no backup can hold.
        """
        waiting = [self.home]
        while waiting:
            folder = waiting.pop()
            relative = "" if folder == self.home else folder.relative_to(self.home).as_posix()
            self.folders[relative] = owned(folder.stat())
            for entry in sorted(os.scandir(folder), key=lambda one: one.name, reverse=True):
                path = f"{relative}/{entry.name}" if relative else entry.name
                if path in without or not is_kept(path, keys=self.keys):
                    continue
                check_path(str(self.home), path)
                # A folder directly in the home may be a link to another disk; deeper ones lead anywhere.
                if entry.is_dir(follow_symlinks=not relative):
                    waiting.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    yield path, Path(entry.path)
                else:
                    self.skipped.append(path)
