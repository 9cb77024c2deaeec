"""Rows of a Parquet file, or of an Arrow file (Feather)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedloop_clients.data.sources.batches import Fact, Known, SourceBatch, SourceDescription, check_columns
from fedloop_clients.data.sources.columns import check_types, plain
from fedloop_core.errors import FileMissing, SourceInvalid

__all__ = ["ArrowSource", "ParquetSource"]

_ROWS = 65_536


class ParquetSource:
    """A Parquet file, read a group of rows at a time.

    Args:
        path: the file.
    """

    kind = "Parquet"

    def __init__(self, path: Path) -> None:
        self._path = path

    def describe(self) -> SourceDescription:
        """See ``RowSource``."""
        fields = self._schema()
        return SourceDescription(self.kind, str(self._path), (Fact("columns", f"{len(fields)}", Known.READ),))

    def columns(self) -> tuple[str, ...]:
        """See ``RowSource``."""
        return tuple(self._schema().names)

    def batches(self, columns: Sequence[str]) -> Iterator[SourceBatch]:
        """See ``RowSource``."""
        schema = self._schema()
        check_columns(str(self._path), columns, schema.names)
        check_types(str(self._path), [schema.field(name) for name in columns])
        first = 1
        with _reading(self._path):
            for batch in self._read(list(columns)):
                arrays = [plain(batch.column(name)) for name in columns]
                numbers = np.arange(first, first + batch.num_rows, dtype=np.int64)
                yield SourceBatch(pa.RecordBatch.from_arrays(arrays, names=list(columns)), numbers)
                first += batch.num_rows

    def places(self, numbers: Sequence[int]) -> dict[int, str]:
        """``file.parquet, row 17``."""
        return {number: f"{self._path.name}, row {number}" for number in numbers}

    def _schema(self) -> pa.Schema:
        with _reading(self._path), pq.ParquetFile(self._path) as file:
            return file.schema_arrow

    def _read(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(self._path) as file:
            yield from file.iter_batches(batch_size=_ROWS, columns=columns)


class ArrowSource(ParquetSource):
    """An Arrow file, also called Feather version 2, read a batch at a time."""

    kind = "Arrow"

    def _schema(self) -> pa.Schema:
        with _reading(self._path), pa.memory_map(str(self._path)) as file:
            return pa.ipc.open_file(file).schema

    def _read(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(str(self._path)) as file:
            reader = pa.ipc.open_file(file)
            for at in range(reader.num_record_batches):
                batch = reader.get_batch(at).select(columns)
                for begin in range(0, batch.num_rows, _ROWS):
                    yield batch.slice(begin, _ROWS)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise SourceInvalid(f"{path} cannot be read: {error}.", hint="Is it whole, and of this kind?") from error
    except OSError as error:
        if error.errno is None:  # Arrow tells damage so too
            raise SourceInvalid(f"{path} cannot be read: {error}.", hint="Is it whole, and of this kind?") from error
        raise FileMissing(f"cannot read {path}: {error.strerror}.") from error
