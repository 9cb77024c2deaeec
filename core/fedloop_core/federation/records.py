"""Questions and answers as Flower records.

A message carries one config record with one field of bytes (an Envelope or an Answer) and, when there are any, one array
record. Arrays are raw little-endian bytes (``stype`` "fedloop.raw"): reading them copies nothing and unpickles nothing.
"""

from __future__ import annotations

import math

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedloop_core.arrays import NamedArrays
from fedloop_core.errors import UpdateRefused

__all__ = [
    "DESCRIBE",
    "EVALUATE",
    "IDENTIFY",
    "MESSAGE_TYPES",
    "MOMENTS",
    "TRAIN",
    "pack",
    "unpack",
]

IDENTIFY = "query.identify"
DESCRIBE = "query.describe"
MOMENTS = "query.moments"
TRAIN = "train"
EVALUATE = "evaluate"
MESSAGE_TYPES = (IDENTIFY, DESCRIBE, MOMENTS, TRAIN, EVALUATE)

_CONFIG = "fedloop"
_BODY = "body"
_ARRAYS = "arrays"
_RAW = "fedloop.raw"
_DTYPES = frozenset({"float32", "float64", "int64", "int32", "uint8"})


def pack(body: bytes, arrays: NamedArrays) -> RecordDict:
    """Records that carry a serialised message and named arrays."""
    records: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {_CONFIG: ConfigRecord({_BODY: body})}
    if arrays:
        records[_ARRAYS] = ArrayRecord(
            {
                name: Array(array.dtype.name, array.shape, _RAW, np.ascontiguousarray(array).tobytes())
                for name, array in arrays.items()
            }
        )
    return RecordDict(records)


def unpack(records: RecordDict) -> tuple[bytes, dict[str, NDArray[np.generic]]]:
    """The serialised message and the arrays, which are read-only views.

    Raises:
        UpdateRefused: the records are not ours, or an array's bytes do not fit its shape and dtype.
    """
    config = records.config_records.get(_CONFIG)
    body = config.get(_BODY) if config is not None else None
    if not isinstance(body, bytes):
        raise UpdateRefused("a message carries no fedloop record.", reason="format")
    record = records.array_records.get(_ARRAYS)
    arrays = {} if record is None else {name: _view(name, array) for name, array in record.items()}
    return body, arrays


def _view(name: str, array: Array) -> NDArray[np.generic]:
    if array.stype != _RAW or array.dtype not in _DTYPES:
        raise UpdateRefused(f"array {name} is of kind {array.stype} {array.dtype}.", reason="format")
    dtype = np.dtype(array.dtype)
    if any(side < 0 for side in array.shape) or len(array.data) != math.prod(array.shape) * dtype.itemsize:
        raise UpdateRefused(f"array {name} has {len(array.data)} bytes for shape {array.shape}.", reason="shape")
    return np.frombuffer(array.data, dtype=dtype).reshape(array.shape)
