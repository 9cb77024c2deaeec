"""The files of a home that belong in a backup."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fedloop_core.backup.kinds import HomeKind
from fedloop_core.backup.manifest import Owned, check_path, is_kept
from fedloop_core.backup.owners import owned

__all__ = ["Walk"]


@dataclass
class Walk:
    """A walk through a home; notes the folders, and what is neither file nor folder, as it comes by them."""

    kind: HomeKind
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
                if path in without or not is_kept(self.kind, path, keys=self.keys):
                    continue
                check_path(self.kind, str(self.home), path)
                # A folder directly in the home may be a link to another disk; deeper ones lead anywhere.
                if entry.is_dir(follow_symlinks=not relative):
                    waiting.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    yield path, Path(entry.path)
                else:
                    self.skipped.append(path)
