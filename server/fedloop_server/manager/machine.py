"""The rules of the queue. Pure: jobs, wishes and what is seen of them give the next jobs and what is to be done.

1. A run waits until its time, then for its turn: by time, then by order of submission. As many runs go on as ``parallel``
   says (one: a SuperNode handles one message at a time).
2. At most one attempt of a run is alive: the next is asked for only when Flower was told that the one before is over.
3. Nobody holds the driver's lock and the journal is open: the attempt is dead. The next follows at once, later ones after
   a pause that doubles, and a run whose attempts die without closing a round is given up: it never holds up the others
   for ever.
4. A wish to stop ends in stopped, whatever the run is doing, unless the run ends by itself before; sites are told to drop
   what they do. A driver that does not go by itself is ended.
5. A wish to resume queues a run that was stopped or failed. One that never began goes back to its time, which of a series is
   the next; it begins at once where that is the wish, and then the series keeps its times. Wishes that make no sense any more
   are dropped.
6. How a run ended is what its journal says.
7. A run whose plan or journal cannot be read has failed, and says so. A wish to resume that comes after a wish to stop takes
   that one back: the run goes on, from its end where it had stopped already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    Wish,
)

__all__ = ["Plan", "Wished", "learn", "plan", "resumed_at"]

_UNSEEN = Seen()


@dataclass(frozen=True)
class Wished:
    """A job with the wish that stands beside it."""

    job: Job
    wish: Wish = Wish.NONE


@dataclass(frozen=True)
class Plan:
    """The next jobs, in the order in which they came, and what is to be done, in order."""

    jobs: tuple[Wished, ...]
    decisions: tuple[Decision, ...]


def plan(queue: Sequence[Wished], seen: Mapping[str, Seen], now: float, limits: Limits) -> Plan:
    """One step of the whole queue.

    Args:
        queue: all jobs in the order of their submission.
        seen: what is seen of those that are not over; a run that nobody looked at counts as not begun.
        now: seconds since 1970.
        limits: patience.
    """
    steps = [_advance(_taken_up(entry, now), seen.get(entry.job.run_id, _UNSEEN), now, limits) for entry in queue]
    places = limits.parallel - sum(step.entry.job.status.alive for step in steps)
    ready = [at for at, step in enumerate(steps) if step.entry.job.status is Status.QUEUED]
    ready.sort(key=lambda at: (steps[at].entry.job.not_before, at))
    for at in ready:
        entry = steps[at].entry
        looked = seen.get(entry.job.run_id, _UNSEEN)
        if places > 0 and not looked.driven and entry.job.retry_at <= now:
            steps[at] = _begin(entry, looked, now)
            places -= 1
    return Plan(tuple(s.entry for s in steps), tuple(decision for s in steps for decision in s.decisions))


def learn(job: Job, outcome: Outcome, now: float, limits: Limits) -> Job:
    """The job after what became of a decision."""
    match outcome:
        case AttemptTaken(flower_run=flower_run):
            job = _with(job, flower_runs=(*job.flower_runs, flower_run))
            if job.status is Status.STARTING and job.flower_run is None:
                return _with(job, flower_run=flower_run, refused=0, since=now, reason="")
            return _with(job, stale=(*job.stale, flower_run))
        case AttemptRefused(reason=reason):
            refused = job.refused + 1
            if refused >= limits.refused:
                why = f"Flower did not take it {refused} times in a row: {reason}"
                return _with(job, status=Status.STOPPING, ending="failed", since=now, reason=why, refused=refused)
            return _with(job, refused=refused, retry_at=now + limits.backoff(refused + 1), reason=f"waits: {reason}")
        case AttemptStopped(flower_run=flower_run, bytes_in=received, bytes_out=sent):
            left = tuple(number for number in job.stale if number != flower_run)
            return _with(job, stale=left, bytes_in=job.bytes_in + received, bytes_out=job.bytes_out + sent)
        case CancelPosted(attempt=attempt):
            waiting = job.to_cancel if job.to_cancel is not None and job.to_cancel > attempt else None
            return _with(job, cancelled=max(job.cancelled, attempt), to_cancel=waiting)


def resumed_at(job: Job, now: float) -> float:
    """When a run that is resumed may begin, in seconds since 1970: ``now``, unless it never began and its time is to come.

    A run of a series that missed its time has that of the next.
    """
    if job.started_unix is not None:
        return now
    due = _due(job)
    return _next_turn(due, job.every_seconds, now) if job.every_seconds is not None and due < now else max(due, now)


@dataclass(frozen=True)
class _Step:
    entry: Wished
    decisions: tuple[Decision, ...] = ()


def _with(job: Job, **change: object) -> Job:
    return job.model_copy(update=change)


def _due(job: Job) -> float:
    return job.not_before if job.due is None else job.due


def _next_turn(due: float, every: float, now: float) -> float:
    """The first time of a series after ``due`` that is still to come."""
    return due + (max(0.0, now - due) // every + 1) * every


def _resumed(job: Job, now: float, *, at_once: bool) -> Job:
    """Back in the queue, or back to its time."""
    at = resumed_at(job, now)
    status = Status.SCHEDULED if at > now and not at_once else Status.QUEUED
    due = at if at > now and at_once else None
    again = {"fruitless": 0, "refused": 0, "retry_at": 0.0, "ended_unix": None, "ending": None, "reason": ""}
    return _with(job, status=status, not_before=now if at_once else at, due=due, since=now, **again)


def _taken_up(entry: Wished, now: float) -> Wished:
    """Takes up a wish that needs nothing to be done outside, and drops one that makes no sense."""
    job, wish = entry.job, entry.wish
    match wish:
        case Wish.STOP if job.status.waiting:
            return Wished(
                _with(job, status=Status.STOPPED, ended_unix=now, since=now, reason="stopped before it began")
            )
        case Wish.STOP if job.status is Status.STOPPING:
            return Wished(_with(job, ending="stopped", reason="stopped by a person"))
        case Wish.STOP if job.status.over:
            return Wished(job)
        case Wish.RESUME | Wish.RESUME_NOW if job.status in {Status.STOPPED, Status.FAILED}:
            return Wished(_resumed(job, now, at_once=wish is Wish.RESUME_NOW))
        case Wish.RESUME_NOW if job.status is Status.SCHEDULED:
            return Wished(_resumed(job, now, at_once=True))
        case Wish.RESUME | Wish.RESUME_NOW if job.status.waiting or job.status is Status.FINISHED:
            return Wished(job)
        case _:
            return entry


def _advance(entry: Wished, seen: Seen, now: float, limits: Limits) -> _Step:
    job = entry.job
    if seen.rounds > job.rounds:
        job = _with(job, rounds=seen.rounds)
    if seen.problem and not job.status.over:
        return _over(_with(job, reason=seen.problem), entry.wish, "failed", seen, now)
    if entry.wish is Wish.STOP and job.status in {Status.STARTING, Status.RUNNING}:
        return _stop(_with(job, ending="stopped", reason="stopped by a person"), Wish.NONE, seen, now)
    if entry.wish.resumes and job.status in {Status.STARTING, Status.RUNNING} and seen.end != "stopped":
        entry = Wished(job)  # it took a wish to stop back in time
    match job.status:
        case Status.SCHEDULED if now >= job.not_before:
            return _Step(Wished(_with(job, status=Status.QUEUED, since=now), entry.wish))
        case Status.QUEUED if seen.end == "finished":
            return _Step(Wished(_ended(job, "finished", now), entry.wish))
        case Status.STARTING:
            return _starting(job, entry.wish, seen, now, limits)
        case Status.RUNNING:
            return _running(job, entry.wish, seen, now, limits)
        case Status.STOPPING:
            return _stopping(job, entry.wish, seen, now, limits)
        case _:
            return _Step(Wished(job, entry.wish), _rest(job))


def _begin(entry: Wished, seen: Seen, now: float) -> _Step:
    job = entry.job
    decisions: list[Decision] = []
    if job.every_seconds is not None and job.started_unix is None:
        decisions.append(PlanNext(job.run_id, _next_turn(_due(job), job.every_seconds, now)))
    begun = _with(
        job, status=Status.STARTING, since=now, started_unix=now if job.started_unix is None else job.started_unix
    )
    step = _ask(begun, entry.wish, seen)
    return _Step(step.entry, (*decisions, *step.decisions))


def _ask(job: Job, wish: Wish, seen: Seen) -> _Step:
    """Asks for an attempt as soon as Flower has let go of the one before."""
    job = _with(job, journal_attempt=seen.attempt, rounds_at_start=seen.rounds)
    return _Step(Wished(job, wish), (*_rest(job), *(() if job.stale else (StartAttempt(job.run_id),))))


def _starting(job: Job, wish: Wish, seen: Seen, now: float, limits: Limits) -> _Step:
    if seen.driven:
        return _Step(Wished(_with(job, status=Status.RUNNING, since=now, reason=""), wish))
    if seen.end == "finished":
        return _over(job, wish, "finished", seen, now)
    if job.flower_run is None:
        return _ask(job, wish, seen) if now >= job.retry_at else _Step(Wished(job, wish), _rest(job))
    if seen.end is not None:
        return _over(job, wish, seen.end, seen, now)
    if seen.attempt > job.journal_attempt or seen.flower is FlowerPhase.ENDED:
        return _dead(job, wish, seen, now, limits)
    if seen.flower is FlowerPhase.RUNNING and now - job.since > limits.silent_seconds:
        return _dead(job, wish, seen, now, limits)
    if seen.flower is FlowerPhase.PENDING:  # nobody has taken it up: the superexec is down or busy, and will come
        return _Step(Wished(_with(job, since=now, reason="waits for the superexec to take it up"), wish))
    return _Step(Wished(job, wish))


def _running(job: Job, wish: Wish, seen: Seen, now: float, limits: Limits) -> _Step:
    if seen.driven:
        return _Step(Wished(job, wish))
    if seen.end is not None:
        return _over(job, wish, seen.end, seen, now)
    return _dead(job, wish, seen, now, limits)


def _dead(job: Job, wish: Wish, seen: Seen, now: float, limits: Limits) -> _Step:
    """The attempt is gone: the next one, or none any more."""
    fruitless = (0 if seen.rounds > job.rounds_at_start else job.fruitless) + 1
    job = _with(job, fruitless=fruitless)
    if fruitless >= limits.fruitless:
        why = f"given up after {fruitless} attempts that died one after another without closing a round{_trouble(seen)}"
        return _stop(_with(job, ending="failed", reason=why), wish, seen, now)
    after = f"attempt {max(seen.attempt, job.attempts)} died{_trouble(seen)}; the next one follows"
    retry = _with(
        _let_go(job), status=Status.STARTING, since=now, retry_at=now + limits.backoff(fruitless), reason=after
    )
    if now < retry.retry_at:
        return _Step(Wished(retry, wish), _rest(retry))
    return _ask(retry, wish, seen)


def _trouble(seen: Seen) -> str:
    return f": {seen.trouble.rstrip('.')}" if seen.trouble else ""


def _stop(job: Job, wish: Wish, seen: Seen, now: float) -> _Step:
    """Begins to end a run; it is over when its journal says so and Flower has let go."""
    stopping = _with(_let_go(job), status=Status.STOPPING, since=now)
    stopping = _to_cancel(stopping, seen)
    return _Step(Wished(stopping, wish), _rest(stopping))


def _stopping(job: Job, wish: Wish, seen: Seen, now: float, limits: Limits) -> _Step:
    waited = now - job.since
    if seen.driven:
        kill = (KillDriver(job.run_id, force=waited > 2 * limits.go_seconds),) if waited > limits.go_seconds else ()
        return _Step(Wished(job, wish), (*_rest(job), *kill))
    if job.stale:  # an attempt that Flower has not let go of could still begin
        return _Step(Wished(job, wish), _rest(job))
    if seen.end is not None:
        return _over(job, wish, seen.end, seen, now)
    if job.ending == "failed":
        return _Step(Wished(job, wish), (NoteFailed(job.run_id, job.reason),))
    if seen.attempt == 0:
        return _over(job, wish, "stopped", seen, now)
    return _Step(Wished(job, wish), (NoteStopped(job.run_id),))


def _over(job: Job, wish: Wish, end: End, seen: Seen, now: float) -> _Step:
    """The run has ended; sites that still work for one that did not finish are told to drop it."""
    job = _let_go(job)
    if end != "finished":
        job = _to_cancel(job, seen)
    return _Step(Wished(_ended(job, end, now), wish), _rest(job))


def _ended(job: Job, end: End, now: float) -> Job:
    reason = "" if end == "finished" else job.reason
    return _with(job, status=Status(end), since=now, ended_unix=now, ending=None, reason=reason)


def _let_go(job: Job) -> Job:
    """The attempt that was alive is to be stopped at Flower too."""
    return job if job.flower_run is None else _with(job, flower_run=None, stale=(*job.stale, job.flower_run))


def _to_cancel(job: Job, seen: Seen) -> Job:
    """Sites are to be told, once, up to the last attempt that began: a later one may still come."""
    return _with(job, to_cancel=seen.attempt) if seen.attempt > job.cancelled else job


def _rest(job: Job) -> tuple[Decision, ...]:
    """What is left to do for what was before; asked for until it is done."""
    cancel = (PostCancel(job.run_id, job.to_cancel),) if job.to_cancel is not None else ()
    return (*cancel, *(StopAttempt(job.run_id, number) for number in job.stale))
