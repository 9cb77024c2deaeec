"""A weighted sum in int64 fixed point: the same bits whatever the order of replies, and no memory for them.

Addition of integers is associative, addition of floats is not: five vectors of a million values summed in different
orders differ in half of the float32 sums and in none of these. Secure aggregation sums the same integers.
``fedloop_core.fixed_point`` says how values are scaled and rounded. A weighted mean is off by at most
``2**-(fraction_bits + 1)``, besides the rounding of float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedloop_core.arrays import ArraySpec, NamedArrays
from fedloop_core.errors import UpdateRefused
from fedloop_core.fixed_point import FixedPoint

__all__ = ["FixedPointSum"]

_CHUNK = 1 << 15  # values that are moved at once: the buffer stays in the processor's cache


class FixedPointSum:
    """Adds replies as they arrive; holds one int64 for each value of the model and a small buffer.

    Args:
        spec: of every reply.
        largest_value: no value is farther from 0.
        total_weight: of all replies together.
        least_bits: fraction bits that the values need; with 0, whole numbers are still exact.

    Raises:
        RunError: fewer are left.
        ValueError: a bound is not positive.
    """

    def __init__(self, spec: ArraySpec, *, largest_value: float, total_weight: int, least_bits: int = 0) -> None:
        self.spec = spec
        self._point = FixedPoint(
            spec.dtypes, largest_value=largest_value, total_weight=total_weight, least_bits=least_bits
        )
        self.fraction_bits = self._point.fraction_bits
        self._sums = [np.zeros(math.prod(shape), dtype=np.int64) for shape in spec.shapes]
        self.weight = 0

    @property
    def rounding_error(self) -> float:
        """Largest error of a value of ``mean``, besides the rounding of float64 itself."""
        return math.ldexp(1.0, -(self.fraction_bits + 1))

    def add(self, arrays: NamedArrays, weight: int = 1, *, norm: float | None = None) -> None:
        """Folds one reply; a refused reply changes nothing.

        ``norm`` is the arrays' L2 norm where the caller has computed it: values are not looked at again when it bounds them.

        Raises:
            UpdateRefused: names, shapes, dtypes or values do not fit, or the weight exceeds what was agreed.
        """
        self.spec.check_layout(arrays)
        self._check_weight(weight)
        if norm is None or not norm <= self._point.largest_value:
            self._point.check_range(arrays)
        for total, array in zip(self._sums, arrays.values(), strict=True):
            self._point.add(array, weight, total)
        self.weight += weight

    def add_whole(self, whole: NDArray[np.int64], weight: int) -> None:
        """Folds a sum of replies that were made whole elsewhere, flat and in the order of ``spec``; a refused one changes nothing.

        Args:
            whole: as ``FixedPoint.add`` writes it. [values]
            weight: of all those replies together.

        Raises:
            UpdateRefused: it has another length, a value that no replies of this weight can give, or more weight than agreed.
        """
        if whole.shape != (self.spec.size,) or whole.dtype != np.int64:
            raise UpdateRefused(
                f"a sum has {whole.shape} values of {whole.dtype}; {self.spec.size} are expected.", reason="shape"
            )
        self._check_weight(weight)
        largest = self._point.largest_whole * weight
        if whole.size and (int(whole.max()) > largest or int(whole.min()) < -largest):
            raise UpdateRefused(f"a sum of weight {weight} holds a value that no replies can give.", reason="range")
        start = 0
        for total in self._sums:
            np.add(total, whole[start : start + total.size], out=total)
            start += total.size
        self.weight += weight

    def sum(self) -> dict[str, NDArray[np.float64]]:
        """The weighted sums, float64."""
        return {
            name: np.ldexp(total.astype(np.float64), -self.fraction_bits).reshape(shape)
            for name, shape, total in zip(self.spec.names, self.spec.shapes, self._sums, strict=True)
        }

    def mean(self) -> dict[str, NDArray[np.float64]]:
        """The weighted means, float64.

        Raises:
            UpdateRefused: nothing was folded.
        """
        self._require_weight()
        return {name: total / self.weight for name, total in self.sum().items()}

    def moved(
        self, model: NamedArrays, rate: float, noise: Callable[[int], NDArray[np.float64]] | None = None
    ) -> dict[str, NDArray[np.generic]]:
        """``model + rate * mean`` in float64, rounded to the model's dtypes. ``noise`` gives so many values to add to those of the sum.

        Each sum is let go when it was used, so that model and sums are never there twice; nothing can be asked afterwards.

        Raises:
            UpdateRefused: nothing was folded.
            ValueError: the model has other names or shapes, or the sums were let go.
        """
        self._require_weight()
        if tuple(model) != self.spec.names or len(self._sums) != len(self.spec.names):
            raise ValueError("the sums are of another model, or were let go")
        moved: dict[str, NDArray[np.generic]] = {}
        self._sums.reverse()
        buffer = np.empty(_CHUNK, dtype=np.float64)
        for name, array in model.items():
            moved[name] = self._moved(array, self._sums.pop(), rate, buffer, noise)
        return moved

    def _moved(
        self,
        array: NDArray[np.generic],
        total: NDArray[np.int64],
        rate: float,
        buffer: NDArray[np.float64],
        noise: Callable[[int], NDArray[np.float64]] | None,
    ) -> NDArray[np.generic]:
        values = np.ascontiguousarray(array).reshape(-1)
        result = np.empty_like(values)
        for start in range(0, values.size, _CHUNK):
            part = values[start : start + _CHUNK]
            scaled = buffer[: part.size]
            np.copyto(scaled, total[start : start + _CHUNK], casting="same_kind")
            np.ldexp(scaled, -self.fraction_bits, out=scaled)
            if noise is not None:
                np.add(scaled, noise(part.size), out=scaled)
            np.divide(scaled, self.weight, out=scaled)
            np.multiply(scaled, rate, out=scaled)
            np.add(scaled, part, out=scaled)
            np.copyto(result[start : start + _CHUNK], scaled, casting="unsafe")
        return result.reshape(array.shape)

    def _check_weight(self, weight: int) -> None:
        left = self._point.total_weight - self.weight
        if weight < 1 or weight > left:
            raise UpdateRefused(f"weight {weight} does not fit: {left} of the agreed weight is left.", reason="weight")

    def _require_weight(self) -> None:
        if self.weight == 0:
            raise UpdateRefused("no reply was folded: there is no mean.", reason="empty")
