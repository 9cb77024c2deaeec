"""Which of a site's blocks hold a whole run: all that it will charge, before its first release."""

from __future__ import annotations

from collections.abc import Iterable

from fedloop_clients.data.site_data import SiteData
from fedloop_clients.privacy.ledger import Ledger
from fedloop_clients.privacy.planning import (
    Ceiling,
    PrivacyPlan,
    count_charge,
    evaluation_charge,
    moments_charge,
    plan_run,
)
from fedloop_clients.training.rows import UnitIndex
from fedloop_core.errors import BudgetExhausted
from fedloop_core.privacy.accounting import conversion, epsilon_at, rdp_at
from fedloop_core.privacy.charges import Charge
from fedloop_core.task.document import Task
from fedloop_core.task.evaluations import planned_evaluations

__all__ = ["affords_run", "blocks_short_of_evaluations", "blocks_short_of_run"]

_ROUNDING = 1e-9  # relative slack when charges are added one by one


def blocks_short_of_run(
    task: Task, ledger: Ledger, run_id: str, training: Iterable[str], plan: PrivacyPlan | None = None
) -> dict[str, BudgetExhausted]:
    """The training blocks that do not hold a private run to its end, each with the refusal that would say so.

    All that the run charges to training rows: rounds, statistics and counts. Follows from the task, the ledger and the
    number of units told, never from rows.

    Args:
        task: of the run, private.
        ledger: the site's.
        run_id: whose charges are part of the run.
        training: blocks that would be trained on.
        plan: of the run; before there is one, as the number of units was not told, the rounds are left out.
    """
    moments = moments_charge(task)
    whole: tuple[Charge, ...] = (count_charge(task), *(() if moments is None else (moments,)))
    if plan is not None:
        whole = (*plan.others, *[plan.round] * task.rounds.count)
    what = f"its {task.rounds.count} rounds, statistics and counts"
    found = {block: _shortfall(ledger, block, run_id, whole, what) for block in training}
    return {block: error for block, error in found.items() if error is not None}


def blocks_short_of_evaluations(task: Task, ledger: Ledger, evaluation: Iterable[str]) -> dict[str, BudgetExhausted]:
    """The evaluation blocks that do not hold all of a new run's evaluations: its version could not be judged there."""
    every = (evaluation_charge(task),) * planned_evaluations(task)
    found = {block: _shortfall(ledger, block, "", every, "its evaluations") for block in evaluation}
    return {block: error for block, error in found.items() if error is not None}


def affords_run(task: Task, data: SiteData, ledger: Ledger, *, units: int | None = None) -> bool:
    """Whether there are blocks that hold what one new run would charge to them, and all can be evaluated on.

    Args:
        task: of the run.
        data: the site's blocks.
        ledger: the site's.
        units: the number of training units as the site told it last. Without it the units are counted: the answer then
            follows from their exact number, which nobody pays for, so it must not leave the site.

    Raises:
        PrivacyParameterInvalid: no noise is enough for so many units.
    """
    training, evaluation = data.training_blocks, data.evaluation_blocks()
    if not task.privacy.private:
        return all(ledger.headroom(block) is None for block in (*training, *evaluation))
    if blocks_short_of_evaluations(task, ledger, evaluation):
        return False
    if units is None:
        units = max(len(UnitIndex.of(data.training().units)), 1)
    rooms = [room for block in training if (room := ledger.headroom(block)) is not None]
    plan = plan_run(task, units, task.rounds.count, ceilings=tuple(Ceiling(order, left) for order, left in rooms))
    return len(blocks_short_of_run(task, ledger, "", training, plan)) < len(training)


def _shortfall(ledger: Ledger, block: str, run_id: str, whole: tuple[Charge, ...], what: str) -> BudgetExhausted | None:
    headroom = ledger.headroom(block)
    if headroom is None:
        return None
    order, left = headroom
    own = sum(rdp_at(charge, order) for charge in ledger.charges(block, run_id))
    missing = sum(rdp_at(charge, order) for charge in whole) - own
    if missing <= left + _ROUNDING * (left + own):
        return None
    spend = ledger.spend(block)
    used = spend.budget - conversion(order, spend.delta) - left
    needed = epsilon_at(order, used + missing, spend.delta) - spend.epsilon
    return BudgetExhausted(
        f"block {block!r} does not hold run {run_id} to its end: {what} need epsilon {needed:.3f} at delta {spend.delta:g}, "
        f"and {max(spend.budget - spend.epsilon, 0.0):.3f} of {spend.budget:g} for life are left.",
        hint="No round was begun. Train on newer blocks, or plan less. Fine-tuning from the last release costs these rows nothing only where it trains on other rows.",
        block=block,
        spent=spend.epsilon,
        asked=needed,
        budget=spend.budget,
    )
