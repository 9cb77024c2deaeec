"""Connections: SQLite in WAL mode with foreign keys, or PostgreSQL by URL; the tables are brought up to date at opening."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import URL, BigInteger, Connection, Engine, Integer, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Session

from fedloop_core.errors import DiskFull, StorageError

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.pool import ConnectionPoolEntry

__all__ = ["Base", "Database"]

_BUSY_MILLISECONDS = 30_000
_WRITERS = 0x66656C6F  # number of PostgreSQL's advisory lock that writers hold: any, the same for all of them


class Base(DeclarativeBase):
    """The declarative base of every table of the coordinator. Whole numbers have 64 bits: times outlive 2038."""

    type_annotation_map = {int: BigInteger().with_variant(Integer, "sqlite")}  # noqa: RUF012 - SQLAlchemy's form


class Database:
    """Sessions on the coordinator's tables. Threads may share it.

    Missing tables are made, and those of an older release are upgraded in one transaction, after a copy of the SQLite file
    was put aside.

    Args:
        url: SQLAlchemy's form, ``sqlite:////absolute/path`` or ``postgresql://…``.

    Raises:
        StorageError: the database cannot be opened, is none of fedloop's, or was written by a newer release.
    """

    def __init__(self, url: str) -> None:
        # The tables import Base from here.
        from fedloop_server.migrations.opening import bring_up_to_date, is_current

        parsed = _parsed(url)
        self._name = parsed.render_as_string(hide_password=True)
        self.sqlite_file = _sqlite_file(parsed)
        self._engine = _engine(parsed, self._name)
        self._reader: Engine = self._engine
        self._writer = self._engine.execution_options(fedloop_writes=True)
        if self.sqlite_file is None:
            event.listen(self._engine, "begin", _begin_postgresql)
            self._reader = self._engine.execution_options(isolation_level="REPEATABLE READ")
        else:
            event.listen(self._engine, "connect", _prepare_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
        with self.reading() as session:
            current = is_current(session.connection(), self._name)
        if not current:
            with self.writing() as session:
                bring_up_to_date(session.connection(), self._name, self.sqlite_file)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session that sees one moment.

        Raises:
            StorageError: the database fails.
        """
        with self._session(Session(self._reader)) as session:
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
            if _is_full(error):
                raise DiskFull(
                    f"database {self._name} cannot be written: its disk is full.", hint="Free space."
                ) from error
            raise StorageError(
                f"database {self._name} failed: {str(error).splitlines()[0]}.",
                hint="Look at the disk or the server, or restore the database from a backup.",
            ) from error


def _is_full(error: SQLAlchemyError) -> bool:
    cause = error.orig if isinstance(error, DBAPIError) else None
    if isinstance(cause, sqlite3.Error):
        return cause.sqlite_errorcode == sqlite3.SQLITE_FULL
    return getattr(cause, "sqlstate", None) == "53100"  # PostgreSQL's disk_full


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except SQLAlchemyError as error:
        raise StorageError(
            "the database's URL cannot be read.", hint="Write sqlite:////absolute/path or postgresql://user@host/name."
        ) from error
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise StorageError(
            f"a database of {parsed.get_backend_name()} cannot be used.",
            hint="fedloop keeps its tables in SQLite or PostgreSQL.",
        )
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername == "postgresql" else parsed


def _sqlite_file(url: URL) -> Path | None:
    if url.get_backend_name() != "sqlite":
        return None
    if url.database in (None, "", ":memory:"):
        raise StorageError("a database in memory would be another one in each thread.", hint="Name a file.")
    file = Path(str(url.database))
    try:  # before SQLite does, which would let everybody read it
        with suppress(FileExistsError):  # closing one that is there would take away the locks of this process on it
            os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise StorageError(
            f"database {file} cannot be opened: {error.strerror}.", hint="Correct the path or its rights."
        ) from error
    return file


def _engine(url: URL, name: str) -> Engine:
    try:
        return create_engine(url, pool_pre_ping=url.get_backend_name() != "sqlite")
    except ModuleNotFoundError as error:
        raise StorageError(
            f"database {name} needs a driver that is not installed ({error.name}).",
            hint="Run: pip install 'fedloop[server,postgres]'",
        ) from error
    except SQLAlchemyError as error:  # the URL names a driver that does not exist
        raise StorageError(f"database {name} cannot be used: {str(error).splitlines()[0]}.") from error


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
    writes = connection.get_execution_options().get("fedloop_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN DEFERRED")


def _begin_postgresql(connection: Connection) -> None:
    if connection.get_execution_options().get("fedloop_writes", False):  # as SQLite's writers wait for one another
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS})")
