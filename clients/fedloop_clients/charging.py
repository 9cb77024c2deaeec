"""Charging one run's releases: within what the task allows for the run, and what the blocks hold for life."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from fedloop_clients.cancelling import WatchedRun
from fedloop_clients.context import RunContext
from fedloop_clients.privacy.affording import blocks_short_of_run
from fedloop_clients.privacy.ledger import Head, Ledger, Reservation
from fedloop_clients.privacy.planning import Ceiling, PrivacyPlan, plan_run
from fedloop_core.errors import BudgetExhausted, EnvelopeRefused, PolicyRefused
from fedloop_core.federation.rules import PolicyRule
from fedloop_core.privacy.accounting import check_delta, epsilon, epsilon_at, rdp_at
from fedloop_core.privacy.charges import Charge, NonPrivateCharge, PureCharge
from fedloop_proto.coordination.v1.coordination_pb2 import PrivacySpend

__all__ = ["RunCharges", "epsilon_of_run"]

_LOG = logging.getLogger(__name__)
_ROUNDING = 1e-6  # relative slack when rounds, charged one by one, add up to the whole run


def epsilon_of_run(charges: Sequence[Charge], delta: float, order: float | None = None) -> float:
    """Epsilon at ``delta`` of a run's charges to one block.

    What is charged to training rows is planned from the number of units told, so that number may decide which order
    is best. Pure epsilons are therefore added plainly, and only the rest is composed.

    Args:
        charges: of the run, to one block.
        delta: beside epsilon.
        order: at which the rest is composed, fixed before the first of it. Without one at its best order: that tells of a
            run afterwards, and decides nothing.
    """
    pure = math.fsum(charge.epsilon * charge.count for charge in charges if isinstance(charge, PureCharge))
    rest = [charge for charge in charges if not isinstance(charge, PureCharge)]
    if order is None or not rest:
        return pure + epsilon(rest, delta)
    return pure + epsilon_at(order, math.fsum(rdp_at(charge, order) for charge in rest), delta)


@dataclass(frozen=True)
class RunCharges:
    """The charges of one question of a run at one site's ledger.

    ``received``: digest of the arrays that came with the question, or nothing. ``held``: the reservations of what was
    released for it so far, which stand in full until the answer is kept; ``answered``: digests of the arrays of that answer.
    """

    ledger: Ledger
    context: RunContext
    received: bytes = b""
    held: list[Reservation] = field(default_factory=list)
    answered: list[bytes] = field(default_factory=list)

    def require_planned(self, what: str, asked: int, planned: int) -> None:
        """Refuses a question that plans other rounds or evaluations than the task that was described; 0 names none.

        Raises:
            PolicyRefused: rule ``planned``.
        """
        if asked not in {0, planned}:
            raise PolicyRefused(
                f"run {self.context.known.run_id} was described with {planned} {what}; {asked} are planned now.",
                hint="Noise is found once, for the task as it was described. Start a new run for another one.",
                rule=PolicyRule.PLANNED.value,
            )

    def plan(self) -> PrivacyPlan | None:
        """The run's plan, found once from the task that was described and the number of units that the site told.

        Absent when the task is not private. Nothing that is asked later changes it.

        Raises:
            EnvelopeRefused: the number of units was not told yet.
            PrivacyParameterInvalid: the task's parameters guard nothing here, or no noise is enough.
        """
        context = self.context
        if not context.task.privacy.private:
            return None
        if context.known.rows_said < 1:
            raise EnvelopeRefused(
                f"run {context.known.run_id} has no plan: the number of units was not told yet.", reason="undescribed"
            )
        if context.plan is None:
            self.check_delta()
            task = context.task
            context.plan = plan_run(task, context.known.rows_said, task.rounds.count, tuple(self._ceilings()))
        return context.plan

    def leave_out_exhausted(self, plan: PrivacyPlan | None = None) -> bool:
        """Leaves blocks out that do not hold a private run to its end; without a plan, as far as no number of units decides.

        Which ones follows from the ledger, the task and the numbers of units told: everything the coordinator knows already
        or may know, so leaving their rows out tells it nothing of them. Returns whether any was left out.

        Evaluation rows have a budget of their own, and when it is spent, training goes on without measuring there.

        Raises:
            BudgetExhausted: no block holds the run; names the first, what the run needs and what is left.
        """
        context = self.context
        if not context.task.privacy.private:
            return False
        run_id = context.known.run_id
        short = blocks_short_of_run(context.task, self.ledger, run_id, context.training_blocks, plan)
        if not short:
            return False
        if len(short) == len(context.training_blocks):
            raise next(iter(short.values()))
        for error in short.values():
            _LOG.warning("run %s trains without these rows: %s", run_id, error.message)
        context.leave_out(short)
        return True

    def require_room(self, plan: PrivacyPlan | None) -> None:
        """Refuses a private run whose number of units was told, when a block that is trained on does not hold it any more.

        Raises:
            BudgetExhausted: names the block, what the run needs and what is left.
        """
        context = self.context
        if context.task.privacy.private:
            run_id = context.known.run_id
            short = blocks_short_of_run(context.task, self.ledger, run_id, context.training_blocks, plan)
            for error in short.values():
                raise error

    def check_delta(self) -> None:
        """Refuses a private task whose delta is too large for the number of units that was told, with noise.

        Raises:
            PrivacyParameterInvalid: delta is not below one over that number.
        """
        if self.context.task.privacy.private:
            check_delta(self.context.task.privacy.delta, self.context.known.rows_said)

    @contextmanager
    def until_kept(self, watch: WatchedRun) -> Iterator[None]:
        """Settles what the body releases, once the body has kept the answer where a killed process finds it again.

        Until then nothing has left the site. A body that ``watch`` ended, and one whose process died, released nothing: asked
        for again, the same releases are carried by the reservations that stand for them, some few times. That a body
        failed by itself may depend on the rows, so it is settled in full and asked for again it is charged again.

        Raises:
            StorageError: the ledger cannot be written. What is held stands in full and carries nothing else.
        """
        try:
            yield
        except Exception:
            if watch.broke_off:
                for reservation in self.held:
                    self.ledger.broke_off(reservation)
            else:
                self._settle()
            raise
        self._settle()

    @property
    def entries(self) -> tuple[Head, ...]:
        """Names what is held, to be kept beside the answer."""
        return tuple(reservation.entry for reservation in self.held)

    def release(self, charge: Charge, blocks: tuple[str, ...], purpose: str) -> None:
        """Charges a release, which is computed afterwards.

        Raises:
            BudgetExhausted: the run's epsilon or a block's budget for life does not hold the charge.
        """
        run_id = self.context.known.run_id
        if isinstance(charge, NonPrivateCharge):
            self.ledger.reserve(charge, blocks, run_id, purpose, self.context.grounds(blocks, self.received))
            return
        reservation = self.ledger.resume(charge, blocks, run_id, purpose)
        if reservation is None:
            for block in blocks:
                self._check_run(charge, block, purpose)
            grounds = self.context.grounds(blocks, self.received)
            reservation = self.ledger.reserve(charge, blocks, run_id, purpose, grounds)
        self.held.append(reservation)

    def run_epsilon(self, blocks: tuple[str, ...]) -> float:
        """What the run has spent so far on the block that it cost most; infinite without privacy."""
        if not self.context.task.privacy.private:
            return math.inf
        run_id = self.context.known.run_id
        return max((self._epsilon(self.ledger.charges(block, run_id)) for block in blocks), default=0.0)

    def spend(self, blocks: tuple[str, ...]) -> PrivacySpend:
        """For life, of the block that spent most."""
        if not blocks:
            return PrivacySpend()
        most = max((self.ledger.spend(block) for block in blocks), key=lambda spend: spend.epsilon)
        return PrivacySpend(epsilon=most.epsilon, delta=most.delta, budget=most.budget, unlimited=most.unlimited)

    def _settle(self) -> None:
        for entry in self.entries:
            self.ledger.settle_in_full(entry, b"".join(self.answered))

    def _check_run(self, charge: Charge, block: str, purpose: str) -> None:
        context = self.context
        privacy = context.task.privacy
        allowed = privacy.epsilon if block in context.training_blocks else privacy.epsilon_of_evaluations
        before = self.ledger.charges(block, context.known.run_id)
        if self._epsilon((*before, charge)) > allowed * (1 + _ROUNDING):
            spent = self._epsilon(before)
            raise BudgetExhausted(
                f"run {context.known.run_id} has spent epsilon {spent:.3f} of {allowed:g} on block {block!r}; {purpose} "
                "does not fit any more.",
                hint="Ask for no more rounds or evaluations than were planned.",
                block=block,
                spent=spent,
                budget=allowed,
            )

    def _epsilon(self, charges: Sequence[Charge]) -> float:
        """Of the run's charges to one block, at the order of its plan: before there is one, only counts are charged."""
        plan = self.plan() if self.context.known.rows_said else None
        return epsilon_of_run(charges, self.context.task.privacy.delta, None if plan is None else plan.order)

    def _ceilings(self) -> Iterator[Ceiling]:
        for block in self.context.training_blocks:
            headroom = self.ledger.headroom(block)
            if headroom is not None:
                order, left = headroom
                own = self.ledger.charges(block, self.context.known.run_id)
                yield Ceiling(order, left + sum(rdp_at(charge, order) for charge in own))
