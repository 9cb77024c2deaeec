"""From a source's batches to encoded rows: what fits is kept as it is, what does not is counted, and nothing is put right."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedloop_clients.data.cells.categories import parse_categories
from fedloop_clients.data.cells.faults import ColumnFaults, Fault
from fedloop_clients.data.cells.identifiers import parse_identifiers
from fedloop_clients.data.cells.tensors import parse_tensors
from fedloop_clients.data.cells.text import as_text, booleans, is_text
from fedloop_clients.data.column_plan import NumberPlan
from fedloop_clients.data.findings import Findings
from fedloop_clients.data.label_reader import LabelReader
from fedloop_clients.data.leave_out import LeaveOut
from fedloop_clients.data.mapping import Mappings
from fedloop_clients.data.sources.batches import RowSource, SourceBatch
from fedloop_core.dataset import Dataset
from fedloop_core.encoding import CATEGORICAL, NUMERIC, InputEncoder, Inputs
from fedloop_core.task import Task

__all__ = ["ReadBatch", "RowReader"]


@dataclass(frozen=True)
class ReadBatch:
    """What became of a batch.

    ``rows`` fit, and stand at ``numbers`` (int64 ``[rows]``) in the source. ``faults`` say of all rows of ``source`` what is wrong with
    which column. ``missing``: in how many rows each feature is missing. ``outside``: how many of ``rows`` hold a number outside its range.
    ``blank`` rows hold nothing; ``left_out`` rows are of people who take no part, and nothing else of them was looked at.
    """

    source: SourceBatch
    rows: Dataset
    numbers: NDArray[np.int64]
    faults: tuple[ColumnFaults, ...]
    missing: dict[str, int]
    outside: int
    blank: int
    left_out: int


class RowReader:
    """Reads rows of one source for one task.

    Args:
        source: where they lie.
        task: says which columns are wanted and what fits.
        mappings: what the site says of its columns.
        leave_out: whose rows are passed over, if anybody's.

    Raises:
        SettingsInvalid: the site says something of a column that the task's cannot be.
    """

    def __init__(self, source: RowSource, task: Task, mappings: Mappings, leave_out: LeaveOut | None = None) -> None:
        self._source = source
        self._schema = task.feature_schema
        self._encoder = InputEncoder(self._schema)
        self._mappings = mappings
        self._leave_out = leave_out
        self._unit = task.privacy.unit_column
        self._dated = [feature for feature in task.features if feature.kind in {"numeric", "date"}]
        self._numbers = [NumberPlan.of(feature, mappings) for feature in self._dated]
        self._label = LabelReader(self._schema.label, mappings)

    @property
    def columns(self) -> tuple[str, ...]:
        """The site's names of the columns that are needed, each once."""
        names = [name for plan in self._numbers for name in plan.columns]
        names += [self._mappings.column(feature.name) for feature in (*self._schema.categorical, *self._schema.tensors)]
        names += [name for columns in self._label.columns().values() for name in columns]
        names += [] if self._unit is None else [self._mappings.column(self._unit)]
        names += [] if self._leave_out is None else [self._leave_out.column]
        return tuple(dict.fromkeys(names))

    def columns_of(self, name: str) -> tuple[str, ...]:
        """The site's columns that one of the task's comes from; none for a broken row."""
        known = {plan.name: plan.columns for plan in self._numbers} | self._label.columns()
        return known.get(name, (self._mappings.column(name),))

    def no_rows(self) -> Dataset:
        """What a source without rows holds."""
        return Dataset(self._encoder.encode([]), self._label.none(), ())

    def batches(self) -> Iterator[ReadBatch]:
        """All rows of the source, a batch at a time and in order; as many batches are parsed at once as Arrow has threads.

        Raises:
            FileMissing, SourceInvalid, ColumnMissing: as the source.
        """
        threads = pa.cpu_count()
        with ThreadPoolExecutor(threads) as pool:
            waiting: deque[Future[ReadBatch]] = deque()
            try:
                for batch in self._source.batches(self.columns):
                    waiting.append(pool.submit(self._read, batch))
                    if len(waiting) > threads:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _read(self, batch: SourceBatch) -> ReadBatch:
        batch, left_out = self._without_the_left_out(batch)
        columns = batch.columns
        found = Findings(columns.num_rows)
        inputs = self._inputs(columns, found)
        labels = self._label.read(columns, found)
        units = self._units(batch, found)
        blank = self._blank(columns, found)
        places = np.flatnonzero(~found.bad)
        rows = Dataset(inputs, labels, units)
        kept = rows if len(places) == len(rows) else rows.take(places)
        outside = int(self._encoder.out_of_range(kept.inputs).sum())
        faults = tuple(found.faults(~blank))
        return ReadBatch(
            batch, kept, batch.numbers[places], faults, found.missing(~blank), outside, int(blank.sum()), left_out
        )

    def _without_the_left_out(self, batch: SourceBatch) -> tuple[SourceBatch, int]:
        if self._leave_out is None:
            return batch, 0
        names = as_text(batch.columns.column(self._leave_out.column)).to_pylist()
        stays = np.array([not self._leave_out.leaves_out(name or "") for name in names], dtype=np.bool_)
        if stays.all():
            return batch, 0
        kept = batch.columns.filter(pa.array(stays))
        return SourceBatch(kept, batch.numbers[stays], batch.broken), int((~stays).sum())

    def _inputs(self, columns: pa.RecordBatch, found: Findings) -> Inputs:
        inputs: Inputs = {}
        rows = columns.num_rows
        if self._numbers:
            matrix = np.empty((len(self._numbers), rows), dtype=np.float32)
            for at, (plan, feature) in enumerate(zip(self._numbers, self._dated, strict=True)):
                numbers = plan.parse(columns)
                matrix[at] = numbers.values
                found.take_numbers(plan.name, numbers, may_be_missing=feature.missing == "mean")
            inputs[NUMERIC] = np.ascontiguousarray(matrix.T)
        if self._schema.categorical:
            codes = np.empty((rows, len(self._schema.categorical)), dtype=np.int64)
            for at, category in enumerate(self._schema.categorical):
                column = columns.column(self._mappings.column(category.name))
                parsed = parse_categories(column, category, self._mappings.writing(category.name))
                codes[:, at] = parsed.values
                found.take_missing(category.name, parsed.missing, may_be_missing=category.missing == "category")
                found.take(category.name, Fault.UNKNOWN_VALUE, parsed.unknown)
            inputs[CATEGORICAL] = codes
        for tensor in self._schema.tensors:
            values, faults = parse_tensors(columns.column(self._mappings.column(tensor.name)), tensor)
            inputs[tensor.name] = values
            for fault, where in faults.items():
                found.take(tensor.name, fault, where)
        return inputs

    def _units(self, batch: SourceBatch, found: Findings) -> tuple[str, ...]:
        """The unit that a column names, else the row itself."""
        if self._unit is None:
            return tuple(f"row-{number}" for number in batch.numbers.tolist())
        name = self._mappings.column(self._unit)
        where = self._source.describe().where
        units = parse_identifiers(where, name, batch.columns.column(name), self._mappings.writing(self._unit))
        found.take(self._unit, Fault.NO_UNIT, booleans(pc.is_null(units)))
        return tuple(unit or "" for unit in units.to_pylist())

    @staticmethod
    def _blank(columns: pa.RecordBatch, found: Findings) -> NDArray[np.bool_]:
        """Bad rows in which no column holds anything: spreadsheets write them by the thousand."""
        blank = found.bad.copy()
        places = np.flatnonzero(blank)
        if len(places):
            rows = columns.take(pa.array(places))
            for column in rows.columns:
                held = booleans(_holds_something(column))
                blank[places[held]] = False
        return blank


def _holds_something(column: pa.Array) -> pa.Array:
    if not is_text(column):
        return pc.is_valid(column)
    return pc.fill_null(pc.not_equal(as_text(column), ""), False)
