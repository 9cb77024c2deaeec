"""Whether a site's blocks hold a whole run: all that it will charge, before its first release."""

from __future__ import annotations

from fedloop_clients.data.site_data import SiteData
from fedloop_clients.privacy.accounting import conversion, epsilon_at, rdp_at
from fedloop_clients.privacy.charges import Charge
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
from fedloop_core.task.document import Task
from fedloop_core.task.evaluations import planned_evaluations

__all__ = ["affords_run", "require_room"]

_ROUNDING = 1e-9  # relative slack when charges are added one by one


def require_room(
    task: Task,
    ledger: Ledger,
    run_id: str,
    training: tuple[str, ...],
    evaluation: tuple[str, ...],
    plan: PrivacyPlan | None = None,
) -> None:
    """Refuses a private run that a block does not hold to its end, whatever of it is charged already.

    To training blocks, that is all rounds, statistics and counts; to evaluation blocks, all evaluations: without them a
    version could be trained and not be judged. Follows from the task and from the number of units told, never from rows.

    Args:
        task: of the run, private.
        ledger: the site's.
        run_id: whose charges are part of the run.
        training: blocks that are trained on.
        evaluation: blocks that are evaluated on.
        plan: of the run; before there is one, as the number of units was not told, the rounds are left out.

    Raises:
        BudgetExhausted: names the first block that does not hold the run, what the run needs and what is left.
    """
    moments = moments_charge(task)
    whole: tuple[Charge, ...] = (count_charge(task), *(() if moments is None else (moments,)))
    if plan is not None:
        whole = (*plan.others, *[plan.round] * task.rounds.count)
    for block in training:
        _require(ledger, block, run_id, whole, f"its {task.rounds.count} rounds, statistics and counts")
    every = evaluation_charge(task)
    for block in evaluation:
        _require(ledger, block, run_id, (every,) * planned_evaluations(task), "its evaluations")


def _require(ledger: Ledger, block: str, run_id: str, whole: tuple[Charge, ...], what: str) -> None:
    headroom = ledger.headroom(block)
    if headroom is None:
        return
    order, left = headroom
    own = sum(rdp_at(charge, order) for charge in ledger.charges(block, run_id))
    missing = sum(rdp_at(charge, order) for charge in whole) - own
    if missing <= left + _ROUNDING * (left + own):
        return
    spend = ledger.spend(block)
    used = spend.budget - conversion(order, spend.delta) - left
    needed = epsilon_at(order, used + missing, spend.delta) - spend.epsilon
    raise BudgetExhausted(
        f"block {block!r} does not hold run {run_id} to its end: {what} need epsilon {needed:.3f} at delta {spend.delta:g}, "
        f"and {max(spend.budget - spend.epsilon, 0.0):.3f} of {spend.budget:g} for life are left.",
        hint="No round was begun. Train on newer blocks, plan less, or fine-tune from the last release, which costs nothing.",
        block=block,
        spent=spend.epsilon,
        asked=needed,
        budget=spend.budget,
    )


def affords_run(task: Task, data: SiteData, ledger: Ledger, *, units: int | None = None) -> bool:
    """Whether every block holds what one new run would charge to it: see ``require_room``.

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
    rooms = [room for block in training if (room := ledger.headroom(block)) is not None]
    if units is None:
        units = max(len(UnitIndex.of(data.training().units)), 1)
    plan = plan_run(task, units, task.rounds.count, ceilings=tuple(Ceiling(order, left) for order, left in rooms))
    try:
        require_room(task, ledger, "", training, evaluation, plan)
    except BudgetExhausted:
        return False
    return True
