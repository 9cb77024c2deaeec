"""Where randomness for privacy comes from.

The bits are blocks of AES-128 over a counter (FIPS 197, SP 800-38A) from the ``randomgen`` library; numpy turns them into
normal deviates. ``SystemNoise`` keys it from the operating system's random source. ``SeededNoise`` keys it from a seed: whoever knows the seed can take the noise off again, so it proves nothing and exists for rehearsals alone;
the site daemon cannot be given one outside the simulation.
"""

from __future__ import annotations

import hashlib
import secrets
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray
from randomgen import AESCounter

__all__ = ["NoiseSource", "SeededNoise", "SystemNoise"]


_KEY_BYTES = 16


class NoiseSource(ABC):
    """Randomness for noise and sampling. ``private`` says whether it can guard anything."""

    private: bool

    def __init__(self) -> None:
        self._generator = self._make_generator()

    @abstractmethod
    def _make_generator(self) -> np.random.Generator:
        """A generator over a cryptographic stream."""

    @abstractmethod
    def derive(self, purpose: str) -> NoiseSource:
        """An independent source for one purpose, so that one consumer's draws never move another's."""

    @abstractmethod
    def seed_for(self, purpose: str) -> int:
        """A seed of 63 bits for what needs no secrecy, such as the order of rows in training without privacy."""

    def normal(self, shape: tuple[int, ...], deviation: float) -> NDArray[np.float64]:
        """Gaussian noise, each value half the sum of four deviates.

        Attacks on the low bits of one floating-point deviate (Mironov 2012) then need four preimages at once (Holohan
        and Braghin, arXiv 2107.10138, section 5.1).
        """
        total: NDArray[np.float64] = self._generator.standard_normal((4, *shape)).sum(axis=0)
        return total * (deviation / 2.0)

    def discrete_laplace(self, scale: float, size: int) -> NDArray[np.int64]:
        """Whole numbers with probability proportional to ``exp(-|value| / scale)``: a difference of two geometrics.

        For rehearsals, where noise must repeat; what is released for good is drawn by OpenDP.
        """
        success = -np.expm1(-1.0 / scale)
        draws: NDArray[np.int64] = self._generator.geometric(success, (2, size)).astype(np.int64)
        noise: NDArray[np.int64] = draws[0] - draws[1]
        return noise

    def poisson_sample(self, population: int, rate: float) -> NDArray[np.int64]:
        """Each index below ``population`` independently with probability ``rate``."""
        return np.flatnonzero(self._generator.random(population) < rate).astype(np.int64)

    def permutation(self, population: int) -> NDArray[np.int64]:
        """A uniformly random order."""
        return self._generator.permutation(population).astype(np.int64)

    def uniform(self) -> float:
        """One number in [0, 1)."""
        return float(self._generator.random())


class SystemNoise(NoiseSource):
    """Keyed from the operating system's random source; no two objects share a key."""

    private = True

    def _make_generator(self) -> np.random.Generator:
        return _keyed(secrets.token_bytes(_KEY_BYTES))

    def derive(self, purpose: str) -> NoiseSource:  # noqa: ARG002  independent whatever the purpose
        """Another source with a key of its own."""
        return SystemNoise()

    def seed_for(self, purpose: str) -> int:  # noqa: ARG002  independent whatever the purpose
        """A fresh seed each time."""
        return secrets.randbits(63)


class SeededNoise(NoiseSource):
    """Keyed from a seed and a purpose: the same twice, and no protection."""

    private = False

    def __init__(self, seed: int, purpose: str = "") -> None:
        self._seed = seed
        self._purpose = purpose
        super().__init__()

    def _make_generator(self) -> np.random.Generator:
        key = hashlib.sha256(f"fedloop noise {self._seed} {self._purpose}".encode()).digest()
        return _keyed(key[:_KEY_BYTES])

    def derive(self, purpose: str) -> NoiseSource:
        """The source of this seed for one purpose."""
        return SeededNoise(self._seed, f"{self._purpose}/{purpose}")

    def seed_for(self, purpose: str) -> int:
        """The seed of this source for one purpose."""
        name = f"fedloop seed {self._seed} {self._purpose}/{purpose}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1


def _keyed(key: bytes) -> np.random.Generator:
    return np.random.Generator(AESCounter(key=int.from_bytes(key, "little")))
