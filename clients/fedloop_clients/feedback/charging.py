"""Paying for verdicts: every block whose rows they are about, before the first of them is told."""

from __future__ import annotations

from fedloop_clients.data.site_data import SiteData
from fedloop_clients.policy import SiteConfig
from fedloop_clients.privacy.charges import NonPrivateCharge, PureCharge
from fedloop_clients.privacy.ledger import Ledger

__all__ = ["charge_verdicts"]


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
