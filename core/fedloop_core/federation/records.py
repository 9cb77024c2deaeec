"""Questions and answers as Flower records.

A message carries one config record with one field of bytes (an Envelope or an Answer) and, when there are any, one array
record. Arrays are raw little-endian bytes (``stype`` "fedloop.raw"): reading them copies nothing and unpickles nothing.
"""

from __future__ import annotations

import math

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
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
    "array_record",
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
_NAMES = {np.dtype(name): name for name in ("float32", "float64", "int64", "int32", "uint8")}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def array_record(arrays: NamedArrays) -> ArrayRecord:
    """Arrays as a record; one record may ride in many messages, none of which may change it."""
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = Array(_NAMES[array.dtype], array.shape, _RAW, np.ascontiguousarray(array).tobytes())
    return record


def pack(body: bytes, arrays: ArrayRecord) -> RecordDict:
    """Records that carry a serialised message and named arrays."""
    records = RecordDict()
    records[_CONFIG] = ConfigRecord({_BODY: body})
    if arrays:
        records[_ARRAYS] = arrays
    return records


def unpack(records: RecordDict) -> tuple[bytes, dict[str, NDArray[np.generic]]]:
    """The serialised message and the arrays, which are read-only views.

    Raises:
        UpdateRefused: the records are not ours, or an array's bytes do not fit its shape and dtype.
    """
    config = records.get(_CONFIG)
    body = config.get(_BODY) if isinstance(config, ConfigRecord) else None
    if not isinstance(body, bytes):
        raise UpdateRefused("a message carries no fedloop record.", reason="format")
    record = records.get(_ARRAYS)
    arrays = {name: _view(name, array) for name, array in record.items()} if isinstance(record, ArrayRecord) else {}
    return body, arrays


def _view(name: str, array: Array) -> NDArray[np.generic]:
    dtype = _DTYPES.get(array.dtype)
    if array.stype != _RAW or dtype is None:
        raise UpdateRefused(f"array {name} is of kind {array.stype} {array.dtype}.", reason="format")
    if any(side < 0 for side in array.shape) or len(array.data) != math.prod(array.shape) * dtype.itemsize:
        raise UpdateRefused(f"array {name} has {len(array.data)} bytes for shape {array.shape}.", reason="shape")
    return np.frombuffer(array.data, dtype=dtype).reshape(array.shape)
