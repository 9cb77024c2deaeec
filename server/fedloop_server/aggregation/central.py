"""The mean of a round under differential privacy of whole sites: clipped as it comes, noised as a sum, divided by what came.

A site's update, clipped to C and with weight w, moves the sum by at most ``w * C``; noise with deviation ``z * w * C`` lies on the sum, w being
the greatest weight that a site may have. So it does not matter how many answer: noise and accounting stay as planned, and the mean
carries more of the noise. Clipping looks at one update alone and the sum is in whole numbers, so the order of arrival changes no bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedloop_core.arrays import ArraySpec, NamedArrays
from fedloop_core.central_privacy import CentralPlan
from fedloop_core.errors import UpdateRefused
from fedloop_core.noise import NoiseSource
from fedloop_core.task.central import AdaptiveClipping
from fedloop_core.update_gate import norm as norm_of
from fedloop_server.aggregation.bounding import shortened
from fedloop_server.aggregation.fixed_point import FixedPointSum

__all__ = ["CentralAveraging", "ClippedSum", "Noised", "clipped", "next_norm"]

_LEAST_BITS = 16
_LEAST_ROOM = 2.0**-40
_LEAST_SHARE = 1e-9  # an adapted norm is no lower, as a share of the norm that the update gate lets through


@dataclass(frozen=True)
class Noised:
    """What was done to a round's sum: the clip, the deviation of its noise, and the clip of the next round."""

    clipping_norm: float
    deviation: float
    next_clipping_norm: float


class CentralAveraging:
    """Like ``Averaging``, with each update clipped to ``clipping_norm`` and noise on the sum.

    ``noise`` is drawn from once for each round that is begun; ``most`` is the norm that the update gate lets through.
    """

    def __init__(
        self,
        plan: CentralPlan,
        noise: NoiseSource,
        *,
        rate: float,
        clipping_norm: float,
        most: float,
        adaptive: AdaptiveClipping | None = None,
        greatest_weight: int = 1,
    ) -> None:
        self.plan = plan
        self.noise = noise
        self.rate = rate
        self.clipping_norm = clipping_norm
        self.most = most
        self.adaptive = adaptive
        self.greatest_weight = greatest_weight

    def begin(self, model: NamedArrays, total_weight: int) -> ClippedSum:
        """Begins with empty sums.

        Raises:
            RunError: weights and norm leave steps above 1.5e-5.
        """
        return ClippedSum(self, ArraySpec.of(model), total_weight)


class ClippedSum:
    """Clips and adds updates, and moves a model by their noised mean once."""

    def __init__(self, by: CentralAveraging, spec: ArraySpec, total_weight: int) -> None:
        self._by = by
        self.clip = by.clipping_norm
        self.noised: Noised | None = None
        self._sums = FixedPointSum(
            spec, largest_value=by.clipping_norm, total_weight=total_weight, least_bits=_LEAST_BITS
        )
        self._weights: list[int] = []
        self._unclipped = 0

    @property
    def spec(self) -> ArraySpec:
        """Of every update."""
        return self._sums.spec

    @property
    def sensitivity(self) -> float:
        """By how much one site's update can move the sum (L2): its clip, and what rounding to whole numbers adds, times its weight."""
        rounding = self._sums.rounding_error * math.sqrt(self.spec.size)
        return self._by.greatest_weight * (self.clip + rounding)

    def sum(self) -> dict[str, NDArray[np.float64]]:
        """The sum without noise, which must not be told."""
        return self._sums.sum()

    def add(self, arrays: NamedArrays, weight: int = 1, *, norm: float | None = None) -> None:
        """Clips and adds one update; a refused one changes nothing.

        Raises:
            UpdateRefused: arrays or weight do not fit, values are not finite, or the weight is above the greatest.
        """
        if weight > self._by.greatest_weight:
            raise UpdateRefused(
                f"weight {weight} is above {self._by.greatest_weight}, for which the noise is.", reason="weight"
            )
        self.spec.check_layout(arrays)
        length = norm_of(arrays) if norm is None else norm
        if not math.isfinite(length):
            raise UpdateRefused("the update holds values that are not finite.", reason="not-finite")
        self._sums.add(clipped(arrays, length, self.clip), weight, norm=min(length, self.clip))
        self._weights.append(weight)
        self._unclipped += length <= self.clip

    def add_whole(self, whole: NDArray[np.int64], weights: Sequence[int]) -> None:
        """Refuses: what was summed elsewhere was not clipped here.

        Raises:
            UpdateRefused: always.
        """
        raise UpdateRefused(
            f"a sum of {len(weights)} updates with {whole.size} values was not clipped here.", reason="rule"
        )

    def move(self, model: NamedArrays) -> tuple[dict[str, NDArray[np.generic]], tuple[float, ...]]:
        """``model + rate * (sum + noise) / weight``, and the share of each update in the sum, in the order in which they were added.

        Raises:
            UpdateRefused: no update came.
            ValueError: it was moved before.
        """
        if self.noised is not None:
            raise ValueError("noise was drawn for this round already")
        deviation = self._by.plan.updates * self.sensitivity
        noise = self._by.noise.derive("updates")
        moved = self._sums.moved(model, self._by.rate, lambda size: noise.normal((size,), deviation))
        self.noised = Noised(self.clip, deviation, self._next())
        total = sum(self._weights)
        return moved, tuple(weight / total for weight in self._weights)

    def _next(self) -> float:
        adaptive, count_noise = self._by.adaptive, self._by.plan.count_noise
        if adaptive is None or count_noise is None:
            return self.clip
        noise = float(self._by.noise.derive("unclipped updates").normal((1,), count_noise)[0])
        share = (self._unclipped + noise) / len(self._weights)
        least = self._by.most * _LEAST_SHARE
        return min(max(next_norm(self.clip, share, adaptive), least), self._by.most)


def clipped(arrays: NamedArrays, length: float, norm: float) -> NamedArrays:
    """The arrays, whose L2 norm is ``length``, scaled down to a norm of at most ``norm``, also after rounding to their dtypes."""
    room, target = _room(arrays), norm
    while length > norm:
        arrays = shortened(arrays, length, target)
        length = norm_of(arrays)
        target *= 1 - room
    return arrays


def next_norm(norm: float, unclipped: float, adaptive: AdaptiveClipping) -> float:
    """The clip of the next round: ``norm * exp(-rate * (unclipped - quantile))`` (arXiv 1905.03871, algorithm 1).

    ``unclipped`` is the noised share of updates that were no longer than ``norm``; taken between 0 and 1.
    """
    share = min(max(unclipped, 0.0), 1.0)
    return norm * math.exp(-adaptive.rate * (share - adaptive.quantile))


def _room(arrays: NamedArrays) -> float:
    """A few steps of the coarsest dtype."""
    kinds = {np.dtype(array.dtype).name for array in arrays.values() if np.issubdtype(array.dtype, np.floating)}
    return 4 * max([_LEAST_ROOM, *(float(np.finfo(kind).eps) for kind in kinds)])
