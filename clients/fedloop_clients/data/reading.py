"""All rows of a source, and what was found in them, counted by column with a few examples that stay at the site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from fedloop_clients.data.cells.faults import ColumnFaults, Fault
from fedloop_clients.data.cells.text import as_text
from fedloop_clients.data.row_reader import ReadBatch, RowReader
from fedloop_clients.data.sources.batches import RowSource
from fedloop_core.dataset import Dataset

__all__ = ["EXAMPLES", "Example", "FaultCount", "Reading", "read_rows"]

EXAMPLES = 20
"""Of one fault in one column, so many are kept to be shown."""


@dataclass(frozen=True)
class Example:
    """A row that cannot be used: its number, where it stands, and what its cell holds. Never leaves the site."""

    number: int
    place: str
    cell: str


@dataclass(frozen=True)
class FaultCount:
    """How many rows have one fault in one column of the task; a broken row has no column."""

    column: str
    fault: Fault
    rows: int
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class Reading:
    """What a source held.

    ``rows`` fit. ``skipped`` others do not, for the reasons in ``faults``; a row with two faults is skipped once and counted under both.
    ``missing`` counts cells by feature, ``outside`` rows with a number outside its range, ``blank`` rows that hold nothing
    and ``left_out`` those of people who take no part; neither of the last two is read or skipped.
    """

    rows: Dataset
    skipped: int = 0
    faults: tuple[FaultCount, ...] = ()
    missing: dict[str, int] = field(default_factory=dict)
    outside: int = 0
    blank: int = 0
    left_out: int = 0

    @property
    def skipped_share(self) -> float:
        """Of the rows that hold something and may be looked at, those that do not fit."""
        return self.skipped / max(len(self.rows) + self.skipped, 1)


def read_rows(source: RowSource, reader: RowReader) -> Reading:
    """Reads everything.

    Args:
        source: what the reader reads, asked where rows stand that do not fit.
        reader: for the task.

    Raises:
        FileMissing, SourceInvalid, ColumnMissing: as the source.
    """
    tally = _Tally(reader)
    parts = [part for part in map(tally.take, reader.batches()) if len(part)]
    rows = reader.no_rows() if not parts else parts[0] if len(parts) == 1 else Dataset.join(parts)
    return Reading(
        rows,
        tally.skipped,
        tuple(tally.counts(source)),
        dict(tally.missing),
        tally.outside,
        tally.blank,
        tally.left_out,
    )


class _Tally:
    def __init__(self, reader: RowReader) -> None:
        self._reader = reader
        self._rows: Counter[tuple[str, Fault]] = Counter()
        self._examples: dict[tuple[str, Fault], list[tuple[int, str]]] = {}
        self.missing: Counter[str] = Counter()
        self.skipped = self.outside = self.blank = self.left_out = 0

    def take(self, batch: ReadBatch) -> Dataset:
        for row in batch.source.broken:
            self._count(("", Fault.BROKEN), 1, iter([(row.number, row.why)]))
        for told in batch.faults:
            self._count((told.column, told.fault), int(told.rows.sum()), self._shown(batch, told))
        self.skipped += batch.source.columns.num_rows - len(batch.rows) - batch.blank + len(batch.source.broken)
        self.missing.update(batch.missing)
        self.outside += batch.outside
        self.blank += batch.blank
        self.left_out += batch.left_out
        return batch.rows

    def counts(self, source: RowSource) -> Iterator[FaultCount]:
        places = source.places([number for shown in self._examples.values() for number, _ in shown])
        for (column, fault), rows in self._rows.items():
            shown = self._examples[column, fault]
            yield FaultCount(
                column, fault, rows, tuple(Example(number, places[number], cell) for number, cell in shown)
            )

    def _count(self, what: tuple[str, Fault], rows: int, shown: Iterator[tuple[int, str]]) -> None:
        self._rows[what] += rows
        kept = self._examples.setdefault(what, [])
        while len(kept) < EXAMPLES:
            example = next(shown, None)
            if example is None:
                break
            kept.append(example)

    def _shown(self, batch: ReadBatch, told: ColumnFaults) -> Iterator[tuple[int, str]]:
        names = self._reader.columns_of(told.column)
        for place in np.flatnonzero(told.rows)[:EXAMPLES]:
            cells = [_cell(batch.source.columns.column(name), int(place)) for name in names]
            yield int(batch.source.numbers[place]), ", ".join(cells)


def _cell(column: pa.Array, place: int) -> str:
    cell = column.slice(place, 1)
    if pa.types.is_nested(column.type):
        return f"{len(cell[0].as_py() or ())} numbers"
    return as_text(cell)[0].as_py() or ""
