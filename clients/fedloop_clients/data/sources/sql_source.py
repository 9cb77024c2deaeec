"""Rows of a query to a database, by SQLAlchemy: read only, in one transaction, a batch at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from fedloop_clients.data.sources.batches import Fact, Known, SourceBatch, SourceDescription, check_columns
from fedloop_core.errors import FileMissing, SourceInvalid

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, CursorResult

__all__ = ["SqlSource"]

_ROWS = 20_000
_SQLITE = re.compile(r"sqlite(\+pysqlite)?:///(?P<path>[^?]+)")


class SqlSource:
    """One query. Its rows have an order only if it says one; without, the numbers of rows in messages mean little.

    Args:
        url: SQLAlchemy's address of the database, without a password.
        query: one SELECT.
        password: for the database.
    """

    def __init__(self, url: str, query: str, password: str | None = None) -> None:
        self._url = url
        self._query = query
        self._password = password

    def describe(self) -> SourceDescription:
        """See ``RowSource``."""
        ordered = "given" if re.search(r"\border\s+by\b", self._query, re.IGNORECASE) else "none"
        facts = (Fact("query", self._query.strip(), Known.DECLARED), Fact("order", ordered, Known.READ))
        return SourceDescription("SQL", self._where(), facts)

    def columns(self) -> tuple[str, ...]:
        """See ``RowSource``."""
        with self._result() as result:
            return tuple(result.keys())

    def batches(self, columns: Sequence[str]) -> Iterator[SourceBatch]:
        """See ``RowSource``."""
        with self._result() as result:
            names = tuple(result.keys())
            check_columns(self._where(), columns, names)
            at = [names.index(name) for name in columns]
            first = 1
            for rows in result.partitions(_ROWS):
                arrays = [_column([row[place] for row in rows]) for place in at]
                numbers = np.arange(first, first + len(rows), dtype=np.int64)
                yield SourceBatch(pa.RecordBatch.from_arrays(arrays, names=list(columns)), numbers)
                first += len(rows)

    def places(self, numbers: Sequence[int]) -> dict[int, str]:
        """``row 17 of the query``."""
        return {number: f"row {number} of the query" for number in numbers}

    def _where(self) -> str:
        from sqlalchemy.engine import make_url

        return make_url(self._url).render_as_string(hide_password=True)

    @contextmanager
    def _result(self) -> Iterator[CursorResult[tuple[object, ...]]]:
        from sqlalchemy import text
        from sqlalchemy.exc import SQLAlchemyError

        try:
            with self._connection() as connection:
                options = {"stream_results": True, "yield_per": _ROWS}
                yield connection.execution_options(**options).execute(text(self._query))
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            raise SourceInvalid(
                f"{self._where()} does not answer the query: {' '.join(str(cause).split())}.",
                hint="Try the query with the database's own client, as the same user.",
            ) from error

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        from sqlalchemy import create_engine
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError

        try:
            url = make_url(self._read_only())
            engine = create_engine(url if self._password is None else url.set(password=self._password))
        except (ArgumentError, NoSuchModuleError, ImportError) as error:
            raise FileMissing(f"{self._url} is no database that can be read here: {error}.") from error
        try:
            with engine.connect() as connection:
                yield connection
        finally:
            engine.dispose()

    def _read_only(self) -> str:
        """SQLite would make an empty database where there is none, and let a query write."""
        local = _SQLITE.fullmatch(self._url)
        return self._url if local is None else f"sqlite:///file:{local['path']}?mode=ro&uri=true"


def _column(cells: list[object]) -> pa.Array:
    """Typed where all cells are of one kind; else each as the text that a person would have typed."""
    try:
        return pa.array(cells)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([_text(cell) for cell in cells], type=pa.string())


def _text(cell: object) -> str | None:
    match cell:
        case None:
            return None
        case bool():
            return "true" if cell else "false"
        case float():
            return str(int(cell)) if cell.is_integer() else repr(cell)
        case date() | datetime():
            return cell.isoformat()
        case int() | str() | Decimal():
            return str(cell)
        case _:
            raise SourceInvalid(
                f"the query gives {type(cell).__name__}, neither text, number nor date.", hint="Cast it."
            )
