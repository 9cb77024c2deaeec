"""How values become whole numbers: the int64 fixed point that sums are made in, with secure aggregation and without.

With ``largest_value`` M and ``total_weight`` W, values are scaled by ``2**fraction_bits`` where ``fraction_bits`` is the
greatest integer with ``M * W * 2**fraction_bits <= 2**62``, so that no sum of replies within the agreed weights can overflow. Where
all values are float32 it also keeps ``M * 2**fraction_bits <= 2**50``, so that one addition of floats makes a value whole, in a third
of the time. Each value is rounded once, half to even. Bounds so wide that fewer fraction bits are left than whoever sums asks
for are refused: honest values would be rounded to 0.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from numpy.typing import NDArray

from fedloop_core.arrays import NamedArrays
from fedloop_core.errors import RunError, UpdateRefused

__all__ = ["FixedPoint"]

_SUM_BITS = 62  # one bit for the sign, one of reserve for the rounding of each term
_SHORT_BITS = 50  # of float32, which has 24
# From 2**52 to 2**53 floats are whole numbers, which their last bits spell out. Added to this one, a value of at most 50 bits is
# rounded to the nearest whole number, as numpy's rint does, and the bits of the sum are those of this one plus that number.
_WHOLE = 1.5 * 2.0**52
_WHOLE_BITS = int(np.float64(_WHOLE).view(np.int64))
_CHUNK = 1 << 15  # values that are converted at once: the buffer stays in the processor's cache


class FixedPoint:
    """Scale and rounding of one sum; holds a small buffer besides.

    Args:
        dtypes: of all arrays that are summed.
        largest_value: no value is farther from 0.
        total_weight: of all replies together.
        least_bits: fraction bits that the values need; with 0, whole numbers are still exact.

    Raises:
        RunError: fewer are left.
        ValueError: a bound is not positive.
    """

    def __init__(
        self, dtypes: tuple[str, ...], *, largest_value: float, total_weight: int, least_bits: int = 0
    ) -> None:
        if not (math.isfinite(largest_value) and largest_value > 0) or total_weight < 1:
            raise ValueError(f"largest_value {largest_value} and total_weight {total_weight} must be positive")
        self.largest_value = largest_value
        self.total_weight = total_weight
        self._short = set(dtypes) == {"float32"}
        largest_sum = min(largest_value * total_weight, sys.float_info.max)
        self.fraction_bits = _SUM_BITS - math.ceil(math.log2(largest_sum))
        if self._short:
            self.fraction_bits = min(self.fraction_bits, _SHORT_BITS - math.ceil(math.log2(largest_value)))
        if self.fraction_bits < least_bits:
            raise RunError(
                f"values of up to {largest_value:g} under a total weight of {total_weight} can be summed in steps of "
                f"2^{-self.fraction_bits} only; 2^{-least_bits} is needed.",
                hint="Lower gates.update.maximum_norm, gates.data.maximum_rows or the ranges of features, or weigh sites equally.",
            )
        self._scale = math.ldexp(1.0, self.fraction_bits)
        self._scaled = np.empty(_CHUNK, dtype=np.float64)

    @property
    def largest_whole(self) -> int:
        """No value becomes a whole number farther from 0 than this."""
        return math.ceil(self.largest_value * self._scale)

    def check_range(self, arrays: NamedArrays) -> None:
        """Refuses values that are not finite or beyond ``largest_value``.

        Raises:
            UpdateRefused: names the first array that holds one.
        """
        for name, array in arrays.items():
            if array.size == 0:
                continue
            low, high = float(np.min(array)), float(np.max(array))  # NaN if any value is
            if not (high <= self.largest_value and low >= -self.largest_value):
                largest = high if math.isnan(high) else max(high, -low)
                reason = "range" if math.isfinite(largest) else "not-finite"
                raise UpdateRefused(f"array {name} holds {largest:g}, beyond {self.largest_value:g}.", reason=reason)

    def add(self, array: NDArray[np.generic], weight: int, into: NDArray[np.int64]) -> None:
        """Adds ``weight`` times each value, rounded, to ``into``, which is flat and of the array's size."""
        values = np.ascontiguousarray(array).reshape(-1)
        for start in range(0, values.size, _CHUNK):
            whole = self._whole(values[start : start + _CHUNK])
            if weight != 1:
                np.multiply(whole, weight, out=whole)
            part = into[start : start + _CHUNK]
            np.add(part, whole, out=part)

    def _whole(self, part: NDArray[np.generic]) -> NDArray[np.int64]:
        """The scaled values, rounded to whole numbers, half to even; holds until the next call."""
        scaled = self._scaled[: part.size]
        np.multiply(part, self._scale, out=scaled, dtype=np.float64)
        whole = scaled.view(np.int64)
        if self._short:
            np.add(scaled, _WHOLE, out=scaled)
            np.subtract(whole, _WHOLE_BITS, out=whole)
        else:
            np.copyto(whole, np.rint(scaled), casting="unsafe")
        return whole
