"""Charges to whole sites and what they add up to: pure, without a database.

A run is charged in full, all rounds that it plans, before its first noised model leaves the coordinator. Charges are never taken
back: a run that fails, or is given up after one round, has cost what it planned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from fedloop_core.errors import BudgetExhausted, BudgetFixed
from fedloop_core.privacy.accounting import epsilon
from fedloop_core.privacy.charges import GaussianCharge
from fedloop_core.privacy.filter import LifetimeFilter
from fedloop_core.strict import Strict
from fedloop_server.whole_sites.budget import SiteBudget

__all__ = ["SiteAccount", "SiteCharge", "WholeSitesState"]


class SiteCharge(Strict):
    """An entry: what a run may cost these sites, under which budget. A site's first entry fixes its budget and order for life."""

    format: Literal[1] = 1
    time_unix: int
    run_id: str
    task: str
    sites: Annotated[tuple[str, ...], Field(min_length=1)]
    charge: GaussianCharge
    epsilon: Annotated[float, Field(gt=0)]
    delta: float
    order: float | None

    @property
    def filter(self) -> LifetimeFilter:
        """Under which it was admitted."""
        return LifetimeFilter(self.epsilon, self.delta, self.order)


@dataclass
class SiteAccount:
    """What was charged to one site, with the run. Neighbours are: with and without all updates of the site."""

    site: str
    filter: LifetimeFilter
    charges: list[tuple[str, GaussianCharge]] = field(default_factory=list)
    divergence: float = 0.0

    @property
    def spent(self) -> float:
        """Epsilon for life, at the budget's delta."""
        if self.filter.order is None:
            return epsilon((charge for _, charge in self.charges), self.filter.delta)
        return self.filter.epsilon_of(self.divergence) if self.charges else 0.0

    def runs_left(self, charge: GaussianCharge) -> float:
        """How many more runs with this charge it holds, whole ones; infinite without a budget."""
        cost = self.filter.cost(charge)
        if cost <= 0:
            return math.inf
        return float(math.floor(max(self.filter.capacity - self.divergence, 0.0) / cost * (1 + 1e-9)))

    def check(self, run_id: str, charge: GaussianCharge) -> None:
        """Whether a run may be charged.

        Raises:
            BudgetExhausted: names the site, what it has spent, what is asked and its budget.
        """
        if self.filter.admits(self.divergence, charge):
            return
        asked = self.filter.epsilon_of(self.filter.cost(charge))
        raise BudgetExhausted(
            f"site {self.site} as a whole has spent epsilon {self.spent:.3f} of {self.filter.epsilon:g} for life; run {run_id} asks "
            f"for {asked:.3g} more (epsilons of single runs do not simply add up).",
            hint="Raise no budget for it: plan fewer rounds or a smaller central_privacy.epsilon, or train with other sites.",
            site=self.site,
            spent=self.spent,
            asked=asked,
            budget=self.filter.epsilon,
        )


@dataclass
class WholeSitesState:
    """All accounts; changed by ``apply`` alone."""

    accounts: dict[str, SiteAccount] = field(default_factory=dict)

    def account(self, site: str, budget: SiteBudget) -> SiteAccount:
        """Of a site, or an empty one under this budget.

        Raises:
            BudgetFixed: the site's first charge was made under another budget, which is for life.
            PrivacyParameterInvalid: the budget holds nothing.
        """
        known = self.accounts.get(site)
        if known is None:
            return SiteAccount(site, LifetimeFilter.of(budget.epsilon, budget.delta))
        if (known.filter.epsilon, known.filter.delta) != (budget.epsilon, budget.delta):
            raise BudgetFixed(
                f"the budget of whole sites was epsilon {known.filter.epsilon:g} at delta {known.filter.delta:g} when site {site} was "
                f"first charged, for life; it cannot be changed to {budget.epsilon:g} at {budget.delta:g}.",
                hint="Write the first budget under [whole_sites] in server.toml again.",
                site=site,
            )
        return known

    def unpaid(self, run_id: str, sites: Iterable[str], charge: GaussianCharge) -> tuple[str, ...]:
        """Those to which just this was not charged yet for the run, by name."""
        return tuple(
            site
            for site in sorted(set(sites))
            if site not in self.accounts or (run_id, charge) not in self.accounts[site].charges
        )

    def apply(self, entry: SiteCharge) -> None:
        """Adds one entry that was admitted."""
        for site in entry.sites:
            account = self.accounts.setdefault(site, SiteAccount(site, entry.filter))
            account.charges.append((entry.run_id, entry.charge))
            account.divergence += account.filter.cost(entry.charge)
