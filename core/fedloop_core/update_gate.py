"""The update gate: what an update must be before it touches a sum, at the coordinator, and before it is masked, at a site."""

from __future__ import annotations

import math

import numpy as np

from fedloop_core.arrays import ArraySpec, NamedArrays
from fedloop_core.errors import UpdateRefused

__all__ = ["check_update", "norm"]


_CHUNK = 1 << 16  # values that are converted to float64 at once


def norm(arrays: NamedArrays) -> float:
    """L2 norm over all values of all arrays, in float64."""
    total, wide = 0.0, np.empty(_CHUNK, dtype=np.float64)
    for array in arrays.values():
        values = np.ascontiguousarray(array).reshape(-1)
        for start in range(0, values.size, _CHUNK):
            part = wide[: min(_CHUNK, values.size - start)]
            np.copyto(part, values[start : start + _CHUNK], casting="same_kind")
            total += float(np.dot(part, part))
    return math.sqrt(total)


def check_update(arrays: NamedArrays, spec: ArraySpec, *, maximum_norm: float) -> float:
    """Checks one update and returns its L2 norm.

    Raises:
        UpdateRefused: exact names and order, shapes, dtypes, finite values, or the norm.
    """
    spec.check_layout(arrays)
    length = norm(arrays)
    if not math.isfinite(length):
        raise UpdateRefused("the update holds values that are not finite.", reason="not-finite")
    if not length <= maximum_norm:
        raise UpdateRefused(f"the update has norm {length:.3g}; at most {maximum_norm:g} is allowed.", reason="norm")
    return length
