"""A weighted sum in int64 fixed point: the same bits whatever the order of replies, and no memory for them.

Addition of integers is associative, addition of floats is not: five vectors of a million values summed in different
orders differ in half of the float32 sums and in none of these. Secure aggregation sums the same integers.

With ``largest_value`` M and ``total_weight`` W, values are scaled by ``2**fraction_bits`` where ``fraction_bits`` is the
greatest integer with ``M * W * 2**fraction_bits <= 2**62``, so that no sum of replies within the agreed weights can overflow. Where
all values are float32 it also keeps ``M * 2**fraction_bits <= 2**50``, so that one addition of floats makes a value whole, in a third
of the time. Each value is rounded once, so a weighted mean is off by at most ``2**-(fraction_bits + 1)``, besides the rounding of
float64. Bounds so wide that fewer fraction bits are left than whoever sums asks for are refused: honest values would be rounded to 0.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from numpy.typing import NDArray

from fedloop_core.arrays import ArraySpec, NamedArrays
from fedloop_core.errors import RunError, UpdateRefused

__all__ = ["FixedPointSum"]

_SUM_BITS = 62  # one bit for the sign, one of reserve for the rounding of each term
_SHORT_BITS = 50  # of float32, which has 24
# From 2**52 to 2**53 floats are whole numbers, which their last bits spell out. Added to this one, a value of at most 50 bits is
# rounded to the nearest whole number, as numpy's rint does, and the bits of the sum are those of this one plus that number.
_WHOLE = 1.5 * 2.0**52
_WHOLE_BITS = int(np.float64(_WHOLE).view(np.int64))
_CHUNK = 1 << 15  # values that are converted at once: the buffer stays in the processor's cache


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
        if not (math.isfinite(largest_value) and largest_value > 0) or total_weight < 1:
            raise ValueError(f"largest_value {largest_value} and total_weight {total_weight} must be positive")
        self.spec = spec
        self._largest_value = largest_value
        self._total_weight = total_weight
        self._short = set(spec.dtypes) == {"float32"}
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
        self._sums = [np.zeros(math.prod(shape), dtype=np.int64) for shape in spec.shapes]
        self._scaled = np.empty(_CHUNK, dtype=np.float64)
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
        if weight < 1 or self.weight + weight > self._total_weight:
            raise UpdateRefused(
                f"weight {weight} does not fit: {self._total_weight - self.weight} of the agreed weight is left.",
                reason="weight",
            )
        if norm is None or not norm <= self._largest_value:
            for name, array in arrays.items():
                self._check_range(name, array)
        for total, array in zip(self._sums, arrays.values(), strict=True):
            values = np.ascontiguousarray(array).reshape(-1)
            for start in range(0, values.size, _CHUNK):
                part = values[start : start + _CHUNK]
                whole = self._whole(part)
                if weight != 1:
                    np.multiply(whole, weight, out=whole)
                into = total[start : start + _CHUNK]
                np.add(into, whole, out=into)
        self.weight += weight

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

    def moved(self, model: NamedArrays, rate: float) -> dict[str, NDArray[np.generic]]:
        """``model + rate * mean`` in float64, rounded to the model's dtypes.

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
        for name, array in model.items():
            moved[name] = self._moved(array, self._sums.pop(), rate)
        return moved

    def _moved(self, array: NDArray[np.generic], total: NDArray[np.int64], rate: float) -> NDArray[np.generic]:
        values = np.ascontiguousarray(array).reshape(-1)
        result = np.empty_like(values)
        for start in range(0, values.size, _CHUNK):
            part = values[start : start + _CHUNK]
            scaled = self._scaled[: part.size]
            np.copyto(scaled, total[start : start + _CHUNK], casting="same_kind")
            np.ldexp(scaled, -self.fraction_bits, out=scaled)
            np.divide(scaled, self.weight, out=scaled)
            np.multiply(scaled, rate, out=scaled)
            np.add(scaled, part, out=scaled)
            np.copyto(result[start : start + _CHUNK], scaled, casting="unsafe")
        return result.reshape(array.shape)

    def _check_range(self, name: str, array: NDArray[np.generic]) -> None:
        if array.size == 0:
            return
        low, high = float(np.min(array)), float(np.max(array))  # NaN if any value is
        if not (high <= self._largest_value and low >= -self._largest_value):
            largest = high if math.isnan(high) else max(high, -low)
            reason = "range" if math.isfinite(largest) else "not-finite"
            raise UpdateRefused(f"array {name} holds {largest:g}, beyond {self._largest_value:g}.", reason=reason)

    def _require_weight(self) -> None:
        if self.weight == 0:
            raise UpdateRefused("no reply was folded: there is no mean.", reason="empty")
