"""Rows of an NPZ file: arrays whose first axis are the rows, never pickled objects."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedloop_clients.data.sources.batches import Fact, Known, SourceBatch, SourceDescription, check_columns
from fedloop_core.errors import FileMissing, SourceInvalid

__all__ = ["NpzSource"]

_CELLS = 4_000_000
_LARGEST_BYTES = 64 << 30


class NpzSource:
    """Arrays by name; one of more than one axis holds an image or a signal in each row.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def describe(self) -> SourceDescription:
        """See ``RowSource``."""
        return SourceDescription("NPZ", str(self._path), (Fact("columns", f"{len(self.columns())}", Known.READ),))

    def columns(self) -> tuple[str, ...]:
        """See ``RowSource``."""
        try:
            with zipfile.ZipFile(self._path) as file:
                members = file.infolist()
        except zipfile.BadZipFile as error:
            raise self._broken("it is no NPZ file") from error
        except OSError as error:
            raise FileMissing(f"cannot read {self._path}: {error.strerror}.") from error
        if sum(member.file_size for member in members) > _LARGEST_BYTES:
            raise self._broken(f"it unpacks to more than {_LARGEST_BYTES >> 30} GiB")
        return tuple(member.filename.removesuffix(".npy") for member in members)

    def batches(self, columns: Sequence[str]) -> Iterator[SourceBatch]:
        """See ``RowSource``."""
        check_columns(str(self._path), columns, self.columns())
        arrays = self._load(columns)
        lengths = {name: array.shape[0] if array.ndim else 0 for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise self._broken(f"its arrays have different numbers of rows: {told}")
        rows = next(iter(lengths.values()), 0)
        widest = max((math.prod(array.shape[1:]) for array in arrays.values()), default=1)
        step = max(1, _CELLS // max(widest, 1))
        for begin in range(0, rows, step):
            part = [_column(array[begin : begin + step]) for array in arrays.values()]
            numbers = np.arange(begin + 1, min(begin + step, rows) + 1, dtype=np.int64)
            yield SourceBatch(pa.RecordBatch.from_arrays(part, names=list(arrays)), numbers)

    def places(self, numbers: Sequence[int]) -> dict[int, str]:
        """``file.npz, row 17``."""
        return {number: f"{self._path.name}, row {number}" for number in numbers}

    def _load(self, columns: Sequence[str]) -> dict[str, NDArray[np.generic]]:
        try:
            with np.load(self._path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in columns}
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise self._broken(f"an array cannot be read without running code from it: {error}") from error
        except OSError as error:
            raise FileMissing(f"cannot read {self._path}: {error}.") from error
        for name, array in arrays.items():
            if array.dtype.kind not in "biufU" or (array.dtype.kind == "U" and array.ndim != 1):
                raise self._broken(f"array {name!r} holds {array.dtype}, neither numbers nor text")
        return arrays

    def _broken(self, why: str) -> SourceInvalid:
        return SourceInvalid(f"{self._path} cannot be read: {why}.", hint="Write it with numpy.savez.")


def _column(part: NDArray[np.generic]) -> pa.Array:
    if part.ndim == 1:
        return pa.array(part)
    size = math.prod(part.shape[1:])
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(part).reshape(-1)), size)
