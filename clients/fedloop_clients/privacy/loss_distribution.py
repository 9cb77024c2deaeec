"""Epsilon by privacy loss distributions (PLD): tighter than Rényi's, and for people to read, never for the filter.

A ledger's charges may depend on earlier answers. Composing loss distributions says nothing of what was spent then (a filter
over them is not valid in general, arXiv 2602.06756), so this number is what the charges would cost had they been fixed
beforehand.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import dp_accounting
from dp_accounting.pld import privacy_loss_distribution as pld

from fedloop_core.privacy.charges import Charge, GaussianCharge, NonPrivateCharge, PureCharge, SampledGaussianCharge

__all__ = ["epsilon_by_loss"]

_INTERVAL = 1e-4  # of the discretised losses, rounded up


def epsilon_by_loss(charges: Iterable[Charge], delta: float) -> float:
    """Epsilon of all charges together at ``delta`` if they had been fixed beforehand; never below 0.

    Gaussian noise without sampling is converted exactly (Balle and Wang 2018, arXiv 1805.06530), all else by loss
    distributions that are rounded up to ``1e-4``. Pure charges count as randomised response, as everywhere: see
    ``PureCharge``.

    Returns:
        Epsilon; 0 without charges, infinite when one is an exact release.
    """
    counted: Counter[Charge] = Counter()
    for charge in charges:
        if isinstance(charge, NonPrivateCharge):
            return math.inf
        one, count = _one(charge)
        counted[one] += count
    counted = +counted  # what was charged no time is not there
    if not counted:
        return 0.0
    precisions = [n / one.noise_multiplier**2 for one, n in counted.items() if isinstance(one, GaussianCharge)]
    if len(precisions) == len(counted):
        return max(float(dp_accounting.get_epsilon_gaussian(math.fsum(precisions) ** -0.5, delta)), 0.0)
    pure = [n * one.epsilon for one, n in counted.items() if isinstance(one, PureCharge)]
    parts = [_distribution(one).self_compose(count) for one, count in counted.items()]
    total, *others = parts
    for part in others:
        total = total.compose(part)
    found = max(float(total.get_epsilon_for_delta(delta)), 0.0)
    return min(found, math.fsum(pure)) if len(pure) == len(counted) else found


def _one(charge: SampledGaussianCharge | GaussianCharge | PureCharge) -> tuple[Charge, int]:
    """The charge of a single step or release, and how many there were; sampling everybody is no sampling."""
    match charge:
        case SampledGaussianCharge(sampling_rate=1.0):
            return GaussianCharge(noise_multiplier=charge.noise_multiplier), charge.steps
        case SampledGaussianCharge():
            return charge.model_copy(update={"steps": 1}), charge.steps
        case _:
            return charge.model_copy(update={"count": 1}), charge.count


def _distribution(one: Charge) -> pld.PrivacyLossDistribution:
    match one:
        case SampledGaussianCharge():
            return pld.from_gaussian_mechanism(
                one.noise_multiplier, sampling_prob=one.sampling_rate, value_discretization_interval=_INTERVAL
            )
        case GaussianCharge():
            return pld.from_gaussian_mechanism(one.noise_multiplier, value_discretization_interval=_INTERVAL)
        case PureCharge():
            return pld.from_randomized_response(one.answer_at_random, 2, value_discretization_interval=_INTERVAL)
        case _:
            return pld.identity(_INTERVAL)
