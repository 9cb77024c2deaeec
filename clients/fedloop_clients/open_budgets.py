"""Budgets that hold in a site's ledger, against those that site.toml names: a block keeps the one that it was opened with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedloop_clients.data.site_data import is_evaluation_block
from fedloop_clients.home import SiteHome
from fedloop_clients.policy import Budget
from fedloop_clients.settings import SiteSettings
from fedloop_core.backup.owners import acting_as_owner
from fedloop_core.errors import BudgetFixed

if TYPE_CHECKING:
    from fedloop_clients.privacy.ledger import Ledger

__all__ = ["budgets_of", "changed_budgets", "open_budgets", "require_budgets_kept"]


def open_budgets(home: SiteHome) -> dict[str, Budget]:
    """The budget for life of each open block; empty before the first run. Makes no ledger.

    Raises:
        StorageError: the ledger cannot be read, or its chain is broken.
    """
    if not home.ledger_file.exists():
        return {}
    with acting_as_owner(home.ledger_file):
        ledger = home.ledger()
        try:
            return budgets_of(ledger)
        finally:
            ledger.close()


def budgets_of(ledger: Ledger) -> dict[str, Budget]:
    """As ``open_budgets``, of a ledger that is open."""
    return {block: Budget(epsilon=epsilon, delta=delta) for block, (epsilon, delta) in ledger.budgets().items()}


def changed_budgets(settings: SiteSettings, known: dict[str, Budget]) -> tuple[str, ...]:
    """A sentence for each open block whose budget site.toml names otherwise: with such a one the site refuses every run."""
    told: list[str] = []
    for block, budget in known.items():
        part = "evaluation" if is_evaluation_block(block) else "training"
        said = settings.budget.evaluation if part == "evaluation" else settings.budget.training
        if said != budget:
            told.append(
                f"site.toml names {_words(said)} for {part} rows, and block {block!r} was opened with {_words(budget)} for life: "
                "the site refuses every run."
            )
    return tuple(told)


def require_budgets_kept(home: SiteHome) -> None:
    """Refuses settings with which the site would refuse every run.

    Raises:
        BudgetFixed: names the first block whose budget was changed.
        StorageError: the ledger cannot be read, or its chain is broken.
    """
    known = open_budgets(home)
    for sentence in changed_budgets(home.settings, known):
        raise BudgetFixed(sentence, hint=f"Put the first budget back under [budget] in {home.settings_file}.")


def _words(budget: Budget) -> str:
    return f"epsilon {budget.epsilon:g} at delta {budget.delta:g}"
