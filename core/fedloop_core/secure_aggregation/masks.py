"""Masks: the keystream of ChaCha20 (RFC 8439) read as little-endian uint64 and added modulo 2^64.

Every value of a mask is uniform over all of them, and so is what it is added to. The stream is made and added in pieces, so
that a mask needs no memory of the vector's size.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

__all__ = ["MaskStream"]

_PIECE = 2**20  # bytes
_NONCE = bytes(16)  # counter and nonce; each key makes one stream


class MaskStream:
    """Adds and removes masks; holds two buffers of 1 MiB."""

    def __init__(self) -> None:
        self._zeros = bytes(_PIECE)
        self._stream = bytearray(_PIECE)
        self._words = np.frombuffer(self._stream, dtype="<u8")

    def apply(self, key: bytes, into: NDArray[np.uint64], *, add: bool) -> None:
        """Adds the mask of a key to a flat vector, or takes it away."""
        cipher = Cipher(ChaCha20(key, _NONCE), None).encryptor()
        fold = np.add if add else np.subtract
        for start in range(0, into.size, self._words.size):
            part = into[start : start + self._words.size]
            cipher.update_into(memoryview(self._zeros)[: part.nbytes], self._stream)
            fold(part, self._words[: part.size], out=part)
