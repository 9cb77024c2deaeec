"""Rules that look at each coordinate by itself: trimmed mean, median, and Bulyan's second step.

Values are sorted and added in that order, so the order of the updates changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedloop_server.aggregation.pieces import Matrix, pieces

__all__ = ["mean_near_median", "trimmed_mean"]

Chosen = Callable[[NDArray[np.floating]], NDArray[np.floating]]


def trimmed_mean(
    updates: Sequence[NDArray[np.floating]], trimmed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """In each coordinate the mean without the ``trimmed`` smallest and largest values (arXiv 1803.01498).

    Returns the mean, float64 ``[d]``, and of each update the share of all values kept that are its own, float64 ``[n]``.
    """
    return _mean_of(updates, lambda ordered: ordered[trimmed : len(ordered) - trimmed])


def mean_near_median(
    updates: Sequence[NDArray[np.floating]], kept: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """In each coordinate the mean of the ``kept`` values nearest to the median (arXiv 1802.07927, algorithm 2).

    Of two equally near the smaller counts. Returns the same as ``trimmed_mean``.
    """

    def nearest(ordered: NDArray[np.floating]) -> NDArray[np.floating]:
        away = np.abs(ordered - np.median(ordered, axis=0).astype(ordered.dtype))
        places = np.sort(np.argsort(away, axis=0, kind="stable")[:kept], axis=0)
        return np.take_along_axis(ordered, places, axis=0)

    return _mean_of(updates, nearest)


def _mean_of(
    updates: Sequence[NDArray[np.floating]], choose: Chosen
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """``choose`` takes a piece that is sorted along its first axis, and gives the rows that count, sorted too."""
    mean = np.empty(updates[0].size)
    counted = np.zeros(len(updates))
    start = 0
    for part in pieces(updates, updates[0].dtype):
        chosen = choose(np.sort(part, axis=0))
        counted += np.count_nonzero((part >= chosen[0]) & (part <= chosen[-1]), axis=1)
        into: Matrix = mean[start : start + part.shape[1]]
        np.mean(chosen, axis=0, dtype=np.float64, out=into)
        start += part.shape[1]
    total = float(counted.sum())
    shares = counted / total if total else np.full(len(updates), 1 / len(updates))
    return mean, shares
