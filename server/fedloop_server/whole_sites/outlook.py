"""Whether the whole sites that a run would hide hold it, before it is started."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fedloop_core.errors import BudgetExhausted
from fedloop_server.runs.paying import charge_of_task, spent_sites
from fedloop_server.runs.plan import RunPlan
from fedloop_server.whole_sites.accounts import SiteAccount
from fedloop_server.whole_sites.book import WholeSites
from fedloop_server.whole_sites.budget import SiteBudget

__all__ = ["Outlook", "SiteOutlook", "outlook_of"]


@dataclass(frozen=True)
class SiteOutlook:
    """One site: epsilon spent for life before the run, whether it holds the run, and how many runs like it; infinite without a budget."""

    site: str
    spent: float
    holds: bool
    runs_left: float


@dataclass(frozen=True)
class Outlook:
    """All sites; ``refusal``: why the run would not begin."""

    budget: SiteBudget
    sites: tuple[SiteOutlook, ...]
    refusal: BudgetExhausted | None

    def require(self) -> None:
        """Refuses a run that would not begin.

        Raises:
            BudgetExhausted: too few sites hold it.
        """
        if self.refusal is not None:
            raise self.refusal


def outlook_of(book: WholeSites, plan: RunPlan, active: Iterable[str]) -> Outlook | None:
    """Of the active sites; None where the task does not hide whole sites. Nothing is charged.

    Raises:
        BudgetFixed: server.toml names another budget than at a site's first charge.
        PrivacyParameterInvalid: no noise keeps the run within its epsilon, or the budget holds nothing.
        StorageError: the record cannot be read, or was altered.
    """
    charge = charge_of_task(plan.task)
    if charge is None:
        return None
    names, state = sorted(set(active)), book.state()
    refused = book.refusals(plan.run_id, names, charge)
    accounts: list[SiteAccount] = [state.account(name, book.budget) for name in names]
    needed = max(plan.task.aggregation.least_updates, math.ceil(plan.task.rounds.quorum * plan.expected_sites))
    left = len(names) - len(refused)
    return Outlook(
        budget=book.budget,
        sites=tuple(SiteOutlook(a.site, a.spent, a.site not in refused, a.runs_left(charge)) for a in accounts),
        refusal=spent_sites(refused, left, needed) if refused and left < needed else None,
    )
