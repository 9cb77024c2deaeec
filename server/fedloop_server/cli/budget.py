"""What runs have spent on whole sites: ``fedloop server budget``."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedloop_core.commands import AS_JSON, tell_json, tell_table
from fedloop_core.strict import Strict
from fedloop_server.cli.options import HOME, open_home

if TYPE_CHECKING:
    from fedloop_server.home import CoordinatorHome
    from fedloop_server.whole_sites.accounts import SiteAccount

__all__ = ["BudgetDocument", "SiteSpent", "budget", "budget_document", "budget_line"]


class SiteSpent(Strict):
    """A site: epsilon spent for life at the budget's delta, of the budget that its first charge fixed; None: no limit."""

    site: str
    spent: float
    budget: float | None
    runs: int
    last_run: str
    runs_left: int | None


class BudgetDocument(Strict):
    """What ``fedloop server budget --json`` prints. ``epsilon``: what server.toml allows each whole site, None: no limit."""

    epsilon: float | None
    delta: float
    neighbours: Literal["add-or-remove-one-site"] = "add-or-remove-one-site"
    sites: tuple[SiteSpent, ...]


def budget(home: Path = HOME, as_json: bool = AS_JSON) -> None:
    """Show what runs with [central_privacy] have spent on each whole site, for life, and how many more runs fit.

    The limit stands in server.toml under [whole_sites]. Runs without [central_privacy] promise whole sites nothing and are not counted.
    """
    found = budget_document(open_home(home))
    if as_json:
        tell_json(found.model_dump(mode="json"))
        return
    print(_limit(found))
    if not found.sites:
        print(
            "No run has been charged to a whole site yet. `fedloop run start TASK --dry-run` says what one would cost."
        )
        return
    print()
    tell_table(
        ("SITE", "EPSILON SPENT", "RUNS", "LAST RUN", "MORE LIKE IT"),
        [
            (s.site, f"{s.spent:.3f}", str(s.runs), s.last_run, "no limit" if s.runs_left is None else str(s.runs_left))
            for s in found.sites
        ],
    )


def budget_document(home: CoordinatorHome) -> BudgetDocument:
    """The limit, and each site that was ever charged.

    Raises:
        StorageError: the record cannot be read, or was altered.
    """
    from sqlalchemy import select

    from fedloop_server.whole_sites.tables import SiteChargeRow

    limit = home.settings.whole_sites
    epsilon = None if math.isinf(limit.epsilon) else limit.epsilon
    with closing(home.database()) as database, database.reading() as session:
        if session.scalar(select(SiteChargeRow.number).limit(1)) is None:  # and accounting need not be imported
            return BudgetDocument(epsilon=epsilon, delta=limit.delta, sites=())
    with closing(home.whole_sites()) as book:
        accounts = book.state().accounts
    return BudgetDocument(
        epsilon=epsilon, delta=limit.delta, sites=tuple(_site(accounts[name]) for name in sorted(accounts))
    )


def budget_line(found: BudgetDocument) -> str:
    """The same in a sentence; empty where nothing was ever charged."""
    if not found.sites:
        return ""
    most = max(found.sites, key=lambda site: site.spent)
    of = "without a limit" if most.budget is None else f"of {most.budget:g} for life"
    return f"Whole sites: {most.site} has spent most, epsilon {most.spent:.3f} {of}; `fedloop server budget` shows all."


def _site(account: SiteAccount) -> SiteSpent:
    last_run, charge = account.charges[-1]
    left, fixed = account.runs_left(charge), account.filter.epsilon
    return SiteSpent(
        site=account.site,
        spent=account.spent,
        budget=None if math.isinf(fixed) else fixed,
        runs=len({run for run, _ in account.charges}),
        last_run=last_run,
        runs_left=None if math.isinf(left) else int(left),
    )


def _limit(found: BudgetDocument) -> str:
    if found.epsilon is None:
        return f"No budget is kept for whole sites (delta {found.delta:g}); what runs spend is counted."
    return (
        f"All runs together may spend epsilon {found.epsilon:g} at delta {found.delta:g} on each whole site, for life."
    )
