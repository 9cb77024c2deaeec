"""Questions and answers as Flower records.

A message carries one config record with one field of bytes (an Envelope or an Answer) and, when there are any arrays, one
array record. It holds all of them in one raw array of bytes (``stype`` "fedloop.raw") whose name is their layout (see
``fedloop_core.arrays.PackedArrays``): reading copies nothing and unpickles nothing, and a model of many layers is one object
to Flower.
"""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedloop_core.arrays import NamedArrays, PackedArrays, pack_arrays, unpack_arrays
from fedloop_core.errors import UpdateRefused

__all__ = [
    "DESCRIBE",
    "EVALUATE",
    "MESSAGE_TYPES",
    "MOMENTS",
    "TRAIN",
    "array_record",
    "pack",
    "parts",
    "record_of",
    "unpack",
]

DESCRIBE = "query.describe"
MOMENTS = "query.moments"
TRAIN = "train"
EVALUATE = "evaluate"
MESSAGE_TYPES = (DESCRIBE, MOMENTS, TRAIN, EVALUATE)

_CONFIG = "fedloop"
_BODY = "body"
_ARRAYS = "arrays"
_RAW = "fedloop.raw"


def array_record(arrays: NamedArrays) -> ArrayRecord:
    """Arrays as a record; one record may ride in many messages, none of which may change it."""
    return record_of(pack_arrays(arrays)) if arrays else ArrayRecord()


def record_of(packed: PackedArrays) -> ArrayRecord:
    """Packed arrays as a record."""
    record = ArrayRecord()
    record[packed.layout] = Array("uint8", (len(packed.content),), _RAW, packed.content)
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
    body, packed = parts(records)
    return body, {} if packed is None else unpack_arrays(packed)


def parts(records: RecordDict) -> tuple[bytes, PackedArrays | None]:
    """The serialised message and, when there are arrays, their pack, whose layout nobody has looked at yet.

    Raises:
        UpdateRefused: the records are not ours.
    """
    config = records.get(_CONFIG)
    body = config.get(_BODY) if isinstance(config, ConfigRecord) else None
    if not isinstance(body, bytes):
        raise UpdateRefused("a message carries no fedloop record.", reason="format")
    record = records.get(_ARRAYS)
    return body, _packed(record) if isinstance(record, ArrayRecord) and record else None


def _packed(record: ArrayRecord) -> PackedArrays:
    (layout, array), *others = record.items()
    if others or array.stype != _RAW:
        raise UpdateRefused(f"arrays are of kind {array.stype} in {1 + len(others)} parts.", reason="format")
    return PackedArrays(layout, array.data)
