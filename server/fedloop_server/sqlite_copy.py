"""A consistent copy of a SQLite file that others write to meanwhile."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path

from fedloop_core.errors import StorageError

__all__ = ["copy_sqlite"]


def copy_sqlite(source: Path, target: Path) -> None:
    """Copies one moment of a database into one file (0600) without a write-ahead log; whole or not at all.

    Raises:
        StorageError: the source is no database or is damaged, or the disk is full.
    """
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as reader,
            closing(sqlite3.connect(temporary)) as writer,
        ):
            reader.execute("BEGIN")  # one snapshot, so that writers do not make the copy begin again
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
            reader.backup(writer)
            writer.execute("PRAGMA journal_mode = DELETE")
        _sync(temporary)
        temporary.replace(target)
        _sync(target.parent)
    except (sqlite3.Error, OSError) as error:
        raise StorageError(
            f"cannot copy {source} to {target}: {error}.",
            hint="Free space or correct rights; `sqlite3 FILE 'PRAGMA integrity_check'` looks at the file.",
        ) from error
    finally:
        for rest in (temporary, temporary.with_name(f"{temporary.name}-journal")):
            with contextlib.suppress(OSError):
                rest.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
