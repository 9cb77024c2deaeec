"""A SQLite file as devices and hubs use it: one connection, one lock, whole transactions."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from fedloop_core.errors import StorageError

__all__ = ["Database", "Durability"]

BUSY_SECONDS = 10.0


class Durability(Enum):
    """What a power cut may take: nothing that was committed, or the last commits but never the file."""

    EVERY_COMMIT = "FULL"
    LAST_COMMITS_MAY_GO = "NORMAL"


class Database:
    """A SQLite database for any number of threads.

    Args:
        path: the file, made readable by its owner alone; None keeps everything in memory.
        schema: statements that make the tables if they are not there.
        durability: whether each commit waits for the disk.

    Raises:
        StorageError: the file cannot be opened or is not a database.
    """

    def __init__(self, path: Path | None, schema: str, durability: Durability = Durability.EVERY_COMMIT) -> None:
        self._lock = threading.RLock()
        self._where = str(path) if path else "memory"
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._connection = sqlite3.connect(
                path or ":memory:", timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            if path is not None:
                self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute(f"PRAGMA synchronous = {durability.value}")
            self._connection.executescript(schema)
        except (OSError, sqlite3.Error) as error:
            raise StorageError(
                f"cannot open the database {self._where}: {error}.", hint="Check the folder's rights and free space."
            ) from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All statements inside or none of them; one thread at a time. Not to be nested.

        Raises:
            StorageError: the disk is full, or the database is damaged or closed.
        """
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield self._connection
                except BaseException:
                    self._connection.execute("ROLLBACK")
                    raise
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise StorageError(
                    f"the database {self._where} fails: {error}.", hint="Free space, then retry."
                ) from error

    def close(self) -> None:
        """Closes the file; later transactions raise StorageError."""
        with self._lock:
            self._connection.close()
