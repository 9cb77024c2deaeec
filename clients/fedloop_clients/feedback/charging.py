"""Paying for what a site tells of its devices' rows: verdicts, and how many labels have come back."""

from __future__ import annotations

import math

from fedloop_clients.data.site_data import SiteData
from fedloop_clients.policy import SiteConfig
from fedloop_clients.privacy.charges import NonPrivateCharge, PureCharge
from fedloop_clients.privacy.ledger import Ledger
from fedloop_clients.privacy.mechanisms import noised_counts
from fedloop_core.noise import NoiseSource

__all__ = ["charge_verdicts", "released_label_count"]


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
    training, evaluation = data.next_feedback_blocks
    ledger.open_block(training, config.training_budget.epsilon, config.training_budget.delta)
    ledger.open_block(evaluation, config.evaluation_budget.epsilon, config.evaluation_budget.delta)
    blocks = (*data.training_blocks, *data.evaluation_blocks(), training, evaluation)
    reservation = ledger.reserve(charge, blocks, f"watch-{task}-{version}", f"verdicts about version {version}")
    if not isinstance(charge, NonPrivateCharge):  # an exact release is settled as it is reserved
        ledger.settle(reservation, charge)


def released_label_count(
    ledger: Ledger,
    data: SiteData,
    config: SiteConfig,
    count: int,
    epsilon: float,
    noise: NoiseSource,
    *,
    task: str,
    version: int,
) -> int:
    """The number of labelled examples as it may leave the site: exact for an infinite epsilon, else noised and charged.

    The examples have no block yet: they will join the next feedback blocks, which pay.

    Raises:
        BudgetExhausted: a block cannot pay; then nothing is charged and nothing may be told.
    """
    training, evaluation = data.next_feedback_blocks
    ledger.open_block(training, config.training_budget.epsilon, config.training_budget.delta)
    ledger.open_block(evaluation, config.evaluation_budget.epsilon, config.evaluation_budget.delta)
    run, purpose = f"watch-{task}-{version}", "number of labelled examples"
    if math.isinf(epsilon):
        ledger.reserve(NonPrivateCharge(), (training, evaluation), run, purpose)
        return count
    charge = PureCharge(epsilon=epsilon)
    reservation = ledger.reserve(charge, (training, evaluation), run, purpose)
    (noised,) = noised_counts((count,), 1 / epsilon, noise)
    ledger.settle(reservation, charge)
    return max(noised, 0)
