"""Rows of a text file: CSV, TSV and their kin, with all cells as the text that they are."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
from numpy.typing import NDArray

from fedloop_clients.data.sources.batches import BrokenRow, Fact, Known, SourceBatch, SourceDescription, check_columns
from fedloop_clients.data.sources.csv_dialect import CsvDialect, settle_dialect
from fedloop_clients.data.sources.csv_settings import CsvSettings
from fedloop_clients.data.sources.utf8_stream import Utf8Stream
from fedloop_core.errors import FileMissing, SourceInvalid

__all__ = ["CsvSource"]

_BLOCK = 1 << 22
_BEGINNING = 1 << 20
_MOST_COLUMNS = 100_000


class CsvSource:
    """A text file whose first row names its columns, unless the site names them.

    Args:
        path: the file.
        settings: how it is written, as far as the site says.
        names: its columns, where it has no header.
    """

    def __init__(self, path: Path, settings: CsvSettings, names: tuple[str, ...] | None = None) -> None:
        self._path = path
        self._settings = settings
        self._declared = names
        self._settled: tuple[CsvDialect, tuple[str, ...]] | None = None

    def describe(self) -> SourceDescription:
        """The file and its dialect.

        Raises:
            FileMissing: it is not there or cannot be read.
            SourceInvalid: it is empty, not text, or cannot be divided into cells for sure.
        """
        dialect, names = self._form()
        header = Fact("columns", f"{len(names)}", Known.READ if self._declared is None else Known.DECLARED)
        return SourceDescription("CSV", str(self._path), (*dialect.facts, header))

    def columns(self) -> tuple[str, ...]:
        """The header's names, or the site's.

        Raises:
            FileMissing, SourceInvalid: as ``describe``.
        """
        return self._form()[1]

    def batches(self, columns: Sequence[str]) -> Iterator[SourceBatch]:
        """All rows, as text.

        Raises:
            FileMissing, SourceInvalid: as ``describe``, or what follows is no text or no CSV.
            ColumnMissing: the file has no such column, or two of that name.
        """
        dialect, names = self._form()
        check_columns(str(self._path), columns, names)
        wanted = {column: names.index(column) for column in columns}
        try:
            with Utf8Stream(self._path, dialect) as stream:
                rows = _arrow_rows(self._path.name, stream, dialect, len(names), wanted)
                yield from rows if self._declared is not None else _without_header(rows)
        except OSError as error:
            raise _unreadable(self._path, error) from error

    def places(self, numbers: Sequence[int]) -> dict[int, str]:
        """``file.csv:line`` of each row, found by reading the file once more."""
        dialect, _ = self._form()
        wanted, found = set(numbers), dict[int, str]()
        with Utf8Stream(self._path, dialect) as stream:
            begins = dialect.skip_lines + 1
            for number, (after, _) in enumerate(_records(stream, dialect), start=1):
                if number in wanted:
                    found[number] = f"{self._path.name}:{begins}"
                begins = after
                if len(found) == len(wanted):
                    break
        return found

    def _form(self) -> tuple[CsvDialect, tuple[str, ...]]:
        if self._settled is None:
            try:
                with self._path.open("rb") as file:
                    beginning = file.read(_BEGINNING + 1)
            except OSError as error:
                raise _unreadable(self._path, error) from error
            whole = len(beginning) <= _BEGINNING
            dialect = settle_dialect(self._path.name, beginning, whole, self._settings)
            self._settled = dialect, self._names(dialect)
        return self._settled

    def _names(self, dialect: CsvDialect) -> tuple[str, ...]:
        with Utf8Stream(self._path, dialect) as stream:
            first = next((cells for _, cells in _records(stream, dialect)), [])
        if not any(cell.strip() for cell in first):
            holds = ": its first line holds nothing" if self._path.stat().st_size > dialect.mark else " is empty"
            raise SourceInvalid(
                f"{self._path}{holds}.",
                hint="Its first line must name the columns; data.columns in site.toml names those of a file without header.",
            )
        names = self._declared
        if names is None:
            return tuple(cell.strip() for cell in first)
        if len(names) != len(first):
            raise SourceInvalid(
                f"{self._path}: its first row has {len(first)} cells, and site.toml names {len(names)} columns.",
                hint="Correct data.columns.",
            )
        return names


class _Numbering:
    """Numbers of rows from 1 as the reader hands them over, those of broken rows left out."""

    def __init__(self) -> None:
        self._next = 1
        self._broken: list[BrokenRow] = []

    def fail(self, row: arrow_csv.InvalidRow) -> str:
        """Takes note of a row that has another number of cells; the reader goes on."""
        why = f"has {row.actual_columns} cells; there are {row.expected_columns} columns"
        self._broken.append(BrokenRow(row.number, why))
        return "skip"

    def take(self, rows: int) -> tuple[NDArray[np.int64], tuple[BrokenRow, ...]]:
        """Numbers of the next rows, and which rows before the last of them were broken."""
        end = self._next + rows
        before = 0
        while before < len(self._broken) and self._broken[before].number < end:
            before += 1
            end += 1
        numbers = np.arange(self._next, end, dtype=np.int64)
        broken, self._broken = tuple(self._broken[:before]), self._broken[before:]
        if broken:
            numbers = np.delete(numbers, [row.number - self._next for row in broken])
        self._next = end
        return numbers, broken

    def rest(self) -> tuple[BrokenRow, ...]:
        """Broken rows after the last row."""
        return tuple(self._broken)


def _arrow_rows(
    name: str, stream: Utf8Stream, dialect: CsvDialect, width: int, wanted: dict[str, int]
) -> Iterator[SourceBatch]:
    numbering = _Numbering()
    reader = arrow_csv.open_csv(
        pa.PythonFile(stream, mode="r"),
        read_options=arrow_csv.ReadOptions(
            use_threads=False,  # rows are numbered only in order
            block_size=_BLOCK,
            column_names=[str(place) for place in range(width)],
        ),
        parse_options=arrow_csv.ParseOptions(
            delimiter=dialect.delimiter,
            quote_char='"' if dialect.quote else False,
            newlines_in_values=dialect.quote,
            ignore_empty_lines=False,
            invalid_row_handler=numbering.fail,
        ),
        convert_options=arrow_csv.ConvertOptions(
            column_types={str(place): pa.string() for place in range(width)},
            include_columns=[str(place) for place in wanted.values()],
            strings_can_be_null=False,
            check_utf8=False,  # the stream has
        ),
    )
    for batch in _read(name, reader):
        numbers, broken = numbering.take(batch.num_rows)
        yield SourceBatch(pa.RecordBatch.from_arrays(batch.columns, names=list(wanted)), numbers, broken)
    broken = numbering.rest()
    if broken:
        yield SourceBatch(_no_rows(wanted), np.empty(0, dtype=np.int64), broken)


def _read(name: str, reader: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader
    except pa.ArrowInvalid as error:
        raise SourceInvalid(
            f"{name}: cannot be divided into rows: one is longer than {_BLOCK >> 20} MiB.",
            hint="Keep images and signals in NPZ files or files of their own.",
        ) from error


def _without_header(batches: Iterator[SourceBatch]) -> Iterator[SourceBatch]:
    """Row 1 is the header: it is the first row of the first batch."""
    first = next(batches)
    yield SourceBatch(first.columns.slice(1), first.numbers[1:], first.broken)
    yield from batches


def _no_rows(names: Iterable[str]) -> pa.RecordBatch:
    listed = list(names)
    return pa.RecordBatch.from_arrays([pa.array([], type=pa.string())] * len(listed), names=listed)


def _records(stream: Utf8Stream, dialect: CsvDialect) -> Iterator[tuple[int, list[str]]]:
    """Each row as Python's own reader divides it, with the line after it, counted from the first that was not skipped."""
    lines = io.TextIOWrapper(io.BufferedReader(stream), "utf-8", newline="")
    reader = csv.reader(
        lines, delimiter=dialect.delimiter, quoting=csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE
    )
    for cells in reader:
        yield dialect.skip_lines + reader.line_num + 1, cells


def _unreadable(path: Path, error: OSError) -> FileMissing:
    return FileMissing(f"cannot read {path}: {error.strerror}.")
