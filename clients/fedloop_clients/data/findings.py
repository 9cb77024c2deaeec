"""What is found wrong in one batch, while its columns are parsed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedloop_clients.data.cells.faults import ColumnFaults, Fault
from fedloop_clients.data.cells.numbers import Numbers

__all__ = ["Findings"]


class Findings:
    """``bad`` is bool ``[rows]``: rows that cannot be used."""

    def __init__(self, rows: int) -> None:
        self.bad = np.zeros(rows, dtype=np.bool_)
        self._missing: dict[str, NDArray[np.bool_]] = {}
        self._faults: list[ColumnFaults] = []

    def take(self, column: str, fault: Fault, rows: NDArray[np.bool_]) -> None:
        """Takes note of a fault in some rows; of none when there are none."""
        if rows.any():
            self._faults.append(ColumnFaults(column, fault, rows))
            self.bad |= rows

    def take_missing(self, column: str, rows: NDArray[np.bool_], *, may_be_missing: bool) -> None:
        """Takes note of missing cells, which are a fault unless they may be."""
        self._missing[column] = rows
        if not may_be_missing:
            self.take(column, Fault.MISSING, rows)

    def take_numbers(self, column: str, numbers: Numbers, *, may_be_missing: bool) -> None:
        """Takes note of all that is wrong with a column of numbers."""
        self.take_missing(column, numbers.missing, may_be_missing=may_be_missing)
        for fault, rows in numbers.faults.items():
            self.take(column, fault, rows)

    def missing(self, rows: NDArray[np.bool_]) -> dict[str, int]:
        """How many of these rows have nothing in each column."""
        return {column: int((where & rows).sum()) for column, where in self._missing.items()}

    def faults(self, rows: NDArray[np.bool_]) -> Iterator[ColumnFaults]:
        """The faults of these rows only."""
        for told in self._faults:
            left = told.rows & rows
            if left.any():
                yield ColumnFaults(told.column, told.fault, left)
