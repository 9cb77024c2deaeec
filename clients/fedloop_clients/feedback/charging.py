"""Paying for what a site tells of its devices' rows: verdicts, and how many labels have come back.

Whose rows can be in it? Where each row is a unit, what devices see now are units that no block has yet: the next feedback
blocks pay. Where a unit is a patient or customer, one of any block may come back, so every block pays, and those that
cannot are left out with all rows of their units. Which blocks that are follows from the ledger alone, never from who came.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedloop_clients.data.site_data import NewestRows, SiteData
from fedloop_clients.policy import SiteConfig
from fedloop_clients.privacy.ledger import Ledger
from fedloop_clients.privacy.mechanisms import noised_counts
from fedloop_core.errors import BudgetExhausted
from fedloop_core.noise import NoiseSource
from fedloop_core.privacy.charges import NonPrivateCharge, PureCharge
from fedloop_core.task.document import Task

__all__ = ["Payers", "charge_late_verdicts", "charge_verdicts", "find_payers", "released_label_count"]


@dataclass(frozen=True)
class Payers:
    """Who pays for the verdicts about a version.

    ``reference``: the newest rows of blocks that can; the world is compared with them. ``blocks``: those that pay, beside the
    next feedback blocks. ``left_out``: those of whose units no row may be looked at.
    """

    reference: NewestRows
    blocks: tuple[str, ...]
    left_out: tuple[str, ...]


def find_payers(ledger: Ledger, data: SiteData, charge: PureCharge | NonPrivateCharge, task: Task) -> Payers:
    """Which blocks pay for the verdicts about a version, by the ledger alone.

    Raises:
        BudgetExhausted: no block of training rows can: there is nothing to compare the world with.
    """
    every = _blocks(data)
    able = ledger.admitting(charge, every)
    reference = data.newest(able)
    if not reference.blocks:
        newest = data.newest().blocks[0]
        spend = ledger.spend(newest)
        raise BudgetExhausted(
            f"no block of training rows can pay for verdicts: block {newest!r} has spent epsilon {spend.epsilon:.3f} of "
            f"{spend.budget:g} for life.",
            hint="New rows open blocks with budgets of their own.",
            block=newest,
            spent=spend.epsilon,
            budget=spend.budget,
        )
    if task.privacy.unit_column is None:
        return Payers(reference, reference.blocks, ())
    return Payers(reference, able, tuple(block for block in every if block not in able))


def charge_verdicts(
    ledger: Ledger,
    data: SiteData,
    config: SiteConfig,
    charge: PureCharge | NonPrivateCharge,
    payers: Payers,
    *,
    task: str,
    version: int,
) -> None:
    """Charges all verdicts about a version to those who pay, and to the blocks that its windows' rows will join.

    The rows that devices see now may have no block yet; those of them that come back with labels will be the next feedback
    blocks, which are opened here, so that they begin with what the verdicts cost them.

    Raises:
        BudgetExhausted: a block cannot pay; then nothing is charged and no verdict may be told.
    """
    blocks = (*payers.blocks, *_next_blocks(ledger, data, config))
    _charge(ledger, charge, blocks, _watch(task, version), _about(version))


def charge_late_verdicts(
    ledger: Ledger,
    data: SiteData,
    config: SiteConfig,
    charge: PureCharge | NonPrivateCharge,
    *,
    task: str,
    versions: Iterable[int],
) -> None:
    """Charges the next feedback blocks for verdicts that were told while some of their rows were seen, and not yet paid.

    Labels may come after the version that predicted has been replaced: its verdicts were charged to other blocks. Where units
    come back, ``versions`` names the one that is watched too: those who join may come back while it serves.

    Raises:
        BudgetExhausted: the next blocks cannot pay; then the rows may not join.
    """
    blocks = _next_blocks(ledger, data, config)
    for version in versions:
        if not any(ledger.charges(block, _watch(task, version)) for block in blocks):
            _charge(ledger, charge, blocks, _watch(task, version), _about(version))


def released_label_count(
    ledger: Ledger,
    data: SiteData,
    config: SiteConfig,
    units: Sequence[str],
    epsilon: float,
    noise: NoiseSource,
    *,
    task: Task,
    version: int,
) -> int:
    """How many units have labelled examples that wait, as it may leave the site.

    Exact for an infinite epsilon. Otherwise noised, one unit moving it by 1 whatever its number of rows, and charged to the
    next feedback blocks, which new units will join. Where units come back, those of every block that can pay are counted,
    and all these blocks pay, whoever came; a row that names no unit is then nobody's, and not counted.

    Args:
        ledger: the site's.
        data: the site's rows by block.
        config: budgets of blocks that are opened here.
        units: of each waiting example; may be empty.
        epsilon: of this release.
        noise: for this release alone.
        task: the task.
        version: the version in service.

    Raises:
        BudgetExhausted: the next feedback blocks cannot pay; then nothing is charged and nothing may be told.
    """
    charge = NonPrivateCharge() if math.isinf(epsilon) else PureCharge(epsilon=epsilon)
    able: tuple[str, ...] = ()
    if task.privacy.unit_column is None:
        count = len({unit or f"\0{at}" for at, unit in enumerate(units)})
    else:
        able = ledger.admitting(charge, _blocks(data))
        count = len({unit for unit in units if unit and data.home_block(unit) in {None, *able}})
    blocks = (*able, *_next_blocks(ledger, data, config))
    _charge(ledger, charge, blocks, f"labels-{task.name}-{version}", "number of labelled units")
    if isinstance(charge, NonPrivateCharge):
        return count
    (noised,) = noised_counts((count,), 1 / epsilon, noise)
    return max(noised, 0)


def _blocks(data: SiteData) -> tuple[str, ...]:
    return (*data.training_blocks, *data.evaluation_blocks())


def _next_blocks(ledger: Ledger, data: SiteData, config: SiteConfig) -> tuple[str, str]:
    """The next feedback blocks, opened."""
    training, evaluation = data.next_feedback_blocks
    ledger.open_block(training, config.training_budget.epsilon, config.training_budget.delta)
    ledger.open_block(evaluation, config.evaluation_budget.epsilon, config.evaluation_budget.delta)
    return training, evaluation


def _charge(
    ledger: Ledger, charge: PureCharge | NonPrivateCharge, blocks: tuple[str, ...], run: str, purpose: str
) -> None:
    reservation = ledger.reserve(charge, blocks, run, purpose)
    if not isinstance(charge, NonPrivateCharge):  # an exact release is settled as it is reserved
        ledger.settle(reservation, charge)


def _watch(task: str, version: int) -> str:
    return f"watch-{task}-{version}"


def _about(version: int) -> str:
    return f"verdicts about version {version}"
