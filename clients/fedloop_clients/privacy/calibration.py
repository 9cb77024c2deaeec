"""How much noise a budget asks for."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from dp_accounting import rdp
from numpy.typing import NDArray
from scipy.optimize import brentq

from fedloop_core.errors import PrivacyParameterInvalid
from fedloop_core.privacy.accounting import ORDERS, conversion, curve, epsilon, epsilon_at, rdp_at
from fedloop_core.privacy.charges import Charge, SampledGaussianCharge

__all__ = ["find_gaussian_multiplier", "find_noise_multiplier", "noise_within"]

_LOWEST, _HIGHEST = 0.05, 1e5
_PRECISION = 1e-7  # of the noise's logarithm; the root found is moved by it until it lies on the safe side
_STEEPEST = 1e6  # bound on the function whose root is sought, which may be infinite
_TOLERANCE = 1e-4  # relative gain in noise below which the search stops


@lru_cache(maxsize=256)
def find_noise_multiplier(
    target: float, delta: float, rate: float, steps: int, others: tuple[Charge, ...] = ()
) -> float:
    """The least noise multiplier with which ``steps`` of DP-SGD and ``others`` stay within epsilon ``target``.

    Alternates between the best order of the present noise and the noise that meets the target at that order. Each step
    can only lower the noise, and every one meets the target, so stopping at any of them is safe.

    Args:
        target: epsilon of everything together at ``delta``.
        delta: probability beside epsilon.
        rate: each unit's probability of being in a step.
        steps: all steps of the run.
        others: what else the run charges to the same units.

    Returns:
        Deviation of the noise over the clipping norm.

    Raises:
        PrivacyParameterInvalid: no noise meets the target, since ``others`` alone exceed it or it is too small.
    """
    extra = _total(others)
    room = [(target - conversion(order, delta) - extra[at]) / order for at, order in enumerate(ORDERS)]
    likely = sorted((at for at in range(len(ORDERS)) if room[at] > 0), key=lambda at: -room[at])
    # At a fractional order the divergence of much noise may not converge: the next order is tried then.
    tried = (_solve(at, target, delta, rate, steps, extra) for at in likely)
    found = next((noise for noise in tried if math.isfinite(noise)), math.inf)
    while math.isfinite(found):
        place = _best_order(_charge(found, rate, steps), extra, delta)
        better = _solve(place, target, delta, rate, steps, extra)
        settled = better > found * (1 - _TOLERANCE)
        found = min(found, better)
        if settled:
            break
    if not math.isfinite(found) or epsilon((_charge(found, rate, steps), *others), delta) > target:
        raise PrivacyParameterInvalid(
            f"no noise keeps {steps} steps at sampling rate {rate:g} within epsilon {target:g} at delta {delta:g}"
            f"{' beside what the run spends on other answers' if others else ''}.",
            hint=_what_helps(target, delta),
            parameter="epsilon",
        )
    return found


def find_gaussian_multiplier(target: float, delta: float) -> float:
    """The least noise multiplier with which one Gaussian release stays within epsilon ``target`` at ``delta``."""
    return find_noise_multiplier(target, delta, 1.0, 1)


@lru_cache(maxsize=256)
def noise_within(order: float, divergence: float, rate: float, steps: int, others: tuple[Charge, ...] = ()) -> float:
    """The least noise multiplier with which ``steps`` and ``others`` stay within an RDP at one order; else infinite."""
    extra = sum(rdp_at(charge, order) for charge in others)
    return _root(lambda noise: rdp_at(_charge(noise, rate, steps), order) + extra - divergence)


def _what_helps(target: float, delta: float) -> str:
    """The step from divergence to epsilon costs something at every order, however much noise there is: below that only delta helps."""
    floor = min(conversion(order, delta) for order in ORDERS)
    if target > floor:
        return "Raise privacy.epsilon, or plan fewer rounds."
    return (
        f"At delta {delta:g} no epsilon below {floor:.2g} can be accounted for, however much noise is added and however few the rounds: "
        "raise privacy.epsilon, of which this is the whole or a part, or privacy.delta."
    )


def _charge(noise_multiplier: float, rate: float, steps: int) -> SampledGaussianCharge:
    return SampledGaussianCharge(noise_multiplier=noise_multiplier, sampling_rate=rate, steps=steps)


def _total(charges: tuple[Charge, ...]) -> NDArray[np.float64]:
    return np.sum([curve(charge) for charge in charges], axis=0) if charges else np.zeros(len(ORDERS))


def _best_order(charge: Charge, extra: NDArray[np.float64], delta: float) -> int:
    """Place in ``ORDERS`` of the order that gives the smallest epsilon."""
    order = rdp.compute_epsilon(ORDERS, curve(charge) + extra, delta)[1]
    return ORDERS.index(float(order))


def _solve(place: int, target: float, delta: float, rate: float, steps: int, extra: NDArray[np.float64]) -> float:
    """The noise that meets the target at one order; infinite when none does."""
    order = ORDERS[place]

    def excess(noise: float) -> float:
        divergence = rdp_at(_charge(noise, rate, steps), order) + float(extra[place])
        return epsilon_at(order, divergence, delta) - target

    return _root(excess)


def _root(excess: Callable[[float], float]) -> float:
    """The least noise at which a falling function is not above 0; infinite when it is above 0 everywhere."""
    low, high = math.log(_LOWEST), math.log(_HIGHEST)
    if excess(_HIGHEST) > 0:
        return math.inf
    if excess(_LOWEST) <= 0:
        return _LOWEST
    root = float(brentq(lambda logarithm: min(excess(math.exp(logarithm)), _STEEPEST), low, high, xtol=_PRECISION))
    while excess(math.exp(root)) > 0:
        root += _PRECISION
    return math.exp(root)
