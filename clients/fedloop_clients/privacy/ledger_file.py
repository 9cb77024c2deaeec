"""The ledger's SQLite file: its one table, which only grows, and how files of an earlier format are brought to this one."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from fedloop_clients.privacy.chain import LedgerRow
from fedloop_clients.privacy.entries import FORMAT
from fedloop_core.errors import StorageError

__all__ = ["open_ledger_file", "rows_after"]

_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS entry (
    sequence INTEGER PRIMARY KEY, body BLOB NOT NULL, digest BLOB NOT NULL, signature BLOB
) STRICT""",
    """CREATE TRIGGER IF NOT EXISTS entry_is_never_changed BEFORE UPDATE ON entry
    BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END""",
    """CREATE TRIGGER IF NOT EXISTS entry_is_never_deleted BEFORE DELETE ON entry
    BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END""",
)
_WAIT_SECONDS = 30.0


def open_ledger_file(path: Path | str) -> sqlite3.Connection:
    """Opens or makes the file, readable by its owner alone; each write is on the disk when it returns.

    Args:
        path: the file, or ":memory:".

    Raises:
        StorageError: a newer release wrote it.
        OSError, sqlite3.Error: it cannot be opened, or is no ledger.
    """
    if str(path) != ":memory:":
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    connection = sqlite3.connect(str(path), timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    _upgrade(connection, str(path))
    return connection


def rows_after(connection: sqlite3.Connection, sequence: int) -> Iterator[LedgerRow]:
    """The entries after this number, in their order."""
    query = "SELECT sequence, body, digest, signature FROM entry WHERE sequence > ? ORDER BY sequence"
    with closing(connection.execute(query, (sequence,))) as rows:
        for row in rows:
            yield LedgerRow(*row)


def _upgrade(connection: sqlite3.Connection, name: str) -> None:
    """Makes the table, or brings one of an earlier format to this one; its entries stay as they are."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found > FORMAT:
        raise StorageError(
            f"ledger {name} has format {found}, and this version of fedloop knows {FORMAT}.",
            hint="Use the version that wrote it, or a newer one.",
        )
    if found == FORMAT:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        columns = {row[1] for row in connection.execute("PRAGMA table_info(entry)")}
        if columns and "signature" not in columns:
            connection.execute("ALTER TABLE entry ADD COLUMN signature BLOB")
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
