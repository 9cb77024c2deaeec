"""What a block has spent and still holds, for people: pure, from the ledger's state."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedloop_clients.privacy.entries import BlockState, Spend
from fedloop_clients.privacy.loss_distribution import epsilon_by_loss
from fedloop_core.privacy.accounting import conversion

__all__ = ["BlockAccount", "account_of", "runs_left"]


@dataclass(frozen=True)
class BlockAccount:
    """One block.

    ``unit``: the column that named the units of the last run, empty where rows were units, None before the first; ``units``:
    those of all runs, in their order. ``once``: of what is spent, the part that the first charge takes whatever it costs, by
    the step from divergence to epsilon at the block's order. ``runs``: how many runs were charged. ``runs_left``: how many more would fit that cost what the last one did; infinite without a
    budget, None before the first. ``by_loss``: epsilon if all charges had been fixed beforehand, which is not what the
    ledger works with; infinite after an exact release. ``open_reservations``: charged in full and not settled.
    """

    name: str
    opened_unix: int
    order: float | None
    spend: Spend
    unit: str | None
    units: tuple[str, ...]
    once: float
    last_run: str
    runs: int
    runs_left: float | None
    charges: int
    open_reservations: int
    by_loss: float

    @property
    def retired(self) -> bool:
        """Whether a run like the last one is refused or leaves these units out."""
        return self.runs_left is not None and self.runs_left < 1


def account_of(name: str, block: BlockState, open_reservations: int) -> BlockAccount:
    """The account of a block."""
    listed = tuple(block.charges.values())
    return BlockAccount(
        name=name,
        opened_unix=block.opened.time_unix,
        order=block.opened.order,
        spend=block.spend(),
        unit=block.unit,
        units=block.units,
        once=_once(block, len(listed)),
        last_run=_last_run(block),
        runs=len({run for run, _ in listed}),
        runs_left=runs_left(block),
        charges=len(listed),
        open_reservations=open_reservations,
        by_loss=math.inf if block.exact else epsilon_by_loss((c for _, c in listed), block.opened.delta),
    )


def _once(block: BlockState, charges: int) -> float:
    order = block.opened.order
    return 0.0 if order is None or not charges else max(conversion(order, block.opened.delta), 0.0)


def runs_left(block: BlockState) -> float | None:
    """How many more runs like the last one a block holds; infinite without a budget, None before the first."""
    if block.opened.order is None:
        return math.inf
    last = _last_run(block)
    cost = math.fsum(block.cost(charge) for run, charge in block.charges.values() if run == last)
    return max(block.capacity - block.divergence, 0.0) / cost if cost > 0 else None


def _last_run(block: BlockState) -> str:
    """The last run that trained or evaluated, or else whatever was charged last."""
    return block.last_run or next((run for run, _ in reversed(block.charges.values())), "")
