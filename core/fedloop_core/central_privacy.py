"""How much noise hides a whole site in a run, what it has cost after some rounds, and how many sites can bear it.

The coordinator clips each update of a round to a norm C, adds them, and adds Gaussian noise with deviation z * C to the sum
(McMahan 2018, arXiv 1710.06963). z is found so that all planned rounds together stay within the task's epsilon and delta: by Rényi differential
privacy from the dp-accounting library, for adding or removing one site's updates. Every site counts as if it took part in every round: no
amplification is claimed for sampling sites.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import dp_accounting
from dp_accounting import rdp

from fedloop_core.errors import PrivacyParameterInvalid
from fedloop_core.task.central import CentralPrivacy

__all__ = ["CentralPlan", "central_plan", "epsilon_of", "noise_multiplier", "update_multiplier"]

_LOWEST, _HIGHEST = 0.02, 1e6  # noise multipliers that are looked at
_NUDGE = 1e-7  # relative; the root found is moved by it until it lies on the safe side
_DEFAULT_COUNT_NOISE = 2.0  # noise multipliers


@lru_cache(maxsize=4096)
def epsilon_of(multiplier: float, releases: int, delta: float) -> float:
    """Epsilon at ``delta`` of so many Gaussian releases whose noise is ``multiplier`` sensitivities; 0 for none."""
    if releases == 0:
        return 0.0
    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp_accounting.GaussianDpEvent(multiplier), releases)
    return max(float(accountant.get_epsilon(delta)), 0.0)


@lru_cache(maxsize=256)
def noise_multiplier(epsilon: float, delta: float, rounds: int) -> float:
    """The least noise, in sensitivities, with which so many rounds stay within (epsilon, delta).

    Raises:
        PrivacyParameterInvalid: no noise does.
    """
    if epsilon_of(_HIGHEST, rounds, delta) > epsilon:
        raise PrivacyParameterInvalid(
            f"no noise keeps {rounds} rounds within epsilon {epsilon:g} at delta {delta:g} for a whole site.",
            hint="Raise central_privacy.epsilon, or plan fewer rounds.",
            parameter="central_privacy.epsilon",
        )
    if epsilon_of(_LOWEST, rounds, delta) <= epsilon:
        return _LOWEST
    found = float(
        dp_accounting.calibrate_dp_mechanism(
            rdp.RdpAccountant,
            lambda noise: dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(noise), rounds),
            epsilon,
            delta,
            bracket_interval=dp_accounting.ExplicitBracketInterval(_LOWEST, _HIGHEST),
        )
    )
    while epsilon_of(found, rounds, delta) > epsilon:
        found *= 1 + _NUDGE
    return found


def update_multiplier(multiplier: float, count_noise: float) -> float:
    """The multiplier of updates where the number of unclipped ones is released too: ``(z^-2 - (2 sigma_b)^-2)^(-1/2)``.

    The two together then cost what ``multiplier`` alone costs (arXiv 1905.03871, theorem 1).

    Raises:
        PrivacyParameterInvalid: the count's noise is too small for it.
    """
    left = multiplier**-2 - (2 * count_noise) ** -2
    if left <= 0:
        raise PrivacyParameterInvalid(
            f"central_privacy.adaptive.count_noise is {count_noise:g}: noise on the number of unclipped updates must have a "
            f"deviation above {multiplier / 2:.3g}, half the noise multiplier, or that number alone would spend more than epsilon.",
            hint="Leave count_noise out, which takes twice the noise multiplier, or raise it.",
            parameter="central_privacy.adaptive.count_noise",
        )
    return float(left**-0.5)


@dataclass(frozen=True)
class CentralPlan:
    """The noise of a run's rounds, each in norms to which updates are clipped.

    ``multiplier`` is what is accounted, ``updates`` what lies on the sum of updates, ``count_noise`` the deviation of the noise on the
    number of unclipped updates; None where the norm is fixed.
    """

    delta: float
    rounds: int
    multiplier: float
    updates: float
    count_noise: float | None

    def epsilon(self, releases: int) -> float:
        """What so many released rounds have cost a site."""
        return epsilon_of(self.multiplier, releases, self.delta)

    def loudness(self, parameters: int, sites: int) -> float:
        """Length of the noise on the mean over the greatest length of an update: ``z * sqrt(d) / n``."""
        return self.updates * math.sqrt(parameters) / sites

    def sites_for(self, parameters: int, loudness: float = 1.0) -> int:
        """Sites with which it is no louder than that."""
        return max(math.ceil(self.updates * math.sqrt(parameters) / loudness), 1)


def central_plan(central: CentralPrivacy, rounds: int) -> CentralPlan:
    """The noise that a run of so many rounds needs.

    Raises:
        PrivacyParameterInvalid: epsilon is too small for any, or the noise on the count is.
    """
    found = noise_multiplier(central.epsilon, central.delta, rounds)
    if central.adaptive is None:
        return CentralPlan(central.delta, rounds, found, found, None)
    count = central.adaptive.count_noise
    count = _DEFAULT_COUNT_NOISE * found if count is None else count
    return CentralPlan(central.delta, rounds, found, update_multiplier(found, count), count)
