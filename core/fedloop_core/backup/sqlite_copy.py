"""Consistent copies of SQLite files that others write to meanwhile."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from fedloop_core.backup.owners import acting_as_owner
from fedloop_core.durable import sync_path
from fedloop_core.errors import StorageError

__all__ = ["SqliteSnapshot", "copy_sqlite", "held_still", "snapshot"]

_BUSY_SECONDS = 30


class SqliteSnapshot:
    """One moment of a database, however long ago it was."""

    def __init__(self, connection: sqlite3.Connection, file: Path) -> None:
        self._connection = connection
        self._file = file

    def copy_to(self, target: Path) -> None:
        """Writes the moment into one file (0600) without a write-ahead log; whole or not at all.

        Raises:
            StorageError: the database is damaged, or the disk is full.
        """
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        with _errors(f"cannot copy {self._file} to {target}"):
            try:
                os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
                with closing(sqlite3.connect(temporary)) as writer:
                    self._connection.backup(writer)
                    writer.execute("PRAGMA journal_mode = DELETE")
                sync_path(temporary)
                temporary.replace(target)
                sync_path(target.parent)
            finally:
                for rest in (temporary, temporary.with_name(f"{temporary.name}-journal")):
                    with contextlib.suppress(OSError):
                        rest.unlink()


@contextmanager
def snapshot(file: Path) -> Iterator[SqliteSnapshot]:
    """The database as it is now, for as long as the block lasts; nobody waits for it.

    Raises:
        StorageError: it is not there, or no database.
    """
    with _opened(file, "ro") as connection:
        with _errors(f"cannot read {file}"), acting_as_owner(file):
            connection.execute("BEGIN")  # a copy in the midst of writers sees this moment and need not begin again
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        yield SqliteSnapshot(connection, file)


@contextmanager
def held_still(file: Path) -> Iterator[None]:
    """Nobody writes to the database for the length of the block; nothing when it is not there.

    Raises:
        StorageError: it is none, or stayed locked for half a minute.
    """
    if not file.exists():
        yield
        return
    with _opened(file, "rw") as connection:
        with _errors(f"cannot hold {file} still"), acting_as_owner(file):
            connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")


def copy_sqlite(source: Path, target: Path) -> None:
    """Copies one moment of a database into one file (0600); whole or not at all.

    Raises:
        StorageError: the source is no database or is damaged, or the disk is full.
    """
    with snapshot(source) as moment:
        moment.copy_to(target)


@contextmanager
def _opened(file: Path, mode: str) -> Iterator[sqlite3.Connection]:
    with _errors(f"cannot read {file}"), acting_as_owner(file):
        connection = sqlite3.connect(
            f"{file.absolute().as_uri()}?mode={mode}", uri=True, timeout=_BUSY_SECONDS, isolation_level=None
        )
    with closing(connection):
        yield connection


@contextmanager
def _errors(doing: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StorageError(
            f"{doing}: {error}.", hint="Free space or correct rights; a damaged database is restored from a backup."
        ) from error
