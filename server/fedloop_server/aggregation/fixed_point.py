"""A weighted sum in int64 fixed point: the same bits whatever the order of replies, and no memory for them.

Addition of integers is associative, addition of floats is not: five vectors of a million values summed in different
orders differ in half of the float32 sums and in none of these. Secure aggregation sums the same integers.

With ``largest_value`` M and ``total_weight`` W, values are scaled by ``2**fraction_bits`` where ``fraction_bits`` is the
greatest integer with ``M * W * 2**fraction_bits <= 2**62``; no sum of replies within the agreed weights can overflow. Each
value is rounded once, so a weighted mean is off by at most ``2**-(fraction_bits + 1)``, besides the rounding of float64.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedloop_core.arrays import ArraySpec, NamedArrays
from fedloop_core.errors import UpdateRefused

__all__ = ["FixedPointSum"]

_SUM_BITS = 62  # one bit for the sign, one of reserve for the rounding of each term


class FixedPointSum:
    """Adds replies as they arrive; holds one int64 for each value of the model and nothing else."""

    def __init__(self, spec: ArraySpec, *, largest_value: float, total_weight: int) -> None:
        if not (math.isfinite(largest_value) and largest_value > 0) or total_weight < 1:
            raise ValueError(f"largest_value {largest_value} and total_weight {total_weight} must be positive")
        self.spec = spec
        self._largest_value = largest_value
        self._total_weight = total_weight
        self.fraction_bits = _SUM_BITS - math.ceil(math.log2(largest_value * total_weight))
        self._scale = math.ldexp(1.0, self.fraction_bits)
        self._sums = [np.zeros(shape, dtype=np.int64) for shape in spec.shapes]
        self.weight = 0

    @property
    def rounding_error(self) -> float:
        """Largest error of a value of ``mean``, besides the rounding of float64 itself."""
        return math.ldexp(1.0, -(self.fraction_bits + 1))

    def add(self, arrays: NamedArrays, weight: int = 1) -> None:
        """Folds one reply; a refused reply changes nothing.

        Raises:
            UpdateRefused: names, shapes, dtypes or values do not fit, or the weight exceeds what was agreed.
        """
        self.spec.check_layout(arrays)
        if weight < 1 or self.weight + weight > self._total_weight:
            raise UpdateRefused(
                f"weight {weight} does not fit: {self._total_weight - self.weight} of the agreed weight is left.",
                reason="weight",
            )
        for name, array in arrays.items():
            largest = float(np.abs(array).max(initial=0.0))  # NaN if any value is
            if not largest <= self._largest_value:
                reason = "range" if math.isfinite(largest) else "not-finite"
                raise UpdateRefused(f"array {name} holds {largest:g}, beyond {self._largest_value:g}.", reason=reason)
        for total, array in zip(self._sums, arrays.values(), strict=True):
            scaled = array.astype(np.float64)
            scaled *= self._scale
            whole = np.rint(scaled, out=scaled).astype(np.int64)
            if weight != 1:
                whole *= weight
            total += whole
        self.weight += weight

    def sum(self) -> dict[str, NDArray[np.float64]]:
        """The weighted sums, float64."""
        return {
            name: np.ldexp(total.astype(np.float64), -self.fraction_bits)
            for name, total in zip(self.spec.names, self._sums, strict=True)
        }

    def mean(self) -> dict[str, NDArray[np.float64]]:
        """The weighted means, float64.

        Raises:
            UpdateRefused: nothing was folded.
        """
        if self.weight == 0:
            raise UpdateRefused("no reply was folded: there is no mean.", reason="empty")
        return {name: total / self.weight for name, total in self.sum().items()}
