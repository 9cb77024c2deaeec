"""Images and signals: float32 ``[rows, *shape]`` from lists, or from text with numbers between blanks or commas."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedloop_clients.data.cells.faults import Fault
from fedloop_clients.data.cells.text import is_text
from fedloop_core.schema import ImageFeature, SignalFeature

__all__ = ["parse_tensors"]


def parse_tensors(
    column: pa.Array, feature: ImageFeature | SignalFeature
) -> tuple[NDArray[np.float32], dict[Fault, NDArray[np.bool_]]]:
    """One array for each row, zeros where a fault is told.

    Args:
        column: lists of numbers, or text such as ``[1, 2, 3]`` or ``1 2 3``.
        feature: says the shape; numbers come row by row, channels first.
    """
    size = math.prod(feature.shape)
    rows = len(column)
    values = np.zeros((rows, size), dtype=np.float32)
    faults = {
        fault: np.zeros(rows, dtype=np.bool_) for fault in (Fault.NOT_AN_ARRAY, Fault.WRONG_SIZE, Fault.NOT_FINITE)
    }
    if not _fixed(column, size, values):
        for at, cell in enumerate(column):
            numbers = _numbers(cell)
            if numbers is None:
                faults[Fault.NOT_AN_ARRAY][at] = True
            elif len(numbers) != size:
                faults[Fault.WRONG_SIZE][at] = True
            else:
                values[at] = numbers
    unbounded = ~np.isfinite(values).all(axis=1)
    faults[Fault.NOT_FINITE] |= unbounded
    values[unbounded] = 0.0
    return values.reshape(rows, *feature.shape), {fault: where for fault, where in faults.items() if where.any()}


def _fixed(column: pa.Array, size: int, values: NDArray[np.float32]) -> bool:
    """The common case: every row holds as many numbers as are wanted, one after the other in memory."""
    if not pa.types.is_fixed_size_list(column.type) or column.type.list_size != size or column.null_count:
        return False
    with np.errstate(over="ignore"):
        values[:] = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), size)
    return True


def _numbers(cell: pa.Scalar) -> NDArray[np.float32] | None:
    if not cell.is_valid:
        return None
    if is_text(pa.array([cell])):
        text = cell.as_py().strip().strip("[]").replace(",", " ").split()
    elif pa.types.is_list(cell.type) or pa.types.is_large_list(cell.type) or pa.types.is_fixed_size_list(cell.type):
        return _listed(cell.values)
    else:
        return None
    try:
        with np.errstate(over="ignore"):
            return np.array([float(number) for number in text], dtype=np.float32)
    except ValueError:
        return None


def _listed(values: pa.Array) -> NDArray[np.float32] | None:
    try:
        numbers = pc.fill_null(values.cast(pa.float64(), safe=False), np.nan)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    with np.errstate(over="ignore"):
        return np.asarray(numbers.to_numpy(zero_copy_only=False), dtype=np.float32)
