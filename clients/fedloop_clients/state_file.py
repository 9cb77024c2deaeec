"""A small document that the daemon and a person's commands share: read anew when it changes, changed whole or not at all."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError

from fedloop_core.durable import write_secret
from fedloop_core.errors import StorageError
from fedloop_core.strict import Strict

__all__ = ["FileMark", "StateFile", "file_mark"]

Document = TypeVar("Document", bound=Strict)
FileMark = tuple[int, int, int]


def file_mark(path: Path) -> FileMark | None:
    """What differs when a file was changed: its time of change, length and inode; None when it is not there.

    Raises:
        StorageError: the file's folder cannot be read.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"cannot look at {path}: {error.strerror}.", hint="Correct its rights.") from error
    return found.st_mtime_ns, found.st_size, found.st_ino


class StateFile(Generic[Document]):
    """One document as JSON in a file readable by its owner alone; several processes and threads may change it.

    Args:
        path: the file; None keeps the document in memory, for rehearsals.
        empty: the document of a file that is not there.
    """

    def __init__(self, path: Path | None, empty: Document) -> None:
        self._path = path
        self._empty = empty
        self._kind = type(empty)
        self._lock = threading.RLock()
        self._known: Document = empty
        self._mark: FileMark | None = None

    def read(self) -> Document:
        """The document as it is now.

        Raises:
            StorageError: the file cannot be read, or holds something else.
        """
        with self._lock:
            if self._path is None:
                return self._known
            mark = file_mark(self._path)
            if mark is None:
                self._known = self._empty
            elif mark != self._mark:
                self._known = self._load(self._path)
            self._mark = mark
            return self._known

    def change(self, how: Callable[[Document], Document]) -> Document:
        """Replaces the document by what ``how`` makes of it; nothing is written when that is the same.

        Raises:
            StorageError: the file cannot be read or written.
        """
        with self._lock, self._alone():
            before = self.read()
            after = how(before)
            if after != before:
                self._store(after)
            return after

    def _store(self, document: Document) -> None:
        if self._path is not None:
            write_secret(self._path, document.model_dump_json(indent=1).encode())
            _give_to_owner_of_folder(self._path)
            self._mark = file_mark(self._path)
        self._known = document

    def _load(self, path: Path) -> Document:
        try:
            return self._kind.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise StorageError(
                f"{path} holds something else than it should: {error.error_count()} mistakes.",
                hint="Restore it from a backup; nothing is done until then.",
            ) from error
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}.", hint="Correct its rights.") from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Without another process that changes a file of the same folder: the lock is the folder's own."""
        if self._path is None:
            yield
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            folder = os.open(self._path.parent, os.O_RDONLY)
        except OSError as error:
            raise StorageError(
                f"cannot open {self._path.parent}: {error.strerror}.", hint="Correct its rights."
            ) from error
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


def _give_to_owner_of_folder(path: Path) -> None:
    """A command that root ran must not leave a file that the daemon's user cannot read."""
    if os.geteuid() != 0:
        return
    folder = path.parent.stat()
    os.chown(path, folder.st_uid, folder.st_gid)
