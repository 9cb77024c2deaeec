"""Epsilon of composed charges, by Rényi differential privacy (RDP) from the dp-accounting library."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from dp_accounting import rdp
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS
from numpy.typing import NDArray

from fedloop_core.errors import PrivacyParameterInvalid
from fedloop_core.privacy.charges import Charge, GaussianCharge, NonPrivateCharge, PureCharge, SampledGaussianCharge

__all__ = [
    "ORDERS",
    "best_order",
    "check_delta",
    "conversion",
    "curve",
    "epsilon",
    "epsilon_at",
    "rdp_at",
    "registered_order",
]

ORDERS: tuple[float, ...] = tuple(float(order) for order in DEFAULT_RDP_ORDERS)
_REFERENCE_RDP = 1000.0  # any divergence for which the library's conversion takes its general branch


@lru_cache(maxsize=512)
def curve(charge: Charge) -> NDArray[np.float64]:
    """RDP of one charge at each of ``ORDERS``; infinite where an order does not converge."""
    if isinstance(charge, SampledGaussianCharge) and charge.steps > 1:
        return charge.steps * curve(charge.model_copy(update={"steps": 1}))  # worked out once for any number of steps
    return _divergence(charge, ORDERS)


@lru_cache(maxsize=4096)
def rdp_at(charge: Charge, order: float) -> float:
    """RDP of one charge at one order, never below 0."""
    return float(_divergence(charge, (order,))[0])


def epsilon(charges: Iterable[Charge], delta: float) -> float:
    """Epsilon of all charges together at ``delta``, by the best order; 0 without charges, infinite when one is exact.

    Orders are chosen after the fact, so this reports a run that is fixed beforehand. The ledger's filter, whose charges
    may depend on earlier answers, uses one registered order instead: see ``epsilon_at``.
    """
    listed = tuple(charges)
    if not listed:
        return 0.0
    if any(isinstance(charge, NonPrivateCharge) for charge in listed):
        return math.inf
    total = np.sum([curve(charge) for charge in listed], axis=0)
    by_order = float(rdp.compute_epsilon(ORDERS, total, delta)[0])
    pure = [charge.epsilon * charge.count for charge in listed if isinstance(charge, PureCharge)]
    return min(by_order, math.fsum(pure)) if len(pure) == len(listed) else by_order


def best_order(charges: Iterable[Charge], delta: float) -> float:
    """The order at which charges that are fixed beforehand have the smallest epsilon at ``delta``."""
    total = np.sum([curve(charge) for charge in charges], axis=0)
    return float(rdp.compute_epsilon(ORDERS, total, delta)[1])


def epsilon_at(order: float, divergence: float, delta: float) -> float:
    """Epsilon at ``delta`` of an RDP of ``divergence`` at one order; 0 for a divergence of 0."""
    if math.isinf(divergence):
        return math.inf
    return float(rdp.compute_epsilon((order,), (divergence,), delta)[0])


@lru_cache(maxsize=4096)
def conversion(order: float, delta: float) -> float:
    """What turning an RDP at ``order`` into epsilon at ``delta`` adds (Canonne, Kamath and Steinke, arXiv 2004.00010)."""
    return epsilon_at(order, _REFERENCE_RDP, delta) - _REFERENCE_RDP


@lru_cache(maxsize=64)
def registered_order(budget: float, delta: float) -> float:
    """The order at which a block's filter works for life: argmax of (budget - conversion(order, delta)) / order.

    The divergence of noise grows about linearly with the order, so this order holds the most charges.

    Raises:
        PrivacyParameterInvalid: the budget is below the conversion's own cost at every order, so that it holds nothing.
    """

    def headroom(order: float) -> float:
        return (budget - conversion(order, delta)) / order

    best = max(ORDERS, key=headroom)
    if headroom(best) <= 0:
        raise PrivacyParameterInvalid(
            f"a budget of epsilon {budget:g} at delta {delta:g} holds no charge at all.",
            hint="Raise epsilon, or delta within what the number of units allows.",
            parameter="epsilon",
        )
    return best


def check_delta(delta: float, units: int) -> None:
    """Refuses a delta that permits publishing a whole unit: it must be below one over the number of units.

    Raises:
        PrivacyParameterInvalid: delta is not below ``1 / units``.
    """
    if units < 1 or delta * units >= 1:
        raise PrivacyParameterInvalid(
            f"privacy.delta = {delta:g} guards nothing here: it must be below 1/{max(units, 1)}, one over the number of "
            "training units.",
            hint=f"Set privacy.delta to {0.1 / max(units, 1):.1g} or less.",
            parameter="delta",
        )


def _divergence(charge: Charge, orders: tuple[float, ...]) -> NDArray[np.float64]:
    """RDP at each order. Orders whose series does not converge are infinite, which is safe, so no log line is needed."""
    if _is_nothing(charge):
        return np.zeros(len(orders))  # the library composes no event 0 times
    log = logging.getLogger("absl")
    log.addFilter(_is_news)
    try:
        accountant = charge.accountant(orders)
    finally:
        log.removeFilter(_is_news)
    # The library gives the curve through this attribute alone.
    return np.maximum(np.asarray(accountant._rdp, dtype=np.float64), 0.0)  # noqa: SLF001


def _is_nothing(charge: Charge) -> bool:
    match charge:
        case SampledGaussianCharge(steps=0) | GaussianCharge(count=0) | PureCharge(count=0):
            return True
        case _:
            return False


def _is_news(record: logging.LogRecord) -> bool:
    return "failed to converge" not in record.getMessage()
