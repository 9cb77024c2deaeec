"""Whether a site's blocks would admit a whole run, asked before it is started."""

from __future__ import annotations

from fedloop_clients.data.site_data import SiteData
from fedloop_clients.privacy.accounting import rdp_at
from fedloop_clients.privacy.ledger import Ledger
from fedloop_clients.privacy.planning import Ceiling, plan_run
from fedloop_clients.training.rows import UnitIndex
from fedloop_core.task.document import Task

__all__ = ["affords_run"]


def affords_run(task: Task, data: SiteData, ledger: Ledger) -> bool:
    """Whether every training block holds what all rounds, statistics and counts of one run would charge.

    Raises:
        PrivacyParameterInvalid: no noise is enough for these rows.
    """
    if not task.privacy.private:
        return all(ledger.headroom(block) is None for block in data.training_blocks)
    rooms = [room for block in data.training_blocks if (room := ledger.headroom(block)) is not None]
    units = len(UnitIndex.of(data.training().units))
    plan = plan_run(task, units, task.rounds.count, ceilings=tuple(Ceiling(order, left) for order, left in rooms))
    return all(
        sum(rdp_at(charge, order) for charge in (*plan.others, *[plan.round] * task.rounds.count)) <= left
        for order, left in rooms
    )
