"""What every source of rows must do, over all that there are; and one table through each of them."""

from __future__ import annotations

import csv
import math
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedloop_clients.data.fingerprint import fingerprint
from fedloop_clients.data.mapping import Mappings, Numerals
from fedloop_clients.data.reading import Reading, read_rows
from fedloop_clients.data.row_reader import RowReader
from fedloop_clients.data.sources.batches import RowSource
from fedloop_clients.data.sources.csv_settings import CsvSettings
from fedloop_clients.data.sources.csv_source import CsvSource
from fedloop_clients.data.sources.npz_source import NpzSource
from fedloop_clients.data.sources.parquet_source import ArrowSource, ParquetSource
from fedloop_clients.data.sources.sql_source import SqlSource
from fedloop_core.errors import ColumnMissing, DataError
from fedloop_core.task import Task
from fedloop_core.task.reader import parse_task

Rows = list[tuple[Any, ...]]
NAMES = ("id", "age", "sex", "seen", "outcome")
TASK = parse_task("""\
format = 1
name = "t"
[[features]]
kind = "numeric"
name = "age"
range = [0, 120]
missing = "mean"
[[features]]
kind = "categorical"
name = "sex"
values = ["f", "m", "1"]
missing = "category"
[[features]]
kind = "date"
name = "seen"
range = ["1900-01-01", "2100-01-01"]
missing = "mean"
[label]
kind = "classes"
name = "outcome"
classes = ["0", "1"]
[model]
kind = "logistic"
[privacy]
epsilon = 8
unit_column = "id"
""")


def as_written(cell: object) -> str:
    return "" if cell is None else str(cell)


def write_csv(folder: Path, names: Sequence[str], rows: Rows) -> RowSource:
    path = folder / "t.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *([as_written(cell) for cell in row] for row in rows)])
    return CsvSource(path, CsvSettings(delimiter=","))


def arrow_table(names: Sequence[str], rows: Rows) -> pa.Table:
    return pa.table({name: pa.array([row[at] for row in rows]) for at, name in enumerate(names)})


def write_parquet(folder: Path, names: Sequence[str], rows: Rows) -> RowSource:
    pq.write_table(arrow_table(names, rows), folder / "t.parquet", row_group_size=7)
    return ParquetSource(folder / "t.parquet")


def write_arrow(folder: Path, names: Sequence[str], rows: Rows) -> RowSource:
    table = arrow_table(names, rows)
    with pa.OSFile(str(folder / "t.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return ArrowSource(folder / "t.arrow")


def write_sql(folder: Path, names: Sequence[str], rows: Rows) -> RowSource:
    path = folder / "t.db"
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    quoted = ", ".join(f'"{name}"' for name in names)
    connection.execute(f"create table t ({quoted})")
    cells = [[cell.isoformat() if isinstance(cell, date) else cell for cell in row] for row in rows]
    connection.executemany(f"insert into t values ({', '.join('?' * len(names))})", cells)  # noqa: S608
    connection.commit()
    connection.close()
    return SqlSource(f"sqlite:///{path}", "select * from t order by rowid")


def write_npz(folder: Path, names: Sequence[str], rows: Rows) -> RowSource:
    arrays = {name: np.array([as_written(row[at]) for row in rows], dtype=np.str_) for at, name in enumerate(names)}
    np.savez(folder / "t.npz", **arrays)  # type: ignore[arg-type]
    return NpzSource(folder / "t.npz")


@dataclass(frozen=True)
class Kind:
    """One kind of source, and how a table gets into it."""

    name: str
    write: Callable[[Path, Sequence[str], Rows], RowSource]
    missing: Callable[[Path], RowSource]


KINDS = (
    Kind("csv", write_csv, lambda folder: CsvSource(folder / "none.csv", CsvSettings())),
    Kind("parquet", write_parquet, lambda folder: ParquetSource(folder / "none.parquet")),
    Kind("arrow", write_arrow, lambda folder: ArrowSource(folder / "none.arrow")),
    Kind("sql", write_sql, lambda folder: SqlSource(f"sqlite:///{folder}/none.db", "select 1")),
    Kind("npz", write_npz, lambda folder: NpzSource(folder / "none.npz")),
)
EVERY = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
ROWS: Rows = [(f"0{at % 11}", float(at), "fm"[at % 2], date(2020, 1, 1 + at), at % 2) for at in range(30)]


@EVERY
def test_all_rows_come_in_order_and_are_numbered_from_one_on(kind: Kind, tmp_path: Path) -> None:
    source = kind.write(tmp_path, NAMES, ROWS)
    assert source.columns() == NAMES
    batches = list(source.batches(("outcome", "id")))
    assert [batch.columns.schema.names for batch in batches] == [["outcome", "id"]] * len(batches)
    assert [cell for batch in batches for cell in batch.columns.column("id").to_pylist()] == [row[0] for row in ROWS]
    numbers = [int(number) for batch in batches for number in batch.numbers]
    assert numbers == list(range(numbers[0], numbers[0] + 30))
    assert [batch.columns.to_pydict() for batch in source.batches(("outcome", "id"))] == [
        batch.columns.to_pydict() for batch in batches
    ]


@EVERY
def test_a_row_can_be_found_again(kind: Kind, tmp_path: Path) -> None:
    source = kind.write(tmp_path, NAMES, ROWS)
    numbers = [int(number) for batch in source.batches(("id",)) for number in batch.numbers]
    places = source.places([numbers[4], numbers[29]])
    assert set(places) == {numbers[4], numbers[29]}
    assert len(set(places.values())) == 2
    assert str(numbers[4]) in places[numbers[4]]


@EVERY
def test_a_column_that_is_not_there_is_named(kind: Kind, tmp_path: Path) -> None:
    source = kind.write(tmp_path, NAMES, ROWS)
    with pytest.raises(ColumnMissing, match="has no column 'Age'") as raised:
        list(source.batches(("Age",)))
    assert "Did you mean 'age'?" in str(raised.value.hint)


@EVERY
def test_a_source_that_is_not_there_is_an_error_with_its_name(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none"):
        kind.missing(tmp_path).columns()


@EVERY
def test_a_source_describes_itself(kind: Kind, tmp_path: Path) -> None:
    described = kind.write(tmp_path, NAMES, ROWS).describe()
    assert str(tmp_path) in described.where
    assert described.facts


@EVERY
def test_a_source_without_rows_has_none(kind: Kind, tmp_path: Path) -> None:
    source = kind.write(tmp_path, NAMES, [])
    assert sum(len(batch.numbers) for batch in source.batches(("id",))) == 0
    assert len(read(source).rows) == 0


def read(source: RowSource, task: Task = TASK) -> Reading:
    return read_rows(source, RowReader(source, task, Mappings({}, ("",), Numerals(), "site.toml")))


CELL_ROWS = st.lists(
    st.tuples(
        st.sampled_from(["007", "7", "a b", "ä"]),
        st.none() | st.floats(0, 120, width=32).map(lambda value: value + 0.0) | st.integers(0, 120).map(float),
        st.none() | st.sampled_from(["f", "m", "1"]),
        st.none() | st.dates(date(1900, 1, 1), date(2099, 1, 1)),
        st.sampled_from([0, 1]),
    ),
    min_size=1,
    max_size=20,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=CELL_ROWS)
def test_one_table_through_every_source_gives_the_same_rows_bit_by_bit(rows: Rows, tmp_path: Path) -> None:
    first: Reading | None = None
    for kind in KINDS:
        reading = read(kind.write(tmp_path, NAMES, rows))
        assert reading.skipped == 0
        first = first or reading
        for name, values in first.rows.inputs.items():
            assert reading.rows.inputs[name].tobytes() == values.tobytes(), kind.name
        assert reading.rows.labels.tobytes() == first.rows.labels.tobytes()
        assert reading.rows.units == first.rows.units
        assert fingerprint(reading.rows, bytes(16)) == fingerprint(first.rows, bytes(16))


@EVERY
def test_the_order_of_rows_does_not_matter_to_the_fingerprint(kind: Kind, tmp_path: Path) -> None:
    before = fingerprint(read(kind.write(tmp_path, NAMES, ROWS)).rows, bytes(16))
    assert fingerprint(read(kind.write(tmp_path, NAMES, ROWS[::-1])).rows, bytes(16)) == before
    changed = [*ROWS[:-1], (*ROWS[-1][:4], 1 - ROWS[-1][4])]
    assert fingerprint(read(kind.write(tmp_path, NAMES, changed)).rows, bytes(16)) != before


@EVERY
def test_the_order_of_columns_does_not_matter(kind: Kind, tmp_path: Path) -> None:
    straight = read(kind.write(tmp_path, NAMES, ROWS))
    turned = read(kind.write(tmp_path, NAMES[::-1], [row[::-1] for row in ROWS]))
    assert all(np.array_equal(turned.rows.inputs[name], values) for name, values in straight.rows.inputs.items())
    assert math.isclose(straight.skipped_share, turned.skipped_share)
