"""Paying for what a site tells of its devices' rows: verdicts, and how many labels have come back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from fedloop_clients.data.site_data import SiteData
from fedloop_clients.policy import SiteConfig
from fedloop_clients.privacy.ledger import Ledger
from fedloop_clients.privacy.mechanisms import noised_counts
from fedloop_core.noise import NoiseSource
from fedloop_core.privacy.charges import NonPrivateCharge, PureCharge

__all__ = ["charge_late_verdicts", "charge_verdicts", "released_label_count"]


def charge_verdicts(
    ledger: Ledger,
    data: SiteData,
    config: SiteConfig,
    charge: PureCharge | NonPrivateCharge,
    *,
    task: str,
    version: int,
) -> None:
    """Charges all verdicts about a version to the reference's blocks and to the blocks that its windows will join.

    The rows that devices see now have no block yet; those of them that come back with labels will be the next feedback
    blocks, which are opened here, so that they begin with what the verdicts cost them.

    Raises:
        BudgetExhausted: a block cannot pay; then nothing is charged and no verdict may be told.
    """
    blocks = (*data.training_blocks, *data.evaluation_blocks(), *_next_blocks(ledger, data, config))
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

    Labels may come after the version that predicted has been replaced: its verdicts were charged to other blocks.

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
    task: str,
    version: int,
) -> int:
    """How many units have labelled examples that wait, as it may leave the site.

    Exact for an infinite epsilon. Otherwise noised, one unit moving it by 1 whatever its number of rows, and charged to the
    units' home blocks and to the next feedback blocks, which the others will join.

    Args:
        ledger: the site's.
        data: the site's rows by block.
        config: budgets of blocks that are opened here.
        units: of each waiting example; an empty one is a unit of its own.
        epsilon: of this release.
        noise: for this release alone.
        task: name of the task.
        version: the version in service.

    Raises:
        BudgetExhausted: a block cannot pay; then nothing is charged and nothing may be told.
    """
    count = len({unit or f"\0{at}" for at, unit in enumerate(units)})
    blocks = (*data.home_blocks(units), *_next_blocks(ledger, data, config))
    run, purpose = f"labels-{task}-{version}", "number of labelled units"
    if math.isinf(epsilon):
        _charge(ledger, NonPrivateCharge(), blocks, run, purpose)
        return count
    _charge(ledger, PureCharge(epsilon=epsilon), blocks, run, purpose)
    (noised,) = noised_counts((count,), 1 / epsilon, noise)
    return max(noised, 0)


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
