"""Whether a site's blocks would admit a whole run, asked before it is started."""

from __future__ import annotations

from fedloop_clients.data.site_data import SiteData
from fedloop_clients.privacy.accounting import rdp_at
from fedloop_clients.privacy.ledger import Ledger
from fedloop_clients.privacy.planning import Ceiling, plan_run
from fedloop_clients.training.rows import UnitIndex
from fedloop_core.task.document import Task
from fedloop_core.task.evaluations import planned_evaluations

__all__ = ["affords_run"]


def affords_run(task: Task, data: SiteData, ledger: Ledger, *, units: int | None = None) -> bool:
    """Whether every block holds what one run would charge to it.

    To training blocks, that is all rounds, statistics and counts; to evaluation blocks, all evaluations: without them a
    version could be trained and not be judged.

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
    rounds = (*plan.others, *[plan.round] * task.rounds.count)
    return all(sum(rdp_at(charge, order) for charge in rounds) <= left for order, left in rooms) and all(
        ledger.runs_left(block, plan.evaluation) >= planned_evaluations(task) for block in evaluation
    )
