"""Rules that compare whole updates by their distances: Krum and its choices, and the geometric median.

Both need the squared distances between all pairs and nothing else of the updates, so these are found once, in float64 and by
differences: a distance between two near updates is exact however far from 0 both lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedloop_server.aggregation.pieces import Matrix, pieces

__all__ = ["geometric_median", "krum_order", "squared_distances"]

_SMOOTHING = 1e-6  # of how far most updates lie apart: the nu of RFA, as a share so that their unit does not matter
_NEAREST = 1e-300  # where half of them are one and the same
_MOST_STEPS = 2000  # of Weiszfeld; each costs n * n
_STILL = 1e-12  # relative change of every share at which it stands still: a liar may have one of 1e-30


def squared_distances(updates: Sequence[NDArray[np.floating]]) -> Matrix:
    """Squared Euclidean distances between all pairs: float64 ``[n, n]``."""
    count = len(updates)
    total = np.zeros((count, count))
    for part in pieces(updates, np.float64):
        for row in range(count - 1):
            difference = part[row + 1 :] - part[row]
            total[row, row + 1 :] += np.einsum("ij,ij->i", difference, difference)
    return total + total.T


def krum_order(distances: Matrix, faulty: int, wanted: int, *, again: bool) -> list[int]:
    """The first ``wanted`` updates as Krum ranks them; of equals, the first given (arXiv 1703.02757).

    The score of an update is the sum of squared distances to its n - f - 2 nearest. With ``again`` each choice is taken out and
    the others are ranked anew, as Bulyan does; when too few are left for so many neighbours, the nearest alone counts.
    """
    left = list(range(len(distances)))
    chosen: list[int] = []
    while len(chosen) < wanted:
        scores = _scores(distances[np.ix_(left, left)], faulty)
        if not again:
            return [left[place] for place in np.argsort(scores, kind="stable")[:wanted]]
        chosen.append(left.pop(int(np.argmin(scores))))
    return chosen


def _scores(distances: Matrix, faulty: int) -> NDArray[np.float64]:
    count = len(distances)
    if count == 1:
        return np.zeros(1)
    neighbours = max(count - faulty - 2, 1)
    others = np.sort(distances[~np.eye(count, dtype=bool)].reshape(count, count - 1), axis=1)
    return np.asarray(others[:, :neighbours].sum(axis=1))


def geometric_median(
    updates: Sequence[NDArray[np.floating]], distances: Matrix, weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The shares of the updates in their geometric median: float64 ``[n]``, with sum 1.

    The smoothed Weiszfeld algorithm (RFA, arXiv 1912.13445). Each of its points is a mean of the updates, so a step needs only
    the shares and the products of the updates. These are taken of differences to the update that has half of them nearest:
    less than half cannot choose a far one, and so even a lie of 1e30 costs the others no digit.
    """
    middle = np.median(distances, axis=1)
    centre = int(np.argmin(middle))
    products = _products(updates, centre)
    nearest = _SMOOTHING * math.sqrt(float(middle[centre])) or _NEAREST
    agreed = weights / weights.sum()
    shares: NDArray[np.float64] = agreed
    for _ in range(_MOST_STEPS):
        towards = products @ shares
        squared = products.diagonal() - 2 * towards + float(shares @ towards)
        pull = agreed / np.maximum(np.sqrt(np.maximum(squared, 0.0)), nearest)
        moved: NDArray[np.float64] = pull / pull.sum()
        still = bool((np.abs(moved - shares) <= _STILL * moved).all())
        shares = moved
        if still:
            break
    return shares


def _products(updates: Sequence[NDArray[np.floating]], centre: int) -> Matrix:
    total = np.zeros((len(updates), len(updates)))
    for part in pieces(updates, np.float64):
        difference = part - part[centre]
        total += difference @ difference.T
    return total
