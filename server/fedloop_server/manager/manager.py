"""Does what the machine decides: looks at locks, journals and Flower, stores what follows, and acts.

What is decided is stored before it is done, and what became of it right after. A manager that dies in between repeats the
decision; Flower runs that it had started and not noted are stopped by the next one, before it does anything else.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Protocol

from fedloop_core.audit import AuditAction, AuditLog
from fedloop_core.errors import (
    ContentDamaged,
    FedloopError,
    ProcessFailed,
    RegistryError,
    RunBusy,
    RunError,
    StorageError,
)
from fedloop_core.federation.bundle import HOME_KEY, RUN_KEY
from fedloop_server.home import CoordinatorHome
from fedloop_server.manager.cancels import Cancels
from fedloop_server.manager.flower import FlowerStatus
from fedloop_server.manager.journals import JournalReader
from fedloop_server.manager.machine import Wished, learn, plan
from fedloop_server.manager.queue import QueuedRun, RunQueue
from fedloop_server.manager.state import (
    AttemptRefused,
    AttemptStopped,
    AttemptTaken,
    CancelPosted,
    Decision,
    End,
    FlowerPhase,
    Job,
    KillDriver,
    Limits,
    NoteFailed,
    NoteStopped,
    Outcome,
    PlanNext,
    PostCancel,
    Seen,
    StartAttempt,
    Status,
    StopAttempt,
)
from fedloop_server.runs.control import fail_run, reopen_run, stop_run
from fedloop_server.runs.lock import driver_of
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import Phase

__all__ = ["Flower", "RunManager"]

_LOG = logging.getLogger(__name__)
_ACTOR = "run-manager"
_ENDS: Mapping[Phase, End] = {Phase.FINISHED: "finished", Phase.FAILED: "failed", Phase.STOPPED: "stopped"}
_MOST_STEPS = 10  # in one tick, which others wait for
_ASK_SECONDS = 5.0  # between two questions to Flower about an attempt that nobody drives yet
_UNREAD_SECONDS = 60.0  # that plan, journal and lock may be unreadable without being damaged
_WIND_UP_SECONDS = 10.0  # that an attempt whose run is over may take to end by itself


class Flower(Protocol):
    """What the manager needs of ``FlowerControl``; all may raise ``ProcessFailed``."""

    def start(self, run_config: Mapping[str, str]) -> int:
        """Starts a Flower run; returns its id."""

    def stop(self, flower_run: int) -> None:
        """Ends one."""

    def status(self, flower_run: int) -> FlowerStatus:
        """What became of one."""

    def runs(self) -> tuple[FlowerStatus, ...]:
        """All of them."""


class RunManager:
    """Takes the queue forward, one ``tick`` about every second; one manager for each coordinator.

    Args:
        home: the coordinator's folder.
        queue: its queue.
        control: Flower's commands.
        cancels: how sites are told to drop a run.
        audit: where ends are noted that no driver notes; None leaves that out.
        limits: patience.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        home: CoordinatorHome,
        queue: RunQueue,
        control: Flower,
        cancels: Cancels,
        *,
        audit: AuditLog | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._home = home
        self._queue = queue
        self._control = control
        self._cancels = cancels
        self._audit = audit
        self._limits = Limits() if limits is None else limits
        self._clock = clock
        self._readers: dict[str, JournalReader] = {}
        self._asked: dict[str, float] = {}
        self._unreadable: dict[str, float] = {}  # since when
        self._swept = False

    def tick(self) -> None:
        """Does what is due now.

        Raises:
            StorageError: the database fails.
        """
        for _ in range(_MOST_STEPS):
            if not self.step():
                return

    def step(self) -> bool:
        """Looks once and acts; returns whether something changed, so that another step at once is worth it.

        Raises:
            StorageError: the database fails.
        """
        queue = self._queue.unsettled()
        if not queue:
            return False
        if not self._swept and not self._sweep():
            return False
        now = self._clock()
        seen = {entry.job.run_id: self._look(entry.job, now) for entry in queue}
        step = plan([Wished(entry.job, entry.wish) for entry in queue], seen, now, self._limits)
        following, postponed = self._following(step.decisions)
        made = [
            self._postponed(e, postponed[w.job.run_id], now)
            if w.job.run_id in postponed
            else replace(e, job=w.job, wish=w.wish)
            for e, w in zip(queue, step.jobs, strict=True)
        ]
        self._queue.keep(queue, made, following)
        self._tell(queue, made, seen)
        outcomes = [self._act(d, now) for d in step.decisions if d.run_id not in postponed]
        learnt = self._learn(made, [outcome for outcome in outcomes if outcome is not None])
        for entry in learnt:
            if entry.job.settled:
                self._readers.pop(entry.job.run_id, None)
        return [(e.job.status, e.job.settled) for e in queue] != [(e.job.status, e.job.settled) for e in learnt]

    def _following(self, decisions: Sequence[Decision]) -> tuple[list[Job], dict[str, str]]:
        """The next runs of series; and of runs that cannot be followed by one now, why."""
        following, postponed = [], {}
        for decision in decisions:
            if isinstance(decision, PlanNext):
                try:
                    following.append(self._next(decision))
                except FedloopError as error:
                    _LOG.warning("the run after %s cannot be planned: %s", decision.run_id, error)
                    postponed[decision.run_id] = error.message
        return following, postponed

    def _postponed(self, entry: QueuedRun, why: str, now: float) -> QueuedRun:
        """A run that begins later than it could, since the next one of its series cannot be planned; others go first."""
        job = entry.job.model_copy(update={"status": Status.QUEUED, "reason": f"waits: {why}", "since": now})
        return replace(entry, job=job.model_copy(update={"retry_at": now + self._limits.longest_backoff_seconds}))

    def _sweep(self) -> bool:
        """Stops the Flower runs that nobody knows: a manager died before it could note them."""
        known = {number for e in self._queue.unsettled() for number in (e.job.flower_run, *e.job.stale)}
        try:
            for status in self._control.runs():
                if status.phase is not FlowerPhase.ENDED and status.flower_run not in known:
                    _LOG.warning("Flower run %d belongs to no attempt and is stopped.", status.flower_run)
                    self._control.stop(status.flower_run)
        except ProcessFailed as error:
            _LOG.warning("the queue waits: %s", error)
            return False
        self._swept = True
        return True

    def _look(self, job: Job, now: float) -> Seen:
        """The lock before and after the journal: a driver that began in between is seen, one that ended has written all."""
        folder = self._home.run_folder(job.run_id)
        reader = self._readers.setdefault(job.run_id, JournalReader(folder))
        try:
            driven = driver_of(folder) is not None
            reader.news()
            driven = driver_of(folder) is not None or driven
            if not driven and not job.status.over and (job.status is not Status.SCHEDULED or job.not_before <= now):
                self._home.plan(job.run_id)
        except FedloopError as error:
            return self._unread(job, reader, error, now)
        self._unreadable.pop(job.run_id, None)
        state = reader.state
        flower = FlowerPhase.UNKNOWN if driven else self._ask(job, now)
        trouble = "" if state.trouble is None else state.trouble.reason
        return Seen(driven, state.attempt, state.completed_rounds, _ENDS.get(state.phase), flower, trouble)

    def _unread(self, job: Job, reader: JournalReader, error: FedloopError, now: float) -> Seen:
        """A run whose files cannot be read: at once where they are damaged, and after a while where that may pass."""
        first = self._unreadable.setdefault(job.run_id, now)
        attempt = max(job.journal_attempt, reader.state.attempt)
        damaged = isinstance(error, ContentDamaged) or not isinstance(error, StorageError)
        if not damaged and now - first < _UNREAD_SECONDS:
            _LOG.warning("run %s: %s", job.run_id, error)
            return Seen(job.status is Status.RUNNING, attempt, job.rounds)
        if not job.status.over:
            _LOG.error("run %s cannot go on: %s", job.run_id, error)
        return Seen(attempt=attempt, rounds=job.rounds, problem=error.message)

    def _ask(self, job: Job, now: float) -> FlowerPhase:
        """What Flower says of an attempt that nobody drives yet, asked now and then."""
        if job.status is not Status.STARTING or job.flower_run is None:
            return FlowerPhase.UNKNOWN
        if now - self._asked.get(job.run_id, 0.0) < _ASK_SECONDS:
            return FlowerPhase.UNKNOWN
        self._asked[job.run_id] = now
        try:
            return self._control.status(job.flower_run).phase
        except ProcessFailed as error:
            _LOG.warning("run %s: %s", job.run_id, error)
            return FlowerPhase.UNKNOWN

    def _act(self, decision: Decision, now: float) -> Outcome | None:
        """Does one thing; a failure is told in the log and the machine decides again at the next tick."""
        try:
            match decision:
                case StartAttempt(run_id=run_id):
                    return self._start(run_id)
                case StopAttempt(run_id=run_id, flower_run=number):
                    return self._stop(run_id, number, now)
                case PostCancel(run_id=run_id, attempt=attempt):
                    digest = self._task_digest(run_id)
                    if digest is not None:
                        self._cancels.post(run_id, attempt, digest)
                    return CancelPosted(run_id, attempt)
                case KillDriver(run_id=run_id, force=force):
                    self._kill(run_id, force=force)
                case NoteStopped(run_id=run_id):
                    stop_run(self._home, run_id)
                    self._record(AuditAction.RUN_STOPPED, run_id, "nobody drove it any more")
                case NoteFailed(run_id=run_id, reason=reason):
                    fail_run(self._home, run_id, ProcessFailed.code, reason)
                    self._record(AuditAction.RUN_FAILED, run_id, reason)
                case PlanNext():
                    pass  # it came with the rest into the database
        except FedloopError as error:
            _LOG.warning("%s of run %s failed: %s", type(decision).__name__, decision.run_id, error)
        return None

    def _task_digest(self, run_id: str) -> bytes | None:
        """Digest of a run's task, by its plan or else by the registry; None when nobody knows it."""
        try:
            return self._home.plan(run_id).task.digest
        except (ContentDamaged, RunError) as error:
            _LOG.warning("sites are told of %s without its plan: %s", run_id, error)
        try:
            with closing(self._home.registry()) as registry:
                return bytes.fromhex(registry.run(run_id).task_digest)
        except RegistryError:
            return None

    def _start(self, run_id: str) -> Outcome:
        try:
            reopen_run(self._home, run_id)
            config = {HOME_KEY: str(self._home.folder.resolve()), RUN_KEY: run_id}
            number = self._control.start(config)
        except RunBusy:
            return AttemptRefused(run_id, "another process drives it")
        except FedloopError as error:
            _LOG.warning("run %s has no attempt: %s", run_id, error)
            return AttemptRefused(run_id, error.message)
        _LOG.info("run %s: attempt as Flower run %d", run_id, number)
        return AttemptTaken(run_id, number)

    def _stop(self, run_id: str, number: int, now: float) -> Outcome | None:
        found = self._queue.find(run_id)
        if found is not None and found.job.status.over and now - found.job.since < _WIND_UP_SECONDS:
            status = self._control.status(number)
            if status.phase is not FlowerPhase.ENDED:
                return None  # its ServerApp is about to end by itself
        else:
            self._control.stop(number)
            status = self._control.status(number)
        return AttemptStopped(run_id, number, status.bytes_in, status.bytes_out)

    def _kill(self, run_id: str, *, force: bool) -> None:
        process = driver_of(self._home.run_folder(run_id))
        if process is None or process <= 1 or process == os.getpid():
            return
        _LOG.warning("run %s: its driver, process %d, is ended", run_id, process)
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL if force else signal.SIGTERM)

    def _learn(self, before: Sequence[QueuedRun], outcomes: Sequence[Outcome]) -> Sequence[QueuedRun]:
        now = self._clock()
        after = list(before)
        for outcome in outcomes:
            for at, entry in enumerate(after):
                if entry.job.run_id == outcome.run_id:
                    after[at] = replace(entry, job=learn(entry.job, outcome, now, self._limits))
        self._queue.keep(before, after)
        return after

    def _next(self, decision: PlanNext) -> Job:
        """The next run of a series: the same plan under the next free name."""
        before = next(e.job for e in self._queue.unsettled() if e.job.run_id == decision.run_id)
        turn, used, same = before.turn + 1, self._queue.used_names(), self._home.plan(before.run_id)
        while (run_id := f"{before.series}-{turn}") in used or not self._stored(same, run_id):
            turn += 1
        return Job(
            run_id=run_id,
            task=before.task,
            status=Status.SCHEDULED,
            not_before=decision.not_before,
            every_seconds=before.every_seconds,
            series=before.series,
            turn=turn,
            submitted_unix=self._clock(),
            since=self._clock(),
        )

    def _stored(self, same: RunPlan, run_id: str) -> bool:
        """Stores a plan under another name; False when the name's folder holds another plan.

        Raises:
            StorageError: it cannot be written.
        """
        try:
            self._home.store_plan(same.model_copy(update={"run_id": run_id}))
        except RunError:
            return False
        return True

    def _tell(self, before: Sequence[QueuedRun], after: Sequence[QueuedRun], seen: Mapping[str, Seen]) -> None:
        """Logs every change of status; the driver audits how a run ended, unless there never was one."""
        for old, new in zip(before, after, strict=True):
            job = new.job
            if old.job.status is job.status:
                continue
            _LOG.info("run %s is %s%s", job.run_id, job.status, f": {job.reason}" if job.reason else "")
            if job.status is Status.STOPPED and (old.job.status.waiting or not self._readers[job.run_id].state.attempt):
                self._record(AuditAction.RUN_STOPPED, job.run_id, job.reason)
            if job.status is Status.FAILED and seen[job.run_id].problem:
                self._record(AuditAction.RUN_FAILED, job.run_id, job.reason)

    def _record(self, action: AuditAction, run_id: str, reason: str) -> None:
        if self._audit is None:
            return
        try:
            self._audit.record(_ACTOR, action, run_id, reason=reason)
        except StorageError:  # a full disk stops no stop
            _LOG.exception("the audit log has no %s of run %s", action, run_id)
