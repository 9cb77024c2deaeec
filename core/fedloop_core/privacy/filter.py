"""The filter that bounds charges for life at one order that was registered beforehand: pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from fedloop_core.privacy.accounting import conversion, epsilon_at, rdp_at, registered_order
from fedloop_core.privacy.charges import Charge

__all__ = ["ROUNDING", "LifetimeFilter"]

ROUNDING = 1e-12
"""Relative slack of a filter, for sums in another order."""


@dataclass(frozen=True)
class LifetimeFilter:
    """A budget (epsilon, delta) for life and the one order at which charges against it add up; absent without a budget.

    A filter stays sound where each charge is chosen after the answers before it (Feldman and Zrnic 2021, arXiv 2008.11193).
    """

    epsilon: float
    delta: float
    order: float | None

    @classmethod
    def of(cls, epsilon: float, delta: float) -> Self:
        """At the order that holds the most charges; an infinite epsilon keeps no budget.

        Raises:
            PrivacyParameterInvalid: the budget holds nothing.
        """
        return cls(epsilon, delta, None if math.isinf(epsilon) else registered_order(epsilon, delta))

    @property
    def capacity(self) -> float:
        """RDP at the order that the budget holds; infinite without a budget."""
        return math.inf if self.order is None else self.epsilon - conversion(self.order, self.delta)

    def cost(self, charge: Charge) -> float:
        """RDP of a charge at the order; 0 where nothing is limited."""
        return 0.0 if self.order is None else rdp_at(charge, self.order)

    def admits(self, spent: float, charge: Charge, slack: float = ROUNDING) -> bool:
        """Whether the budget holds with this charge added to an RDP of ``spent``."""
        return spent + self.cost(charge) <= self.capacity * (1 + slack)

    def epsilon_of(self, divergence: float) -> float:
        """Epsilon at ``delta`` of an RDP of ``divergence``; infinite where no order is registered."""
        return math.inf if self.order is None else epsilon_at(self.order, divergence, self.delta)
