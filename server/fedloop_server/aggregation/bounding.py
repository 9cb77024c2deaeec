"""Norm bounding (Sun 2019, arXiv 1911.07963): a long update is scaled down to a bound that earlier rounds give.

The bound follows from what the journal says of rounds that have closed, so it depends neither on the order of answers nor on
the round's own updates. It is a multiple of the median of norms as they were folded: as long as fewer than half of these are of
lying sites, the median lies between norms of honest ones, whatever the others send; and even a majority can raise it by no more
than the multiple each time that its updates have filled half of the rounds looked at.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedloop_core.arrays import NamedArrays

__all__ = ["RECENT_ROUNDS", "bound_from", "shortened"]

RECENT_ROUNDS = 5
_LEAST_SITES = 3  # of two, either may be the liar


def bound_from(recent: Sequence[Mapping[str, float]], factor: float) -> float | None:
    """The greatest norm of an update in the next round; None when there is no bound.

    Args:
        recent: of each of the last rounds, the norms of its updates as they were folded, by site.
        factor: how many times the median; inf: no bound.
    """
    norms = [norm for of_round in recent[-RECENT_ROUNDS:] for norm in of_round.values()]
    sites = {site for of_round in recent[-RECENT_ROUNDS:] for site in of_round}
    if math.isinf(factor) or len(sites) < _LEAST_SITES:
        return None
    bound = factor * statistics.median(norms)
    return bound if bound > 0 else None  # where most updates are 0, no length is too long


def shortened(arrays: NamedArrays, length: float, bound: float) -> dict[str, NDArray[np.generic]]:
    """The arrays, whose L2 norm is ``length``, scaled to the norm ``bound``; whole numbers towards 0, to whole ones."""
    return {name: _scaled(array, bound / length) for name, array in arrays.items()}


def _scaled(array: NDArray[np.generic], factor: float) -> NDArray[np.generic]:
    if np.issubdtype(array.dtype, np.floating):
        return np.asarray(np.multiply(array, array.dtype.type(factor)))
    return np.trunc(array.astype(np.float64) * factor).astype(array.dtype)
