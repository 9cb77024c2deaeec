"""Asking sites over Flower's Grid and taking their answers one by one as they arrive.

Who a site is, at which node it is reached and with which key it signs is the directory's word and nobody else's. A reply that
is not what was asked for becomes a failure of that site and never an exception: one bad site does not stop the others.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from flwr.serverapp import Grid

from fedloop_core.arrays import NamedArrays, digest
from fedloop_core.audit import AuditHead
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.federation.records import DESCRIBE, EVALUATE, MOMENTS, TRAIN
from fedloop_core.keys import SigningKey, VerifyingKey, seal
from fedloop_proto.coordination.v1.coordination_pb2 import Envelope, Instruction, LogHead
from fedloop_server.runs.asked import Asked, Patience, Sending
from fedloop_server.runs.behind import check_attempt
from fedloop_server.runs.heads import HeadsOfRun
from fedloop_server.runs.post import Post
from fedloop_server.runs.replies import Question, SiteAnswer, SiteFailure
from fedloop_server.runs.roster import Roster
from fedloop_server.runs.surroundings import Surroundings

__all__ = ["Exchange"]

_KINDS: Mapping[str, tuple[str, str]] = {  # of work: the message's type, and the field of the answer
    "describe_data": (DESCRIBE, "data_description"),
    "collect_moments": (MOMENTS, "moments"),
    "train_locally": (TRAIN, "local_update"),
    "sum_derivatives": (TRAIN, "derivatives"),
    "evaluate_artifact": (EVALUATE, "evaluation"),
    "aggregate_securely": (TRAIN, "securely_aggregated"),
}


class Exchange:
    """Questions and answers of one attempt of a run.

    ``clock`` is monotonic seconds; ``now_unix`` wall seconds for the expiry of instructions. A grid is asked again every
    ``poll_seconds``, a ``NearGrid`` as soon as a reply comes. ``patience`` None: that of the kind of grid, which is none for
    sites of this machine. ``catches_up``: a site that knows a later attempt ends this one, instead of being left out.
    """

    def __init__(
        self,
        grid: Grid,
        key: SigningKey,
        surroundings: Surroundings,
        *,
        run_id: str,
        attempt: int,
        task_digest: bytes,
        clock: Callable[[], float] = time.monotonic,
        now_unix: Callable[[], float] = time.time,
        poll_seconds: float = 0.05,
        patience: Patience | None = None,
        catches_up: bool = False,
    ) -> None:
        self._post = Post(grid, surroundings.doorbell, surroundings.arrivals, clock)
        self._roster = Roster(grid, surroundings, clock)
        self._heads = HeadsOfRun(surroundings.heads)
        self._audit = surroundings.audit
        self._countersignatures = surroundings.countersignatures
        self._key = key
        self._run_id = run_id
        self._attempt = attempt
        self._catches_up = catches_up
        self._task_digest = task_digest
        self._clock = clock
        self._now_unix = now_unix
        self._poll_seconds = poll_seconds
        self._patience = patience if patience is not None or self._post.near else Patience()
        self._signed: dict[str, SiteAnswer] = {}  # without arrays, since the last ``keep``, when somebody keeps them

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the active sites that are connected, sorted."""
        return self._roster.sites

    @property
    def active(self) -> frozenset[str]:
        """Names of the active sites, connected or not."""
        return self._roster.active

    @property
    def keys(self) -> Mapping[str, VerifyingKey]:
        """The keys that the active sites registered for their answers."""
        return self._roster.keys

    def look(self) -> None:
        """Looks again who is there.

        Raises:
            RunCancelled: a person wants the run to stop.
        """
        self._roster.look_now()

    def gather(self, expected: int, deadline_seconds: float, without: frozenset[str] = frozenset()) -> tuple[str, ...]:
        """Waits until ``expected`` sites are connected or the deadline has passed; returns their names, sorted.

        Fewer are waited for when fewer are active; those of ``without`` do not count.

        Raises:
            RunCancelled: a person wants the run to stop.
        """
        deadline = self._clock() + deadline_seconds
        self._roster.look_now()
        while True:
            there = tuple(site for site in self.sites if site not in without)
            may_come = len(self.active - without)
            if len(there) >= expected or (there and len(there) >= may_come) or self._clock() >= deadline:
                return there
            time.sleep(self._poll_seconds)
            self._roster.look()

    def send(
        self, round_number: int, work: Mapping[str, Instruction], arrays: NamedArrays, *, deadline_seconds: float
    ) -> Asked:
        """Prepares questions, in which only the work itself is filled in; the caller sends and polls them."""
        audit = self._audit.head() if self._audit is not None else None
        arrays_digest = digest(arrays)

        def sending(site: str, instruction: Instruction) -> Sending:
            instruction.arrays_digest = arrays_digest
            instruction.expires_unix = int(self._now_unix() + deadline_seconds) + 1
            return self._sending(site, round_number, instruction, audit)

        return Asked(
            self._post,
            self._roster,
            self._heads,
            {site: partial(sending, site, instruction) for site, instruction in work.items()},
            arrays,
            patience=self._patience,
            clock=self._clock,
            deadline_seconds=deadline_seconds,
        )

    def ask(
        self, round_number: int, work: Mapping[str, Instruction], arrays: NamedArrays, *, deadline_seconds: float
    ) -> Iterator[SiteAnswer | SiteFailure]:
        """Asks each site of ``work`` its instruction and yields as answers arrive.

        After the deadline the silent sites are yielded as failures, so that every site of ``work`` is yielded exactly once.
        The order is not fixed, but that sites which are not asked at all come first: a caller who gives up then has asked
        nobody.

        Raises:
            AttemptBehind: a site knows a later attempt.
            RunCancelled: a person wants the run to stop.
        """
        self._roster.look_now()
        asked = self.send(round_number, work, arrays, deadline_seconds=deadline_seconds)
        yield from asked.hopeless()
        asked.send()
        while asked.waiting:
            arrived = False
            for reply in asked.poll():
                arrived = True
                yield self.note(reply)
            if not asked.waiting or asked.overdue:
                break
            if not arrived:
                self._post.wait(self._poll_seconds)
        yield from asked.give_up()

    def note(self, reply: SiteAnswer | SiteFailure) -> SiteAnswer | SiteFailure:
        """Remembers an answer's countersignature; gives back what it was given.

        Raises:
            AttemptBehind: the site knows a later attempt.
        """
        if self._catches_up and isinstance(reply, SiteFailure):
            check_attempt(reply, self._attempt)
        if isinstance(reply, SiteAnswer) and self._countersignatures is not None and reply.answer.HasField("audit"):
            self._signed[reply.site] = replace(reply, arrays={})
        return reply

    def keep(self) -> None:
        """Stores the newest heads of the sites' ledgers, and the countersignatures since the last time.

        A site that has seen a later entry of the audit log than there is goes on signing that one, as it must after the log
        was put back from a copy: it is kept all the same, and ``fedloop audit verify`` tells.

        Raises:
            StorageError: they cannot be written.
        """
        self._heads.keep()
        if self._countersignatures is not None:
            for site, reply in self._signed.items():
                head = AuditHead(reply.answer.audit.sequence, reply.answer.audit.digest)
                self._countersignatures.keep(site, reply.signed, head, reply.key)
            self._signed.clear()

    def _sending(self, site: str, round_number: int, instruction: Instruction, audit: AuditHead | None) -> Sending:
        instruction.run_id = self._run_id
        instruction.attempt = self._attempt
        instruction.round = round_number
        instruction.site = site
        instruction.task_digest = self._task_digest
        instruction.protocol = PROTOCOL
        if audit is not None:
            instruction.audit.CopyFrom(LogHead(sequence=audit.sequence, digest=audit.digest))
        head = self._heads.newest(site)
        if head is not None:
            instruction.ledger_seen.CopyFrom(LogHead(sequence=head.sequence, digest=head.digest))
        message_type, result = _KINDS[str(instruction.WhichOneof("work"))]
        envelope = seal(instruction, self._key)
        sealed = hashlib.sha256(Envelope.FromString(envelope).instruction).digest()
        question = Question(self._run_id, self._attempt, round_number, site, result, sealed, head)
        return Sending(question, message_type, envelope)
