"""Who computes what of a batch: each rank whole units, so that a unit's gradient is clipped in one place."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["split_rows", "split_units"]


def split_units(units: NDArray[np.int64], sizes: NDArray[np.int64], ranks: int) -> tuple[NDArray[np.int64], ...]:
    """Cuts a batch's units, in their order, into one part for each rank, with about as many rows each.

    Args:
        units: places of the units; none gives empty parts.
        sizes: rows of each.
        ranks: number of parts.
    """
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    middles = ends - sizes / 2
    cuts = np.searchsorted(middles, [total * rank / ranks for rank in range(1, ranks)])
    return tuple(np.split(units, cuts))


def split_rows(rows: NDArray[np.int64], ranks: int) -> tuple[NDArray[np.int64], ...]:
    """Cuts a batch's rows, in their order, into one part for each rank."""
    return tuple(np.array_split(rows, ranks))
