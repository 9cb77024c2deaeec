"""The site daemon: answers the coordinator's signed questions from data, ledger and outbox that never leave the site.

It trusts neither the relay that brings a question nor anything between: it acts on envelopes signed by the key that was
pinned when the site joined, and on nothing else; and it signs what it answers.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from pydantic import ValidationError

from fedloop_clients.activity import Activity, ActivityBoard, ActivityKind
from fedloop_clients.admission import TRAINS, Admission
from fedloop_clients.cancelling import Cancellations, WatchedRun
from fedloop_clients.charging import RunCharges
from fedloop_clients.context import RunContext
from fedloop_clients.controls import SiteControls
from fedloop_clients.data.site_data import FeedbackAdded, SiteData, SiteRows
from fedloop_clients.endpoint import Question, Reply
from fedloop_clients.heads import LedgerGuard
from fedloop_clients.notices import AuthoritiesTrusted, NoticeTaken, RunCalledOff, open_notice
from fedloop_clients.outbox import KeptResult, KnownRun, Outbox
from fedloop_clients.policy import SiteConfig
from fedloop_clients.privacy.ledger import Ledger
from fedloop_clients.secure_aggregation.updates import ConsortiumSource, SecureUpdates
from fedloop_clients.training.devices import DevicePool
from fedloop_clients.work import RESULTS, SiteWork
from fedloop_core.arrays import NamedArrays, digest
from fedloop_core.audit import AuditAction
from fedloop_core.dataset import Dataset
from fedloop_core.errors import (
    EnvelopeRefused,
    FedloopError,
    PolicyRefused,
    StorageError,
    TaskInvalid,
    UsageError,
    WireError,
)
from fedloop_core.federation.answers import sign_answer
from fedloop_core.federation.protocol import PROTOCOL, check_protocol
from fedloop_core.keys import SigningKey, VerifyingKey, unseal
from fedloop_core.noise import NoiseSource
from fedloop_core.task.document import Task
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, Instruction, LogHead, Refusal

__all__ = ["SiteDaemon"]

_LOG = logging.getLogger(__name__)
_RUNS_KEPT = 4
_EVALUATES = "evaluate_artifact"
_LAST_STEP_SECONDS = 2.0


class SiteDaemon:
    """One site, as a ``SiteEndpoint``. Questions are answered one at a time; notices and looks do not wait for them.

    Args:
        config: the site's name and budgets, and its policy where ``controls`` bring none.
        rows: its data; blocks of theirs that are not open yet are opened with the config's budgets.
        ledger: its ledger.
        outbox: its answers.
        noise: ``SystemNoise``; only a rehearsal may give a seeded one, and then nothing it says is private.
        coordinator_key: the one key whose envelopes are acted on.
        clock: seconds since 1970.
        signing_key: signs the answers; the coordinator knows its public half.
        controls: what a person at the site may change meanwhile; none in a rehearsal.
        protocol: the generation of messages that this side speaks.
        board: where it shows what it does.
        devices: where models are trained; the CPU when there are none.
        consortium: says with whom it sums updates securely, by the word of its people; None: with nobody.

    Raises:
        StorageError: ledger or outbox cannot be read, or what was answered cannot be settled.
    """

    def __init__(
        self,
        config: SiteConfig,
        rows: SiteRows,
        ledger: Ledger,
        outbox: Outbox,
        noise: NoiseSource,
        coordinator_key: VerifyingKey,
        clock: Callable[[], int],
        *,
        signing_key: SigningKey,
        controls: SiteControls | None = None,
        protocol: int = PROTOCOL,
        board: ActivityBoard | None = None,
        devices: DevicePool | None = None,
        consortium: ConsortiumSource | None = None,
    ) -> None:
        self._config = config
        self._rows = rows
        self._ledger = ledger
        self._outbox = outbox
        self._noise = noise
        self._key = coordinator_key
        self._clock = clock
        self._signing = signing_key
        self._controls = controls or SiteControls.in_memory(config.site, config.policy)
        self._protocol = protocol
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, RunContext] = OrderedDict()
        self._data: SiteData | None = None  # the rows whose blocks are open
        self._board = board or ActivityBoard()
        self._cancellations = Cancellations(outbox)
        self._guard = LedgerGuard(self._controls.guard, config.site, ledger, clock)
        self._admission = Admission(config.site, self._controls, self._guard, outbox, coordinator_key.key_id)
        self._secure = SecureUpdates(config.site, signing_key, consortium or _nobody, self._asked_floor, outbox)
        self._work = SiteWork(config.site, self._controls.policy, noise, devices)
        self._settle_answered()

    def _asked_floor(self) -> int | None:
        """The fewest sites behind a sum that the site's people ask for at this moment; None: they leave it to the consortium."""
        return self._controls.policy().minimum_sites

    @property
    def site(self) -> str:
        """The site's name."""
        return self._config.site

    @property
    def verifying_key(self) -> VerifyingKey:
        """The key by which the coordinator knows this site's answers."""
        return self._signing.verifying

    @property
    def board(self) -> ActivityBoard:
        """Where to wait for changes of what the site does."""
        return self._board

    def answer(self, question: Question) -> Reply:
        """Answers a question; whatever is wrong with it or with the site's own state becomes a refusal."""
        answer = Answer(site=self.site, protocol=self._protocol)
        with self._lock:
            try:
                return self._answer(question, answer)
            except FedloopError as error:
                _LOG.warning("site %s refuses: %s", self.site, error)
                self._controls.audit.refused(error, answer.run_id)
                return self._refuse(answer, error.wire())
            except Exception:  # noqa: BLE001  the boundary: nothing may leave but a code
                _LOG.exception("site %s: an unexpected error", self.site)
                return self._refuse(answer, WireError(FedloopError.code, {}))

    def notice(self, envelope: bytes) -> NoticeTaken:
        """Acts on what came over the hub: a run that is called off. New authorities are returned, for the caller to trust.

        Raises:
            EnvelopeRefused: not signed for this site, expired, older than the authorities that hold, or neither of these two
                kinds; nothing was done.
            VersionRefused: the coordinator's generation is too far away.
            StorageError: a cancel cannot be kept over a restart; until then it holds.
        """
        try:
            taken = open_notice(envelope, self._key, site=self.site, now_unix=self._clock(), protocol=self._protocol)
            if isinstance(taken, AuthoritiesTrusted):
                self._controls.trusted.accept(taken.expires_unix)
        except FedloopError as error:
            self._controls.audit.refused(error, "")
            raise
        match taken:
            case RunCalledOff():
                self.cancel(taken.run_id, taken.attempt)
            case AuthoritiesTrusted():
                self._controls.audit.noticed(AuditAction.AUTHORITY_ROLLED, "coordinator", bytes=len(taken.certificates))
        return taken

    def cancel(self, run_id: str, attempt: int) -> None:
        """Ends work on an attempt of a run, and on those before it, at the next step; later questions are refused.

        Raises:
            StorageError: it cannot be kept over a restart; until then it holds.
        """
        if self._cancellations.cancel(run_id, attempt):
            _LOG.warning("site %s: attempt %d of run %s is called off", self.site, attempt, run_id)
            self._controls.audit.noticed(AuditAction.RUN_STOPPED, run_id, attempt=attempt)

    def activity(self) -> Activity:
        """What the site does now; any thread may ask, and nobody waits for the work."""
        now = self._board.now
        try:
            stop = self._guard.stop()
            policy = self._controls.policy()
        except PolicyRefused as error:  # the settings cannot be read: nothing is begun
            return replace(now, code=error.code)
        except StorageError as error:
            return replace(now, kind=ActivityKind.STOPPED, code=error.code)
        if stop is not None:
            return replace(now, kind=ActivityKind.STOPPED, code=stop.code, leaving=policy.leaving)
        if now.kind is ActivityKind.IDLE and policy.paused:
            return replace(now, kind=ActivityKind.PAUSED, leaving=policy.leaving)
        return replace(now, leaving=policy.leaving)

    def end(self, seconds: float) -> bool:
        """Ends the daemon: work in hand has so many seconds, and then ends at its next step; nothing is answered after.

        Returns whether it has ended, so that ledger and outbox may be closed.
        """
        ended = self._lock.acquire(timeout=seconds)
        if not ended:
            self._cancellations.end_all()
            ended = self._lock.acquire(timeout=_LAST_STEP_SECONDS)
        if ended:
            self._work.close()
        return ended  # the lock is kept: whoever asks now waits until the process is gone

    def add_feedback(self, rows: Dataset, evaluation_share: float) -> FeedbackAdded:
        """Takes labelled rows from the site's devices into its data; new units become new blocks with new budgets.

        A run that has begun keeps the rows it began with.

        Raises:
            UsageError: no rows were read yet, so that nobody knows which units are at home.
            StorageError: the ledger cannot be written.
        """
        with self._lock:
            data = self._data or (self._rows if isinstance(self._rows, SiteData) else None)
            if data is None:
                raise UsageError("the site has read no rows yet that feedback could join.")
            noise = self._noise.derive(f"{self.site}/feedback/{data.admissions}")
            added = data.add_feedback(rows, evaluation_share, noise)
            self._open_blocks(data)
        return added

    def _answer(self, question: Question, answer: Answer) -> Reply:
        instruction, instruction_digest = unseal(question.envelope, self._key, site=self.site, now_unix=self._clock())
        answer.run_id, answer.attempt, answer.round = instruction.run_id, instruction.attempt, instruction.round
        answer.instruction_digest = instruction_digest
        check_protocol(instruction.protocol, peer="the coordinator", ours=self._protocol)
        head = self._admission.countersigned(instruction)
        if head is not None:
            answer.audit.CopyFrom(head)
        self._admission.require_ledger(instruction)
        arrays_digest = digest(question.arrays)
        if arrays_digest != instruction.arrays_digest:
            raise EnvelopeRefused(
                f"site {self.site}: the arrays are not those that the instruction names.", reason="altered"
            )
        kind = str(instruction.WhichOneof("work"))
        if kind not in RESULTS:
            raise EnvelopeRefused(
                f"site {self.site}: an instruction asks for nothing that this version knows.",
                hint="Bring site and coordinator to neighbouring versions.",
                reason="work",
            )
        self._cancellations.load(instruction.run_id)
        self._cancellations.check(instruction.run_id, instruction.attempt)
        context = self._context(instruction)
        self._secure.require_consortium(context.task)
        if kind == "aggregate_securely":
            told, vector = self._secure.answer(instruction, context.task)
            answer.securely_aggregated.CopyFrom(told)
            return self._finish(answer, vector, digest(vector))
        key = _question_key(instruction, kind, arrays_digest)
        if kind in TRAINS:
            self._secure.require_same(instruction, context.task, key)
        stored = self._outbox.find(key)
        if stored is None:
            self._admission.require_rounds_left(instruction, context.known, context.task)
            self._settle_answered()
            stored = self._do(context, instruction, question.arrays, key)
        result = Answer.FromString(stored.answer)
        field = RESULTS[kind]
        getattr(answer, field).CopyFrom(getattr(result, field))
        if context.task.secure and kind in TRAINS:
            self._secure.keep(instruction, context.task, key, stored)
            return self._finish(answer, {}, digest({}))
        return self._finish(answer, stored.arrays, result.arrays_digest)

    def _settle_answered(self) -> None:
        """An answer that the outbox keeps may have left: before anything else is released, its reservations carry no more."""
        for entry in self._outbox.charged():
            self._ledger.settle_in_full(entry)

    def _do(self, context: RunContext, instruction: Instruction, arrays: NamedArrays, key: bytes) -> KeptResult:
        """Does the work and keeps its result in the outbox: without heads, attempt and digest of its moment."""
        kind = str(instruction.WhichOneof("work"))
        doing = ActivityKind.EVALUATING if kind == _EVALUATES else ActivityKind.TRAINING
        watch = WatchedRun(
            instruction.run_id,
            instruction.attempt,
            self._cancellations,
            self._board,
            lambda: self._admission.require_not_declined(instruction.run_id, context.task_digest),
        )
        charges = RunCharges(self._ledger, context, instruction.arrays_digest if arrays else b"")
        with charges.until_kept(watch):
            with self._board.working(Activity(doing, instruction.run_id, instruction.round)):
                outcome = self._work.perform(charges, instruction, arrays, watch)
            result = Answer(
                run_id=instruction.run_id, round=instruction.round, site=self.site, arrays_digest=digest(outcome.arrays)
            )
            getattr(result, RESULTS[kind]).CopyFrom(outcome.result)
            stored = KeptResult(result.SerializeToString(deterministic=True), outcome.arrays)
            if outcome.arrays:
                charges.answered.append(result.arrays_digest)
            known = replace(context.known, trained=context.known.trained + (kind in TRAINS))
            self._outbox.store(key, stored, run=known, charged=charges.entries)
            context.known = known
        if kind == "describe_data":
            self._controls.audit.noticed(
                AuditAction.RUN_STARTED,
                instruction.run_id,
                task=context.task.name,
                task_digest=context.task_digest.hex(),
                purpose=context.task.purpose_name,
                attempt=instruction.attempt,
                blocks_left_out=len(context.known.left_out),
                data_gate="" if context.verdict is None else ", ".join(context.verdict.verdict.failed),
            )
        return stored

    def _context(self, instruction: Instruction) -> RunContext:
        """The run of an instruction: known, begun by a description, or taken up again after a restart.

        Raises:
            EnvelopeRefused: an earlier attempt, another task under a known run, or a run that was never described.
            PolicyRefused: the site's policy does not allow the run, or not now.
        """
        context = self._runs.get(instruction.run_id)
        known = context.known if context is not None else self._outbox.run(instruction.run_id)
        if known is not None and instruction.attempt < known.attempt:
            raise EnvelopeRefused(
                f"site {self.site}: run {instruction.run_id} is at attempt {known.attempt}; this is {instruction.attempt}.",
                hint="Nothing was done: a newer attempt has taken over.",
                reason="attempt",
                attempt=known.attempt,
            )
        if known is None:
            if not instruction.HasField("describe_data"):
                raise EnvelopeRefused(
                    f"site {self.site}: run {instruction.run_id} was never described to this site.",
                    reason="undescribed",
                )
            document = instruction.describe_data.task_document
            known = KnownRun(instruction.run_id, instruction.attempt, document, rows_said=0)
        task = context.task if context is not None else self._task(known.task_document)
        if instruction.task_digest != (context.task_digest if context is not None else task.digest):
            raise EnvelopeRefused(
                f"site {self.site}: run {instruction.run_id} was described with another task.", reason="task"
            )
        self._admission.require_policy(instruction, task, self._clock())
        if context is None:
            context = RunContext.begin(known, task, self._data_for(task))
        if context.known.attempt < instruction.attempt or instruction.run_id not in self._runs:
            self._remember(context, replace(known, attempt=instruction.attempt))
        return context

    def _task(self, document: bytes) -> Task:
        try:
            return Task.from_canonical(document)
        except ValidationError as error:
            raise TaskInvalid(
                f"site {self.site}: a task document is not valid: {error.error_count()} mistakes.",
                hint="Bring site and coordinator to neighbouring versions.",
            ) from error

    def _remember(self, context: RunContext, known: KnownRun) -> None:
        if known != context.known or known.run_id not in self._runs:
            self._outbox.remember(known)
        context.known = known
        self._runs[known.run_id] = context
        self._runs.move_to_end(known.run_id)
        if len(self._runs) > _RUNS_KEPT:
            self._runs.popitem(last=False)

    def _data_for(self, task: Task) -> SiteData:
        data = self._rows.for_task(task)
        if data is not self._data:
            self._open_blocks(data)
            self._data = data
        return data

    def _open_blocks(self, data: SiteData) -> None:
        for block in data.training_blocks:
            budget = self._config.training_budget
            self._ledger.open_block(block, budget.epsilon, budget.delta)
        for block in data.evaluation_blocks():
            budget = self._config.evaluation_budget
            self._ledger.open_block(block, budget.epsilon, budget.delta)

    def _finish(self, answer: Answer, arrays: NamedArrays, arrays_digest: bytes) -> Reply:
        head = self._ledger.head()
        answer.ledger.CopyFrom(LogHead(sequence=head.sequence, digest=head.digest))
        answer.arrays_digest = arrays_digest
        return Reply(sign_answer(answer, self._signing), dict(arrays))

    def _refuse(self, answer: Answer, error: WireError) -> Reply:
        answer.refusal.CopyFrom(Refusal(code=error.code, fields=error.fields))
        try:
            return self._finish(answer, {}, digest({}))
        except StorageError:
            _LOG.exception("site %s: the ledger cannot be read", self.site)
            answer.arrays_digest = digest({})
            return Reply(sign_answer(answer, self._signing), {})


def _nobody() -> None:
    """The consortium of a site whose people have accepted none."""


def _question_key(instruction: Instruction, kind: str, arrays_digest: bytes) -> bytes:
    """What makes two questions the same: run, round, work and arrays, but neither attempt nor expiry."""
    work = getattr(instruction, kind).SerializeToString(deterministic=True)
    parts = (instruction.run_id.encode(), str(instruction.round).encode(), kind.encode(), work, arrays_digest)
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "big") + part)
    return state.digest()
