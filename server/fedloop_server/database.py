"""Connections: SQLite in WAL mode with foreign keys, or any other database that SQLAlchemy knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import Connection, create_engine, event, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Session

from fedloop_core.errors import StorageError

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.pool import ConnectionPoolEntry

__all__ = ["Base", "Database"]

_BUSY_MILLISECONDS = 30_000


class Base(DeclarativeBase):
    """The declarative base of every table of the coordinator."""


class Database:
    """Sessions on the coordinator's tables, which are made where they are missing.

    Raises:
        StorageError: the database cannot be opened or is of another format.
    """

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        self._name = parsed.render_as_string(hide_password=True)
        sqlite = parsed.get_backend_name() == "sqlite"
        if sqlite and parsed.database in (None, "", ":memory:"):
            raise StorageError("a database in memory would be another one in each thread.", hint="Name a file.")
        self._engine = create_engine(parsed)
        self._writer = self._engine
        if sqlite:
            event.listen(self._engine, "connect", _prepare_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
            self._writer = self._engine.execution_options(sqlite_begin="IMMEDIATE")
        from fedloop_server.registry.tables import FORMAT, FormatRow

        with self.writing() as session:
            Base.metadata.create_all(session.connection())
            found = session.scalars(select(FormatRow.number)).all()
            if not found:
                session.add(FormatRow(number=FORMAT))
            elif list(found) != [FORMAT]:
                raise StorageError(
                    f"database {self._name} has format {found[0]}; this release reads {FORMAT}.",
                    hint="Use the release of fedloop that wrote it.",
                )

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session that sees one moment.

        Raises:
            StorageError: the database fails.
        """
        with self._session(Session(self._engine)) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A session that commits at its end, or changes nothing; writers wait for one another.

        Raises:
            StorageError: the database fails.
        """
        with self._session(Session(self._writer)) as session:
            yield session
            session.commit()

    def close(self) -> None:
        """Closes all connections."""
        self._engine.dispose()

    @contextmanager
    def _session(self, session: Session) -> Iterator[Session]:
        try:
            with session:
                yield session
        except SQLAlchemyError as error:
            raise StorageError(
                f"database {self._name} failed: {str(error).splitlines()[0]}.",
                hint="Look at the disk, or restore the database from a backup.",
            ) from error


def _prepare_sqlite(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # transactions begin where _begin_sqlite says, not at the first write
    cursor = connection.cursor()
    for pragma in (
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
        f"busy_timeout = {_BUSY_MILLISECONDS}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    mode = connection.get_execution_options().get("sqlite_begin", "DEFERRED")
    connection.exec_driver_sql(f"BEGIN {mode}")
