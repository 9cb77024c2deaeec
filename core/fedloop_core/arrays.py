"""Named arrays: weights, updates and sums as they are signed, stored and sent.

Order matters: it is the model's own order of parameters, and a reply in another order is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedloop_core.errors import StorageError, UpdateRefused

__all__ = [
    "ArraySpec",
    "NamedArrays",
    "PackedArrays",
    "arrays_from_bytes",
    "arrays_to_bytes",
    "digest",
    "pack_arrays",
    "unpack_arrays",
]

NamedArrays = Mapping[str, NDArray[np.generic]]

_ALIGNED = 8  # bytes: every array of a pack begins at a multiple, so that a view of it is an aligned array
_PACKED = {np.dtype(name): name for name in ("float32", "float64", "int64", "int32", "uint8")}
_DTYPES = {name: dtype for dtype, name in _PACKED.items()}
_MOST_VALUES = 2**40  # of one array, sides of 0 counted as 1: numpy itself takes such a shape
_Side = Annotated[int, Field(ge=0, le=_MOST_VALUES, strict=True)]
_Shape = Annotated[tuple[_Side, ...], Field(max_length=16)]
_LAYOUT = TypeAdapter(tuple[tuple[str, Literal["float32", "float64", "int64", "int32", "uint8"], _Shape], ...])


def digest(arrays: NamedArrays) -> bytes:
    """SHA-256 over names, dtypes, shapes and little-endian bytes, in order; the digest of no arrays is fixed too."""
    state = hashlib.sha256()
    for name, array in arrays.items():
        header = f"{name}\0{array.dtype.str}\0{array.shape}\0"
        state.update(header.encode())
        state.update(np.ascontiguousarray(array).data)
    return state.digest()


@dataclass(frozen=True)
class PackedArrays:
    """Arrays as they travel and as an outbox keeps them, in their order and without a copy when read.

    ``layout`` is JSON: ``[name, dtype, shape]`` of each array in order; ``content`` their little-endian bytes, each
    padded with zeros to a multiple of 8.
    """

    layout: str
    content: bytes


def pack_arrays(arrays: NamedArrays) -> PackedArrays:
    """Packs arrays of the dtypes float32, float64, int64, int32 and uint8.

    Raises:
        KeyError: an array has another dtype.
    """
    layout = _layout(tuple((name, array.dtype, array.shape) for name, array in arrays.items()))
    parts: list[bytes | memoryview] = []
    for array in arrays.values():
        parts.append(np.ascontiguousarray(array).data)
        if array.nbytes % _ALIGNED:
            parts.append(bytes(-array.nbytes % _ALIGNED))
    return PackedArrays(layout, b"".join(parts))


def unpack_arrays(packed: PackedArrays) -> dict[str, NDArray[np.generic]]:
    """The arrays, as read-only views.

    Raises:
        UpdateRefused: the layout is none, or the content has another length.
    """
    places, length = _places(packed.layout)
    if len(packed.content) != length:
        raise UpdateRefused(f"arrays have {len(packed.content)} bytes; their layout needs {length}.", reason="shape")
    return {
        name: np.frombuffer(packed.content, dtype, count, start).reshape(shape)
        for name, dtype, shape, count, start in places
    }


@lru_cache(maxsize=64)
def _layout(signature: tuple[tuple[str, np.dtype[np.generic], tuple[int, ...]], ...]) -> str:
    return json.dumps([[name, _PACKED[dtype], shape] for name, dtype, shape in signature], separators=(",", ":"))


@lru_cache(maxsize=64)
def _places(layout: str) -> tuple[tuple[tuple[str, np.dtype[np.generic], tuple[int, ...], int, int], ...], int]:
    """Name, dtype, shape, number of values and first byte of each array, and the length of all."""
    try:
        entries = _LAYOUT.validate_json(layout)
    except ValidationError as error:
        raise UpdateRefused("arrays have no readable layout.", reason="format") from error
    if len({name for name, _, _ in entries}) != len(entries):
        raise UpdateRefused("two arrays have one name.", reason="names")
    places, start = [], 0
    for name, dtype_name, shape in entries:
        dtype, count = _DTYPES[dtype_name], math.prod(shape)
        if math.prod(max(side, 1) for side in shape) > _MOST_VALUES:
            raise UpdateRefused(f"array {name} has shape {shape}.", reason="shape")
        places.append((name, dtype, shape, count, start))
        start += count * dtype.itemsize
        start += -start % _ALIGNED
    return tuple(places), start


def arrays_to_bytes(arrays: NamedArrays) -> bytes:
    """Safetensors bytes. Their order of names is the library's own; pass the order beside where it matters."""
    return bytes(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))


def arrays_from_bytes(content: bytes, names: tuple[str, ...] | None = None) -> dict[str, NDArray[np.generic]]:
    """Reads safetensors bytes, in the order of ``names`` when given.

    Raises:
        StorageError: the bytes are not safetensors, or a name is absent.
    """
    try:
        arrays = load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise StorageError(f"not a safetensors file: {error}.") from error
    if names is None:
        return dict(arrays)
    absent = [name for name in names if name not in arrays]
    if absent:
        raise StorageError(f"arrays are absent: {', '.join(absent)}.")
    return {name: arrays[name] for name in names}


@dataclass(frozen=True)
class ArraySpec:
    """Names, shapes and dtypes that arrays must have, in order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, arrays: NamedArrays) -> Self:
        """The spec that exactly these arrays meet."""
        return cls(
            tuple(arrays),
            tuple(array.shape for array in arrays.values()),
            tuple(array.dtype.name for array in arrays.values()),
        )

    @property
    def size(self) -> int:
        """Number of values in all arrays together."""
        return sum(int(np.prod(shape)) for shape in self.shapes)

    def check_layout(self, arrays: NamedArrays) -> None:
        """Refuses arrays with other names, another order, other shapes or dtypes.

        Raises:
            UpdateRefused: names the first array that does not fit.
        """
        if tuple(arrays) != self.names:
            raise UpdateRefused(
                f"arrays are named {', '.join(arrays) or 'nothing'}; expected {', '.join(self.names)}.",
                reason="names",
            )
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            array = arrays[name]
            if array.shape != shape:
                raise UpdateRefused(f"array {name} has shape {array.shape}; expected {shape}.", reason="shape")
            if array.dtype != np.dtype(dtype):
                raise UpdateRefused(f"array {name} has dtype {array.dtype}; expected {dtype}.", reason="dtype")

    def check(self, arrays: NamedArrays) -> None:
        """Like ``check_layout``, and refuses values that are not finite.

        Raises:
            UpdateRefused: names the first array that does not fit.
        """
        self.check_layout(arrays)
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise UpdateRefused(f"array {name} holds values that are not finite.", reason="not-finite")
