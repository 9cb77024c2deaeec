"""The site daemon: answers the coordinator's signed questions from data, ledger and outbox that never leave the site.

It trusts neither the relay that brings a question nor anything between: it acts on envelopes signed by the key that was
pinned when the site joined, and on nothing else.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace

from pydantic import ValidationError

from fedloop_clients.context import RunContext
from fedloop_clients.data.site_data import FeedbackAdded, SiteData
from fedloop_clients.endpoint import Question, Reply
from fedloop_clients.outbox import KnownRun, Outbox
from fedloop_clients.policy import SiteConfig
from fedloop_clients.privacy.ledger import Ledger
from fedloop_clients.work import Outcome, SiteWork
from fedloop_core.arrays import NamedArrays, digest
from fedloop_core.dataset import Dataset
from fedloop_core.errors import EnvelopeRefused, FedloopError, StorageError, TaskInvalid, WireError
from fedloop_core.keys import VerifyingKey, unseal
from fedloop_core.noise import NoiseSource
from fedloop_core.task.document import Task
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, Instruction, LogHead, Refusal

__all__ = ["SiteDaemon"]

_LOG = logging.getLogger(__name__)
_RUNS_KEPT = 4
Handler = Callable[[RunContext, Instruction, NamedArrays], Outcome]


class SiteDaemon:
    """One site, as a ``SiteEndpoint``. Questions are answered one at a time.

    Args:
        config: the site's name, policy and budgets.
        data: its rows.
        ledger: its ledger; blocks of the data that are not open yet are opened with the config's budgets.
        outbox: its answers.
        noise: ``SystemNoise``; only a rehearsal may give a seeded one, and then nothing it says is private.
        coordinator_key: the one key whose envelopes are acted on.
        clock: seconds since 1970.

    Raises:
        PrivacyParameterInvalid: a block is open with another budget than the config's.
        StorageError: the ledger cannot be written.
    """

    def __init__(
        self,
        config: SiteConfig,
        data: SiteData,
        ledger: Ledger,
        outbox: Outbox,
        noise: NoiseSource,
        coordinator_key: VerifyingKey,
        clock: Callable[[], int],
    ) -> None:
        self._config = config
        self._data = data
        self._ledger = ledger
        self._outbox = outbox
        self._noise = noise
        self._key = coordinator_key
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, RunContext] = OrderedDict()
        work = SiteWork(config, data, ledger, noise)
        self._handlers: Mapping[str, tuple[str, Handler]] = {
            "describe_data": ("data_description", work.describe),
            "collect_moments": ("moments", work.collect_moments),
            "train_locally": ("local_update", work.train),
            "sum_derivatives": ("derivatives", work.sum_derivatives),
            "evaluate_artifact": ("evaluation", work.evaluate_artifact),
        }
        self._open_blocks()

    @property
    def site(self) -> str:
        """The site's name."""
        return self._config.site

    def answer(self, question: Question) -> Reply:
        """Answers a question; whatever is wrong with it or with the site's own state becomes a refusal."""
        answer = Answer(site=self.site)
        with self._lock:
            try:
                return self._answer(question, answer)
            except FedloopError as error:
                _LOG.warning("site %s refuses: %s", self.site, error)
                return self._refuse(answer, error.wire())
            except Exception:  # noqa: BLE001  the boundary: nothing may leave but a code
                _LOG.exception("site %s: an unexpected error", self.site)
                return self._refuse(answer, WireError(FedloopError.code, {}))

    def add_feedback(self, rows: Dataset, evaluation_share: float) -> FeedbackAdded:
        """Takes labelled rows from the site's devices into its data; new units become new blocks with new budgets.

        A run that has begun keeps the rows it began with.

        Raises:
            StorageError: the ledger cannot be written.
        """
        with self._lock:
            noise = self._noise.derive(f"{self.site}/feedback/{self._data.admissions}")
            added = self._data.add_feedback(rows, evaluation_share, noise)
            self._open_blocks()
        return added

    def _answer(self, question: Question, answer: Answer) -> Reply:
        instruction, instruction_digest = unseal(question.envelope, self._key, site=self.site, now_unix=self._clock())
        answer.run_id, answer.attempt, answer.round = instruction.run_id, instruction.attempt, instruction.round
        answer.instruction_digest = instruction_digest
        arrays_digest = digest(question.arrays)
        if arrays_digest != instruction.arrays_digest:
            raise EnvelopeRefused(
                f"site {self.site}: the arrays are not those that the instruction names.", reason="altered"
            )
        kind = instruction.WhichOneof("work")
        if kind not in self._handlers:
            raise EnvelopeRefused(
                f"site {self.site}: an instruction asks for nothing that this version knows.",
                hint="Bring site and coordinator to neighbouring versions.",
                reason="work",
            )
        context = self._context(instruction)
        self._config.policy.check(context.task, self.site)
        key = _question_key(instruction, kind, arrays_digest)
        stored = self._outbox.find(key)
        if stored is not None:
            return stored
        result_field, handler = self._handlers[kind]
        outcome = handler(context, instruction, question.arrays)
        getattr(answer, result_field).CopyFrom(outcome.result)
        if kind == "describe_data":
            self._outbox.remember(context.known)
        reply = self._finish(answer, outcome.arrays)
        self._outbox.store(key, reply)
        return reply

    def _context(self, instruction: Instruction) -> RunContext:
        """The run of an instruction: known, begun by a description, or taken up again after a restart.

        Raises:
            EnvelopeRefused: an earlier attempt, another task under a known run, or a run that was never described.
        """
        context = self._runs.get(instruction.run_id)
        known = context.known if context is not None else self._outbox.run(instruction.run_id)
        if known is not None and instruction.attempt < known.attempt:
            raise EnvelopeRefused(
                f"site {self.site}: run {instruction.run_id} is at attempt {known.attempt}; this is {instruction.attempt}.",
                hint="Nothing was done: a newer attempt has taken over.",
                reason="attempt",
            )
        if known is None:
            if not instruction.HasField("describe_data"):
                raise EnvelopeRefused(
                    f"site {self.site}: run {instruction.run_id} was never described to this site.",
                    reason="undescribed",
                )
            document = instruction.describe_data.task_document
            known = KnownRun(instruction.run_id, instruction.attempt, document, rows_said=0)
        if context is None:
            context = RunContext.begin(known, self._task(known.task_document), self._data)
        if instruction.task_digest != context.task_digest:
            raise EnvelopeRefused(
                f"site {self.site}: run {instruction.run_id} was described with another task.", reason="task"
            )
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

    def _open_blocks(self) -> None:
        for block in self._data.training_blocks:
            budget = self._config.training_budget
            self._ledger.open_block(block, budget.epsilon, budget.delta)
        for block in self._data.evaluation_blocks():
            budget = self._config.evaluation_budget
            self._ledger.open_block(block, budget.epsilon, budget.delta)

    def _finish(self, answer: Answer, arrays: NamedArrays) -> Reply:
        head = self._ledger.head()
        answer.ledger.CopyFrom(LogHead(sequence=head.sequence, digest=head.digest))
        answer.arrays_digest = digest(arrays)
        return Reply(answer.SerializeToString(deterministic=True), dict(arrays))

    def _refuse(self, answer: Answer, error: WireError) -> Reply:
        answer.refusal.CopyFrom(Refusal(code=error.code, fields=error.fields))
        try:
            return self._finish(answer, {})
        except StorageError:
            _LOG.exception("site %s: the ledger cannot be read", self.site)
            answer.arrays_digest = digest({})
            return Reply(answer.SerializeToString(deterministic=True), {})


def _question_key(instruction: Instruction, kind: str, arrays_digest: bytes) -> bytes:
    """What makes two questions the same: run, round, work and arrays, but neither attempt nor expiry."""
    work = getattr(instruction, kind).SerializeToString(deterministic=True)
    parts = (instruction.run_id.encode(), str(instruction.round).encode(), kind.encode(), work, arrays_digest)
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "big") + part)
    return state.digest()
