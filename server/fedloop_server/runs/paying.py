"""How a run is charged to whole sites: in full, before its first noised model leaves the coordinator, or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from fedloop_core.central_privacy import CentralPlan, central_plan
from fedloop_core.errors import BudgetExhausted
from fedloop_core.privacy.charges import GaussianCharge
from fedloop_core.task.document import Task
from fedloop_server.runs.events import WholeSitesCharged
from fedloop_server.runs.journal import RunJournal
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.replies import SiteFailure
from fedloop_server.whole_sites.book import WholeSites

__all__ = ["Payments", "charge_of", "charge_of_task", "failure_of", "spent_sites"]


def charge_of(noise: CentralPlan) -> GaussianCharge:
    """What all rounds of a run cost a site, as if it took part in each."""
    return GaussianCharge(noise_multiplier=noise.multiplier, count=noise.rounds)


def charge_of_task(task: Task) -> GaussianCharge | None:
    """What a run of the task costs a site; None where it does not hide whole sites.

    Raises:
        PrivacyParameterInvalid: no noise keeps it within its epsilon.
    """
    central = task.central_privacy
    return None if central is None else charge_of(central_plan(central, task.rounds.count))


def spent_sites(refused: Mapping[str, BudgetExhausted], left: int, needed: int) -> BudgetExhausted:
    """That too few sites hold a run: how many do, how many are needed, and why the first of the others does not."""
    first = refused[min(refused)]
    return BudgetExhausted(
        f"{left} {'site holds' if left == 1 else 'sites hold'} this run in the budget for whole sites and {needed} "
        f"{'is' if needed == 1 else 'are'} needed: {first.message}",
        hint=f"{first.hint} `fedloop server budget` shows what each has spent.",
        **first.fields,
    )


class Payments:
    """Charges one run to its members, each once; ``now_unix`` stamps the event."""

    def __init__(
        self,
        plan: RunPlan,
        noise: CentralPlan,
        book: WholeSites,
        journal: RunJournal,
        now_unix: Callable[[], float],
    ) -> None:
        self._plan = plan
        self._charge = charge_of(noise)
        self._book = book
        self._journal = journal
        self._now_unix = now_unix

    def refused(self, sites: Iterable[str]) -> dict[str, BudgetExhausted]:
        """Those of the sites whose budget does not hold the run, and why; nothing is charged.

        Raises:
            BudgetFixed: server.toml names another budget than at a site's first charge.
            StorageError: the record cannot be read, or was altered.
        """
        asked = tuple(sites)
        return self._journal.patiently(lambda: self._book.refusals(self._plan.run_id, asked, self._charge))

    def pay(self, sites: Iterable[str]) -> list[SiteFailure]:
        """Charges those that have not paid; returns those that cannot, who must not be asked for an update.

        Raises:
            BudgetFixed: server.toml names another budget than at a site's first charge.
            StorageError: the record cannot be written, or was altered: no model may be sent.
        """
        unpaid = tuple(sorted(set(sites) - self._journal.state.charged_sites))
        if not unpaid:
            return []
        run, budget = self._plan, self._book.budget
        paid = self._journal.patiently(lambda: self._book.charge(run.run_id, run.task.name, unpaid, self._charge))
        if paid.sites:
            self._journal.record(
                WholeSitesCharged(
                    sites=paid.sites,
                    noise_multiplier=self._charge.noise_multiplier,
                    releases=self._charge.count,
                    spent=paid.spent,
                    budget=None if math.isinf(budget.epsilon) else budget.epsilon,
                    delta=budget.delta,
                    unix=self._now_unix(),
                )
            )
        return [failure_of(site, error) for site, error in sorted(paid.refused.items())]


def failure_of(site: str, error: BudgetExhausted) -> SiteFailure:
    """A site that the coordinator itself leaves out."""
    return SiteFailure(site, error.code, {}, error.message, True)
