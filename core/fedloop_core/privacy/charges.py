"""Charges: what one release costs the units it read, as facts about its mechanism.

A charge holds the mechanism's parameters, never an epsilon alone: epsilons do not add up tightly, mechanisms do. Adding
or removing one unit is the neighbouring relation throughout.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import dp_accounting
from dp_accounting import rdp
from pydantic import Field

from fedloop_core.strict import Strict

__all__ = ["Charge", "GaussianCharge", "NonPrivateCharge", "PureCharge", "SampledGaussianCharge"]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class SampledGaussianCharge(Strict):
    """Steps of DP-SGD: Gaussian noise on a sum over units sampled independently (Mironov 2019, arXiv 1908.10530).

    ``noise_multiplier`` is the noise's deviation over the clipping norm.
    """

    kind: Literal["sampled-gaussian"] = "sampled-gaussian"
    noise_multiplier: Positive
    sampling_rate: Annotated[float, Field(gt=0, le=1)]
    steps: Count

    def accountant(self, orders: tuple[float, ...]) -> rdp.RdpAccountant:
        """An accountant that holds this charge alone."""
        event = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        if self.sampling_rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(self.sampling_rate, event)
        return rdp.RdpAccountant(orders).compose(event, self.steps)


class GaussianCharge(Strict):
    """Gaussian noise on a sum over all units; ``noise_multiplier`` is its deviation over the L2 sensitivity."""

    kind: Literal["gaussian"] = "gaussian"
    noise_multiplier: Positive
    count: Count = 1

    def accountant(self, orders: tuple[float, ...]) -> rdp.RdpAccountant:
        """An accountant that holds this charge alone."""
        return rdp.RdpAccountant(orders).compose(dp_accounting.GaussianDpEvent(self.noise_multiplier), self.count)


class PureCharge(Strict):
    """Releases of pure ``epsilon``-differential privacy: counts under discrete Laplace noise, for one.

    Accounted as binary randomised response of the same epsilon, which dominates every pure mechanism (Kairouz, Oh and
    Viswanath 2015). Discrete Laplace noise on a count *is* that worst case, so the smaller divergence of continuous
    Laplace noise would under-count it.
    """

    kind: Literal["pure"] = "pure"
    epsilon: Positive
    count: Count = 1

    @property
    def answer_at_random(self) -> float:
        """The share of answers that binary randomised response of this epsilon draws at random."""
        return 2 * math.exp(-self.epsilon) / (1 + math.exp(-self.epsilon))

    def accountant(self, orders: tuple[float, ...]) -> rdp.RdpAccountant:
        """An accountant that holds this charge alone.

        The relation is nominal: the pair of answers of randomised response is the dominating pair itself.
        """
        event = dp_accounting.RandomizedResponseDpEvent(self.answer_at_random, 2)
        relation = dp_accounting.NeighboringRelation.REPLACE_ONE
        return rdp.RdpAccountant(orders, relation).compose(event, self.count)


class NonPrivateCharge(Strict):
    """An exact release: no epsilon bounds it. Only blocks without a budget admit one."""

    kind: Literal["non-private"] = "non-private"

    def accountant(self, orders: tuple[float, ...]) -> rdp.RdpAccountant:
        """An accountant at infinity."""
        return rdp.RdpAccountant(orders).compose(dp_accounting.NonPrivateDpEvent())


Charge = Annotated[
    SampledGaussianCharge | GaussianCharge | PureCharge | NonPrivateCharge,
    Field(discriminator="kind"),
]
