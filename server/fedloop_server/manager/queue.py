"""The queue in the coordinator's database: people submit and wish, the manager keeps the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from fedloop_core.errors import RunError
from fedloop_server.database import Database
from fedloop_server.manager.state import Job, Status, Wish
from fedloop_server.manager.tables import QueuedRunRow
from fedloop_server.registry.tables import RunRow
from fedloop_server.runs.plan import RunPlan

__all__ = ["QueuedRun", "RunQueue"]


@dataclass(frozen=True)
class QueuedRun:
    """A run in the queue; ``number`` is the order of submission, ``wish`` what a person wants and nobody has taken up."""

    number: int
    job: Job
    wish: Wish


class RunQueue:
    """Runs in the order of their submission. Every call is one transaction; ``clock`` gives seconds since 1970.

    All methods raise ``StorageError`` when the database fails.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self.database = database
        self._clock = clock

    def close(self) -> None:
        """Closes the database."""
        self.database.close()

    def submit(self, plan: RunPlan, *, not_before: float = 0.0, every_seconds: float | None = None) -> QueuedRun:
        """Adds a run whose plan is stored.

        Args:
            plan: the run.
            not_before: seconds since 1970; in the future, the run is scheduled.
            every_seconds: start another run of the same plan again and again, that long after the start before.

        Raises:
            RunError: the queue has a run of this name.
        """
        now = self._clock()
        job = Job(
            run_id=plan.run_id,
            task=plan.task.name,
            status=Status.SCHEDULED if not_before > now else Status.QUEUED,
            not_before=max(not_before, now),
            every_seconds=every_seconds,
            series=plan.run_id if every_seconds is not None else None,
            submitted_unix=now,
            since=now,
        )
        with self.database.writing() as session:
            return _insert(session, job)

    def find(self, run_id: str) -> QueuedRun | None:
        """One run; None when the queue does not have it."""
        with self.database.reading() as session:
            row = _row(session, run_id)
            return None if row is None else _queued(row)

    def list(self) -> tuple[QueuedRun, ...]:
        """All runs."""
        with self.database.reading() as session:
            return tuple(map(_queued, session.scalars(select(QueuedRunRow).order_by(QueuedRunRow.number))))

    def unsettled(self) -> tuple[QueuedRun, ...]:
        """The runs for which something is left to do."""
        open_or_wished = or_(QueuedRunRow.settled.is_(False), QueuedRunRow.wish != Wish.NONE.value)
        query = select(QueuedRunRow).where(open_or_wished).order_by(QueuedRunRow.number)
        with self.database.reading() as session:
            return tuple(map(_queued, session.scalars(query)))

    def wish_stop(self, run_id: str) -> Wish:
        """Wants a run to stop; the manager sees to it. A wish to resume that nobody has taken up yet is taken back.

        Returns:
            The wish that is taken back: ``RESUME`` or ``NONE``.

        Raises:
            RunError: it is not in the queue, or over and nobody wants it to go on.
        """
        with self.database.writing() as session:
            row = _known(session, run_id)
            status, pending = _queued(row).job.status, Wish(row.wish)
            if status.over and not pending.resumes:
                raise RunError(
                    f"run {run_id} is {status} and cannot be stopped.",
                    hint=f"`fedloop run show {run_id}` says how it ended.",
                )
            row.wish = (Wish.NONE if status.over else Wish.STOP).value
            return Wish.RESUME if pending.resumes else Wish.NONE

    def wish_resume(self, run_id: str, *, at_once: bool = False) -> Wish:
        """Wants a run to go on that was stopped or failed, or that is about to be.

        A wish to stop that nobody has taken up yet is taken back. Its driver may have heeded it already: then the manager
        lets the run go on from there.

        Args:
            run_id: the run.
            at_once: one that never began does not wait for its time, nor does one that waits for it now.

        Returns:
            The wish that is taken back: ``STOP`` or ``NONE``.

        Raises:
            RunError: it is not in the queue, has finished, or goes on and nobody wants it to stop.
        """
        with self.database.writing() as session:
            row = _known(session, run_id)
            status, pending = _queued(row).job.status, Wish(row.wish)
            if status is Status.FINISHED:
                raise RunError(
                    f"run {run_id} has finished: there is nothing to resume.",
                    hint="`fedloop run start TASK --warm-from VERSION` trains its version further.",
                )
            goes_on = not status.over and status is not Status.STOPPING  # which is queued again when all have let go
            early = at_once and status is Status.SCHEDULED
            if goes_on and pending is Wish.NONE and not early:
                sooner = (
                    f" `fedloop run resume {run_id} --now` starts it at once." if status is Status.SCHEDULED else ""
                )
                hint = f"`fedloop run show {run_id}` says how it stands.{sooner}"
                raise RunError(f"run {run_id} is {status}: it goes on by itself.", hint=hint)
            resumes = Wish.RESUME_NOW if at_once else Wish.RESUME
            row.wish = (Wish.NONE if status.waiting and not early else resumes).value
            return pending if pending is Wish.STOP else Wish.NONE

    def used_names(self) -> frozenset[str]:
        """Every name that a run has or had: sites know runs by their names for longer than the coordinator keeps them."""
        with self.database.reading() as session:
            return frozenset((*session.scalars(select(QueuedRunRow.run_id)), *session.scalars(select(RunRow.id))))

    def remove(self, run_id: str, first: Callable[[], object]) -> None:
        """Takes a run out, if it is there, after ``first`` was done; nothing is taken out when that raises.

        Raises:
            RunError: something is left to do for it, or a person wants something of it.
        """
        with self.database.writing() as session:
            row = _row(session, run_id)
            if row is not None:
                if not row.settled or row.wish != Wish.NONE.value:
                    raise RunError(
                        f"run {run_id} is not over.", hint=f"`fedloop run show {run_id}` says how it stands."
                    )
                session.delete(row)
            first()

    def stop_wished(self, run_id: str) -> bool:
        """Whether a person wants the run to stop, from the wish until the run is over."""
        found = self.find(run_id)
        if found is None:
            return False
        return found.wish is Wish.STOP or found.job.status is Status.STOPPING

    def keep(self, before: Sequence[QueuedRun], after: Sequence[QueuedRun], new: Iterable[Job] = ()) -> None:
        """What the manager made of runs, and runs that follow them, in one transaction.

        A wish that came meanwhile stays: only the wish that the manager saw is taken back.
        """
        with self.database.writing() as session:
            for seen, made in zip(before, after, strict=True):
                if seen == made:
                    continue
                row = _known(session, made.job.run_id)
                if row.wish == seen.wish.value:
                    row.wish = made.wish.value
                row.status, row.settled = made.job.status.value, made.job.settled
                row.job = made.job.model_dump_json()
            for job in new:
                _insert(session, job)


def _insert(session: Session, job: Job) -> QueuedRun:
    if _row(session, job.run_id) is not None:
        raise RunError(f"there is a run {job.run_id} already.", hint="Choose another --name.")
    row = QueuedRunRow(
        run_id=job.run_id,
        status=job.status.value,
        settled=job.settled,
        wish=Wish.NONE.value,
        job=job.model_dump_json(),
    )
    session.add(row)
    session.flush()
    return _queued(row)


def _row(session: Session, run_id: str) -> QueuedRunRow | None:
    return session.scalars(select(QueuedRunRow).where(QueuedRunRow.run_id == run_id)).one_or_none()


def _known(session: Session, run_id: str) -> QueuedRunRow:
    row = _row(session, run_id)
    if row is None:
        raise RunError(f"there is no run {run_id} in the queue.", hint="`fedloop run list` names them all.")
    return row


def _queued(row: QueuedRunRow) -> QueuedRun:
    return QueuedRun(row.number, Job.model_validate_json(row.job), Wish(row.wish))
