"""Updates in pieces: all updates' values of so many coordinates at once, which the processor's cache holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["Matrix", "pieces"]

Matrix = NDArray[np.float64]

_VALUES = 1 << 18  # of a piece


def pieces(updates: Sequence[NDArray[np.floating]], dtype: DTypeLike) -> Iterator[NDArray[np.floating]]:
    """Copies ``[n, width]`` of consecutive coordinates, in order; the caller may change them."""
    width = max(_VALUES // len(updates), 1)
    for start in range(0, updates[0].size, width):
        yield np.stack([update[start : start + width] for update in updates]).astype(dtype, copy=False)
