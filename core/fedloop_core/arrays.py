"""Named arrays: weights, updates and sums as they are signed, stored and sent.

Order matters: it is the model's own order of parameters, and a reply in another order is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedloop_core.errors import StorageError, UpdateRefused

__all__ = ["ArraySpec", "NamedArrays", "arrays_from_bytes", "arrays_to_bytes", "digest"]

NamedArrays = Mapping[str, NDArray[np.generic]]


def digest(arrays: NamedArrays) -> bytes:
    """SHA-256 over names, dtypes, shapes and little-endian bytes, in order; the digest of no arrays is fixed too."""
    state = hashlib.sha256()
    for name, array in arrays.items():
        header = f"{name}\0{array.dtype.str}\0{array.shape}\0"
        state.update(header.encode())
        state.update(np.ascontiguousarray(array).data)
    return state.digest()


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
