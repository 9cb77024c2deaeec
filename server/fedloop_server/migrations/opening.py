"""Looks at a database, and makes or upgrades its tables in the transaction that it is given."""

from __future__ import annotations

import threading
from pathlib import Path

from sqlalchemy import Connection, inspect, select, text

from fedloop_core.backup.sqlite_copy import copy_sqlite
from fedloop_core.errors import StorageError
from fedloop_server.migrations.revisions import HEAD, Behind, Current, Found, Fresh, standing
from fedloop_server.migrations.schema import metadata, version_table

__all__ = ["bring_up_to_date", "is_current", "upgrade"]

_FOLDER = Path(__file__).parent
_UPGRADE = threading.Lock()  # Alembic keeps the context of the one upgrade that goes on in a module of its own


def is_current(connection: Connection, name: str) -> bool:
    """Whether nothing is to be done; quick, and writes nothing.

    Raises:
        StorageError: as ``standing``.
    """
    return isinstance(standing(name, _look(connection)), Current)


def bring_up_to_date(connection: Connection, name: str, sqlite_file: Path | None) -> None:
    """Makes the tables, or upgrades them after the SQLite file was copied beside itself.

    Args:
        connection: in a transaction that no other writer shares; everything is done in it.
        name: of the database, for errors.
        sqlite_file: the file behind the connection; None with another database.

    Raises:
        StorageError: as ``standing``; or the copy cannot be written.
    """
    match standing(name, _look(connection)):  # again: another process may have done it meanwhile
        case Current():
            return
        case Fresh():
            metadata().create_all(connection)
            _stamp(connection, HEAD)
        case Behind(revision, unmarked):
            if sqlite_file is not None:
                _put_aside(sqlite_file, revision)
            if unmarked:
                connection.execute(text("DROP TABLE format"))
                _stamp(connection, revision)
            upgrade(connection)


def _look(connection: Connection) -> Found:
    names = frozenset(inspect(connection).get_table_names())
    revisions = formats = None
    if "alembic_version" in names:
        revisions = tuple(connection.scalars(select(version_table().c.version_num)))
    if "format" in names:
        formats = tuple(connection.scalars(text("SELECT number FROM format")))
    return Found(revisions, formats, foreign=not names.isdisjoint(metadata().tables))


def _stamp(connection: Connection, revision: str) -> None:
    table = version_table()
    table.create(connection, checkfirst=True)
    connection.execute(table.insert().values(version_num=revision))


def _put_aside(file: Path, revision: str) -> None:
    aside = file.with_name(f"{file.name}.before-{HEAD}-was-{revision}")
    try:
        copy_sqlite(file, aside)
    except StorageError as error:
        raise StorageError(
            f"{file} is to be upgraded, and cannot be copied first: {error.message}", hint=error.hint
        ) from error


def upgrade(connection: Connection, revision: str = HEAD) -> None:
    """Applies the steps that are missing up to a revision, in the transaction of the connection."""
    from alembic import command  # imported by the few openings that upgrade: it takes longer than all the others do
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    with _UPGRADE:
        command.upgrade(config, revision)
