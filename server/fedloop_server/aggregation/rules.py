"""The robust rules of a round: from all updates to one, and how much of it is whose.

A rule is a function of updates and agreed weights. Weights count in the geometric median alone; what a site says of itself
in its answer counts nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedloop_core.errors import RunError, TooFewUpdates, UpdateRefused
from fedloop_core.task.aggregation import (
    Bulyan,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    RobustRule,
    TrimmedMean,
)
from fedloop_server.aggregation.coordinates import mean_near_median, trimmed_mean
from fedloop_server.aggregation.distances import geometric_median, krum_order, squared_distances
from fedloop_server.aggregation.pieces import Matrix, pieces

__all__ = ["Combined", "combine", "require_updates"]


@dataclass(frozen=True)
class Combined:
    """What a rule makes of the updates: ``value`` float64 ``[d]``, and the share of each update in it, with sum 1."""

    value: NDArray[np.float64]
    shares: tuple[float, ...]


def require_updates(rule: RobustRule, weights: Sequence[int]) -> None:
    """Checks the rule's conditions on the number of updates and on their agreed weights.

    Raises:
        TooFewUpdates: there are fewer than it needs, or the heaviest would decide alone.
    """
    if len(weights) < rule.least_updates:
        raise TooFewUpdates(
            f"{rule.need}; there are {len(weights)}.",
            hint="Wait for more sites, lower aggregation.faulty_sites, or choose a rule that needs fewer.",
        )
    if rule.weighted:
        _require_majority(rule, weights)


def combine(rule: RobustRule, updates: Sequence[NDArray[np.floating]], weights: Sequence[int]) -> Combined:
    """Applies a rule.

    Args:
        rule: which one, and how many faulty updates it is to withstand.
        updates: each ``[d]``, all of one dtype. In an order that does not depend on when they came: of updates that are
            equally good Krum takes the first.
        weights: as agreed before the round.

    Raises:
        TooFewUpdates: the rule's condition on their number, or on their weights, does not hold.
        UpdateRefused: one has values that are not finite.
        RunError: they are so long that distances between them overflow.
    """
    require_updates(rule, weights)
    for update in updates:
        if not np.isfinite(update).all():
            raise UpdateRefused("an update holds values that are not finite.", reason="not-finite")
    match rule:
        case TrimmedMean(faulty_sites=faulty):
            return _combined(*trimmed_mean(updates, faulty))
        case Median():
            return _combined(*trimmed_mean(updates, (len(updates) - 1) // 2))
        case GeometricMedian():
            shares = geometric_median(updates, _distances(updates), np.asarray(weights, dtype=np.float64))
            return Combined(_mean(updates, shares), tuple(shares.tolist()))
        case Krum(faulty_sites=faulty):
            return _chosen(updates, krum_order(_distances(updates), faulty, 1, again=False))
        case MultiKrum(faulty_sites=faulty):
            wanted = len(updates) - faulty - 2
            return _chosen(updates, krum_order(_distances(updates), faulty, wanted, again=False))
        case Bulyan(faulty_sites=faulty):
            return _bulyan(updates, faulty)
        case _:
            raise TypeError(f"no way is known to apply the rule {type(rule).__name__}")


def _combined(value: NDArray[np.float64], shares: NDArray[np.float64]) -> Combined:
    return Combined(value, tuple(shares.tolist()))


def _bulyan(updates: Sequence[NDArray[np.floating]], faulty: int) -> Combined:
    chosen = sorted(krum_order(_distances(updates), faulty, len(updates) - 2 * faulty, again=True))
    value, among = mean_near_median([updates[place] for place in chosen], len(chosen) - 2 * faulty)
    shares = np.zeros(len(updates))
    shares[chosen] = among
    return _combined(value, shares)


def _chosen(updates: Sequence[NDArray[np.floating]], places: Sequence[int]) -> Combined:
    shares = np.zeros(len(updates))
    shares[list(places)] = 1 / len(places)
    return Combined(_mean(updates, shares), tuple(shares.tolist()))


def _mean(updates: Sequence[NDArray[np.floating]], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean by these shares, added in the order of the updates; those without a share are not touched."""
    counting = [place for place, share in enumerate(shares) if share > 0]
    mean = np.empty(updates[0].size)
    start = 0
    for part in pieces([updates[place] for place in counting], np.float64):
        np.matmul(shares[counting], part, out=mean[start : start + part.shape[1]])
        start += part.shape[1]
    return mean


def _distances(updates: Sequence[NDArray[np.floating]]) -> Matrix:
    with np.errstate(over="ignore"):
        found = squared_distances(updates)
    if not np.isfinite(found.sum()):
        raise RunError("updates are too long for distances between them.", hint="Lower gates.update.maximum_norm.")
    return found


def _require_majority(rule: RobustRule, weights: Sequence[int]) -> None:
    faulty = rule.faulty_sites
    heaviest, total = sum(sorted(weights)[-faulty:]), sum(weights)
    if 2 * heaviest >= total:
        many = "update weighs" if faulty == 1 else f"{faulty} updates weigh"
        raise TooFewUpdates(
            f"{rule.rule}: the heaviest {many} {heaviest} of {total}, so that faulty ones could decide alone.",
            hint='Weigh sites equally (rounds.weighting = "equal"), wait for more sites, or lower aggregation.faulty_sites.',
        )
