"""What must hold before a site works on a signed instruction, beyond its signature: pure order, one refusal each."""

from __future__ import annotations

import logging

from fedloop_clients.approvals import Asked
from fedloop_clients.controls import SiteControls
from fedloop_clients.heads import LedgerGuard, countersign
from fedloop_clients.outbox import KnownRun, Outbox
from fedloop_clients.privacy.ledger import Head
from fedloop_core.audit import AuditAction
from fedloop_core.errors import EnvelopeRefused, PolicyRefused
from fedloop_core.federation.rules import PolicyRule
from fedloop_core.task.document import Task
from fedloop_proto.coordination.v1.coordination_pb2 import Instruction, LogHead

__all__ = ["TRAINS", "Admission"]

TRAINS = frozenset({"train_locally", "sum_derivatives"})
"""The kinds of work that are a round of training."""

_LOG = logging.getLogger(__name__)
_LEAST_SPARE = 3  # questions to train
_MOST = 2**63  # numbers of entries that a store takes


class Admission:
    """The checks of one site.

    Args:
        site: its name.
        controls: what a person there has set.
        guard: stops the site when its ledger was put back.
        outbox: remembers the newest head of the coordinator's audit log.
        key_id: the coordinator's key: its heads, and who signed what waits for approval.
    """

    def __init__(self, site: str, controls: SiteControls, guard: LedgerGuard, outbox: Outbox, key_id: str) -> None:
        self._site = site
        self._controls = controls
        self._guard = guard
        self._outbox = outbox
        self._key_id = key_id
        self._head: Head | None = None
        self._last: tuple[Task, Asked] | None = None

    def countersigned(self, instruction: Instruction) -> LogHead | None:
        """The head of the coordinator's audit log that the answer signs; None while none was ever named.

        Raises:
            EnvelopeRefused: the head has no digest that a log can have.
            StorageError: it cannot be remembered.
        """
        if self._head is None:
            self._head = self._outbox.coordinator_head(self._key_id)
        if instruction.HasField("audit"):
            self._head = self._remembered(_head_of(instruction.audit, self._site))
        return None if self._head is None else LogHead(sequence=self._head.sequence, digest=self._head.digest)

    def require_ledger(self, instruction: Instruction) -> None:
        """Refuses everything while the site is stopped, and begins a stop when the ledger was put back.

        Raises:
            LedgerRolledBack: the site is stopped.
            StorageError: ledger or stop cannot be read.
        """
        self._guard.require_running()
        seen = instruction.ledger_seen
        if self._guard.check(seen):
            self._controls.audit.noticed(
                AuditAction.LEDGER_ROLLED_BACK, f"site {self._site}", seen=seen.sequence, digest=seen.digest.hex()
            )
            self._guard.require_running()

    def require_policy(self, instruction: Instruction, task: Task, now_unix: int) -> None:
        """The site's own rules, then its people.

        The rules are about the task, which says what it asks for; rounds are the one thing that instructions could overdo by
        themselves without the ledger noticing, where nothing is charged: their number here, how many there are in
        ``require_rounds_left``.

        Raises:
            PolicyRefused: names the rule.
            StorageError: pause or approvals cannot be read.
        """
        policy = self._controls.policy()
        policy.check(task, self._site, now_unix)  # no task has more rounds than the site allows
        run_id, most = instruction.run_id, task.rounds.count
        if instruction.WhichOneof("work") in TRAINS and instruction.round > most:
            raise PolicyRefused(
                f"site {self._site} gives run {run_id} its {most} rounds; round {instruction.round} was asked for.",
                rule=PolicyRule.MAXIMUM_ROUNDS.value,
            )
        self._controls.approvals.require(policy.approval, self._asked(run_id, task, now_unix), self._site)

    def require_rounds_left(self, instruction: Instruction, known: KnownRun, task: Task) -> None:
        """Refuses a question to train that was not asked before, once a run has had as many as it has rounds, and some.

        A coordinator that was put back from a backup asks for rounds again, and what other sites answer then may change what
        it asks: a quarter of the rounds, and 3 at least, are spare.

        Raises:
            PolicyRefused: rule ``maximum-rounds``.
        """
        most = task.rounds.count
        if instruction.WhichOneof("work") in TRAINS and known.trained >= most + max(most // 4, _LEAST_SPARE):
            raise PolicyRefused(
                f"site {self._site} gives run {known.run_id} its {most} rounds, and has trained {known.trained} times for it.",
                hint="Start a new run.",
                rule=PolicyRule.MAXIMUM_ROUNDS.value,
            )

    def require_not_declined(self, run_id: str, task_digest: bytes) -> None:
        """Refuses a run that a person has decided against, also while it trains.

        Raises:
            PolicyRefused: rule ``declined``.
            StorageError: the decisions cannot be read.
        """
        self._controls.approvals.require_not_declined(run_id, task_digest.hex(), self._site)

    def _asked(self, run_id: str, task: Task, now_unix: int) -> Asked:
        if self._last is None or self._last[0] is not task or self._last[1].run_id != run_id:
            self._last = task, Asked.of(run_id, task, self._key_id, now_unix)  # its digest costs as much as a signature
        return self._last[1].model_copy(update={"asked_unix": now_unix})

    def _remembered(self, named: Head) -> Head:
        signed = countersign(self._head, named)
        if signed.contradicted:
            _LOG.error(
                "site %s: the coordinator names entry %d of its audit log and had named entry %d with another history: its "
                "log was cut, rewritten or put back from a copy",
                self._site,
                named.sequence,
                signed.head.sequence,
            )
            self._controls.audit.contradicted(named, signed.head)
        elif signed.head != self._head:
            self._outbox.remember_coordinator_head(self._key_id, signed.head)
        return signed.head


def _head_of(head: LogHead, site: str) -> Head:
    if not (head.sequence < _MOST and len(head.digest) == 32):
        raise EnvelopeRefused(f"site {site}: an instruction names a head that no log has.", reason="format")
    return Head(head.sequence, head.digest)
