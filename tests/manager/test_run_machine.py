"""The queue's rules over a world that crashes, lags and is wished at: whatever happens, what was promised holds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fedloop_server.manager.machine import Wished, learn, plan
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

LIMITS = Limits()
NOW = 1_000_000.0


@dataclass
class Attempt:
    """A Flower run: its ServerApp may not have begun, drive, or be gone."""

    number: int
    run_id: str
    phase: FlowerPhase = FlowerPhase.PENDING
    driving: bool = False
    begun: bool = False

    @property
    def may_begin(self) -> bool:
        """Whether it may still come to drive its run."""
        return not self.begun and self.phase is not FlowerPhase.ENDED


@dataclass
class World:
    """Journals, locks and Flower as the manager would find them; performs what the machine decides."""

    jobs: list[Wished] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    journal: dict[str, Seen] = field(default_factory=dict)
    cancelled: dict[str, int] = field(default_factory=dict)
    now: float = NOW
    refuses: bool = False
    cannot_stop: bool = False
    log: list[Decision] = field(default_factory=list)

    def submit(self, run_id: str, **facts: object) -> None:
        job = Job.model_validate({"run_id": run_id, "task": "t", "submitted_unix": self.now, **facts})
        self.jobs.append(Wished(job))
        self.journal[run_id] = Seen()

    def wish(self, run_id: str, wish: Wish) -> None:
        self.jobs = [replace(e, wish=wish) if e.job.run_id == run_id else e for e in self.jobs]

    def job(self, run_id: str) -> Job:
        return next(e.job for e in self.jobs if e.job.run_id == run_id)

    def driver(self, run_id: str) -> Attempt | None:
        return next((a for a in self.attempts if a.run_id == run_id and a.driving), None)

    def seen(self, run_id: str) -> Seen:
        job = self.job(run_id)
        known = [a.phase for a in self.attempts if a.number == job.flower_run]
        flower = known[0] if known else FlowerPhase.UNKNOWN
        return replace(self.journal[run_id], driven=self.driver(run_id) is not None, flower=flower)

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        step = plan(self.jobs, {e.job.run_id: self.seen(e.job.run_id) for e in self.jobs}, self.now, LIMITS)
        self.jobs = list(step.jobs)
        for decision in step.decisions:
            self.log.append(decision)
            self.perform(decision)

    def settle(self, ticks: int = 60) -> None:
        for _ in range(ticks):
            self.tick()

    def perform(self, decision: Decision) -> None:
        match decision:
            case StartAttempt(run_id=run_id) if self.refuses:
                self._learn(run_id, AttemptRefused(run_id, "the SuperLink cannot be reached"))
            case StartAttempt(run_id=run_id):
                self.journal[run_id] = replace(self.journal[run_id], end=None)
                number = len(self.attempts) + 1
                self.attempts.append(Attempt(number, run_id))
                self._learn(run_id, AttemptTaken(run_id, number))
            case StopAttempt(run_id=run_id, flower_run=number) if not self.cannot_stop:
                attempt = self.attempts[number - 1]
                attempt.phase = FlowerPhase.ENDED
                self._learn(run_id, AttemptStopped(run_id, number, 10, 20))
            case KillDriver(run_id=run_id):
                self.die(run_id)
            case NoteStopped(run_id=run_id) if self.driver(run_id) is None:
                self.journal[run_id] = replace(self.journal[run_id], end="stopped")
            case NoteFailed(run_id=run_id) if self.driver(run_id) is None:
                self.journal[run_id] = replace(self.journal[run_id], end="failed")
            case PostCancel(run_id=run_id, attempt=attempt_number):
                self.cancelled[run_id] = attempt_number
                self._learn(run_id, CancelPosted(run_id, attempt_number))
            case PlanNext(run_id=run_id, not_before=at):
                before = self.job(run_id)
                self.submit(
                    f"{before.series}-{before.turn + 1}",
                    status=Status.SCHEDULED,
                    not_before=at,
                    every_seconds=before.every_seconds,
                    series=before.series,
                    turn=before.turn + 1,
                )
            case _:
                pass

    def _learn(self, run_id: str, outcome: Outcome) -> None:
        self.jobs = [
            replace(e, job=learn(e.job, outcome, self.now, LIMITS)) if e.job.run_id == run_id else e for e in self.jobs
        ]

    # What ServerApps do.

    def take_up(self, attempt: Attempt) -> None:
        """A ServerApp begins, unless another drives the run."""
        attempt.phase, attempt.begun = FlowerPhase.RUNNING, True
        if self.driver(attempt.run_id) is None and self.journal[attempt.run_id].end is None:
            attempt.driving = True
            known = self.journal[attempt.run_id]
            self.journal[attempt.run_id] = replace(known, attempt=known.attempt + 1)

    def close_round(self, run_id: str) -> None:
        self.journal[run_id] = replace(self.journal[run_id], rounds=self.journal[run_id].rounds + 1)

    def end(self, run_id: str, end: End) -> None:
        self.journal[run_id] = replace(self.journal[run_id], end=end)
        self.die(run_id)

    def die(self, run_id: str) -> None:
        for attempt in self.attempts:
            if attempt.run_id == run_id and attempt.driving:
                attempt.driving = False


RUNS = ("a", "b", "c")


class AnyHistory(RuleBasedStateMachine):
    """Runs are submitted, wished at, crash and go on in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(run=st.sampled_from(RUNS), later=st.sampled_from([0.0, 30.0]))
    def submit(self, run: str, later: float) -> None:
        if run not in self.world.journal:
            status = Status.SCHEDULED if later else Status.QUEUED
            self.world.submit(run, not_before=self.world.now + later, status=status)

    @rule(run=st.sampled_from(RUNS), wish=st.sampled_from(list(Wish)))
    def wish(self, run: str, wish: Wish) -> None:
        self.world.wish(run, wish)

    @rule(seconds=st.sampled_from([0.1, 1.0, 20.0, 200.0]))
    def tick(self, seconds: float) -> None:
        self.world.tick(seconds)

    @rule(refuses=st.booleans(), cannot_stop=st.booleans())
    def outage(self, refuses: bool, cannot_stop: bool) -> None:
        self.world.refuses, self.world.cannot_stop = refuses, cannot_stop

    @precondition(lambda self: self.world.attempts)
    @rule(data=st.data())
    def serverapp(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.world.attempts))
        if attempt.may_begin:
            if data.draw(st.booleans()):
                self.world.take_up(attempt)
            else:  # Flower has started its process, which imports
                attempt.phase = FlowerPhase.RUNNING

    @rule(run=st.sampled_from(RUNS), what=st.sampled_from(["round", "die", "finished", "failed"]))
    def drive(self, run: str, what: str) -> None:
        if self.world.driver(run) is None:
            return
        match what:
            case "round":
                self.world.close_round(run)
            case "die":
                self.world.die(run)
            case "finished":
                self.world.end(run, "finished")
            case _:
                self.world.end(run, "failed")

    @invariant()
    def at_most_one_attempt_of_a_run_can_begin_or_go_on(self) -> None:
        for run in self.world.journal:
            pending = [a for a in self.world.attempts if a.run_id == run and a.may_begin]
            driving = [a for a in self.world.attempts if a.run_id == run and a.driving]
            assert len(driving) <= 1
            assert len(pending) <= 1
            assert not (pending and driving), "an attempt was asked for while another drives"

    @invariant()
    def one_run_holds_the_place(self) -> None:
        assert sum(e.job.status.alive for e in self.world.jobs) <= LIMITS.parallel

    @invariant()
    def no_run_is_lost(self) -> None:
        assert [e.job.run_id for e in self.world.jobs] == list(self.world.journal)

    @invariant()
    def a_status_that_is_over_is_what_the_journal_says(self) -> None:
        for entry in self.world.jobs:
            job, journal = entry.job, self.world.journal[entry.job.run_id]
            if job.status.over and journal.attempt and journal.end is not None:
                assert job.status == journal.end

    @invariant()
    def nothing_drives_or_may_come_to_drive_a_run_that_was_stopped(self) -> None:
        for entry in self.world.jobs:
            if entry.job.status is Status.STOPPED:
                of_run = [a for a in self.world.attempts if a.run_id == entry.job.run_id]
                assert not any(a.driving for a in of_run)
                begins = self.world.journal[entry.job.run_id].end is None
                assert not (begins and any(a.may_begin for a in of_run))

    @invariant()
    def a_cancel_never_names_an_attempt_that_may_still_come(self) -> None:
        for run, attempt in self.world.cancelled.items():
            assert attempt <= self.world.journal[run].attempt

    @invariant()
    def state_survives_its_document(self) -> None:
        for entry in self.world.jobs:
            assert Job.model_validate_json(entry.job.model_dump_json()) == entry.job

    def teardown(self) -> None:
        """From any state: stops end what is there, and a new run then gets its turn and its attempt."""
        world = self.world
        world.refuses = world.cannot_stop = False
        for run in world.journal:
            world.wish(run, Wish.STOP)
        world.settle(100)
        assert all(e.job.settled for e in world.jobs), [e.job for e in world.jobs]
        assert all(e.job.status.over for e in world.jobs)
        world.submit("last")
        world.settle(3)
        assert any(a.run_id == "last" and a.phase is FlowerPhase.PENDING for a in world.attempts)


AnyHistory.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestAnyHistory = AnyHistory.TestCase


def begun(**facts: object) -> World:
    """A world in which run ``a`` is driven."""
    world = World()
    world.submit("a", **facts)
    world.tick()
    world.take_up(world.attempts[0])
    world.tick()
    assert world.job("a").status is Status.RUNNING
    return world


def test_a_dead_attempt_is_followed_at_once() -> None:
    world = begun()
    world.die("a")
    world.tick()  # Flower is told
    world.tick(0.1)  # and asked
    assert [type(d) for d in world.log[-2:]] == [StopAttempt, StartAttempt]
    assert world.job("a").status is Status.STARTING
    assert world.job("a").attempts == 2


def test_attempts_that_die_without_a_round_are_given_up_and_the_next_run_comes() -> None:
    world = begun()
    world.submit("b")
    for _ in range(200):
        for attempt in world.attempts:
            if attempt.run_id == "a" and attempt.phase is FlowerPhase.PENDING:
                world.take_up(attempt)
        world.die("a")
        world.tick()
    assert world.job("a").status is Status.FAILED
    assert world.job("a").reason == "given up after 5 attempts that died one after another without closing a round"
    assert world.job("a").attempts == LIMITS.fruitless
    assert world.journal["a"].end == "failed"
    assert world.cancelled["a"] == 5
    assert world.job("b").status is Status.STARTING


def test_a_run_that_closes_rounds_between_its_deaths_goes_on() -> None:
    world = begun()
    for _ in range(20):
        world.close_round("a")
        world.die("a")
        world.settle(2)
        world.take_up(world.attempts[-1])
        world.tick()
    assert world.job("a").status is Status.RUNNING
    assert world.job("a").attempts == 21


def test_a_driver_that_ignores_the_stop_is_ended_then_killed() -> None:
    world = begun()
    world.perform = lambda decision: world.log.append(decision)  # type: ignore[method-assign]
    world.wish("a", Wish.STOP)
    world.settle(40)
    kills = [d for d in world.log if isinstance(d, KillDriver)]
    assert [kills[0].force, kills[-1].force] == [False, True]
    assert PostCancel("a", 1) in world.log


def test_an_outage_of_the_superlink_costs_no_attempt() -> None:
    world = World(refuses=True)
    world.submit("a")
    world.settle(60)
    assert world.job("a").status is Status.STARTING
    assert world.job("a").reason == "waits: the SuperLink cannot be reached"
    world.refuses = False
    world.settle(35)
    assert world.job("a").flower_run == 1
    assert world.job("a").fruitless == 0


def test_a_start_that_is_refused_for_ever_fails_and_says_why() -> None:
    world = World(refuses=True)
    world.submit("a")
    world.settle(1200)
    assert world.job("a").status is Status.FAILED
    assert "did not take it 30 times" in world.job("a").reason


def test_a_resumed_run_goes_to_the_end_of_the_queue_and_gets_a_new_attempt() -> None:
    world = begun()
    world.wish("a", Wish.STOP)
    world.settle(40)
    assert world.job("a").status is Status.STOPPED
    world.submit("b", not_before=world.now)
    world.wish("a", Wish.RESUME)
    world.settle(3)
    assert world.job("b").status is Status.STARTING
    assert world.job("a").status is Status.QUEUED
    world.wish("b", Wish.STOP)
    world.settle(10)
    assert world.job("a").status is Status.STARTING
    assert world.journal["a"].end is None


def test_a_resume_while_it_is_being_stopped_waits_until_all_have_let_go() -> None:
    world = begun()
    world.cannot_stop = True
    world.wish("a", Wish.STOP)
    while world.job("a").status is not Status.STOPPING:
        world.tick()
    world.wish("a", Wish.RESUME)
    world.settle(20)
    assert world.job("a").status is Status.STOPPING
    world.cannot_stop = False
    world.settle(40)
    assert world.job("a").status is Status.STARTING
    assert len(world.attempts) == 2


def test_a_series_plans_its_next_run_when_one_starts_and_skips_what_was_missed() -> None:
    world = World()
    world.submit("n-1", status=Status.SCHEDULED, not_before=NOW - 250.0, every_seconds=100.0, series="n")
    world.settle(3)
    following = world.job("n-2")
    assert following.status is Status.SCHEDULED
    assert following.not_before == NOW + 50.0
    assert [e.job.run_id for e in world.jobs] == ["n-1", "n-2"]


DAY = 86_400.0


def nightly(*, every: float | None = DAY, not_before: float = NOW + 100.0) -> World:
    """A world in which run ``n`` was stopped before it began."""
    world = World()
    series = None if every is None else "n"
    world.submit("n", status=Status.SCHEDULED, not_before=not_before, every_seconds=every, series=series)
    world.wish("n", Wish.STOP)
    world.tick()
    assert world.job("n").status is Status.STOPPED
    return world


def test_a_run_that_never_began_is_resumed_to_its_time_and_its_series_keeps_its_times() -> None:
    world = nightly()
    world.wish("n", Wish.RESUME)
    world.settle(3)
    assert (world.job("n").status, world.job("n").not_before) == (Status.SCHEDULED, NOW + 100.0)
    world.tick(100.0)
    assert world.job("n").status is Status.STARTING
    assert world.job("n-2").not_before == NOW + 100.0 + DAY


@dataclass(frozen=True)
class Late:
    """A run that missed its time while it was stopped, and when it may begin again."""

    name: str
    every: float | None
    waits: float


LATE = (
    Late("once: now", None, 300.0 + 2),
    Late("of a series: at the next time", 1000.0, 1000.0 + 100.0),
    Late("of a series: some times are missed", 60.0, 100.0 + 4 * 60.0),
)


@pytest.mark.parametrize("late", LATE, ids=lambda late: late.name)
def test_a_run_that_never_began_and_missed_its_time_has_the_next(late: Late) -> None:
    world = nightly(every=late.every)
    world.tick(300.0)
    world.wish("n", Wish.RESUME)
    world.tick()
    assert world.job("n").not_before == NOW + late.waits


@pytest.mark.parametrize("stopped", [True, False])
def test_a_run_that_is_let_begin_at_once_takes_its_own_turn_of_the_series(stopped: bool) -> None:
    world = nightly()
    if not stopped:
        world.wish("n", Wish.RESUME)
        world.tick()
    world.wish("n", Wish.RESUME_NOW)
    world.tick()
    assert world.job("n").status is Status.STARTING
    assert world.job("n-2").not_before == NOW + 100.0 + DAY


def test_a_run_that_was_to_begin_at_once_and_is_stopped_again_keeps_its_time() -> None:
    world = begun()
    stopped = nightly()
    world.jobs += stopped.jobs
    world.journal |= stopped.journal
    world.wish("n", Wish.RESUME_NOW)
    world.tick()
    assert world.job("n").status is Status.QUEUED, "the other run goes on"
    world.wish("n", Wish.STOP)
    world.tick()
    world.wish("n", Wish.RESUME)
    world.tick()
    assert (world.job("n").status, world.job("n").not_before) == (Status.SCHEDULED, NOW + 100.0)


@pytest.mark.parametrize(
    ("status", "wish"), [("finished", Wish.RESUME), ("finished", Wish.STOP), ("failed", Wish.STOP)]
)
def test_a_wish_that_makes_no_sense_is_dropped(status: str, wish: Wish) -> None:
    world = World()
    world.submit("a", status=Status(status))
    world.journal["a"] = Seen(attempt=1, end=status)  # type: ignore[arg-type]
    world.wish("a", wish)
    world.tick()
    assert world.jobs[0] == Wished(world.job("a"), Wish.NONE)
    assert world.job("a").status == status


def test_a_silent_attempt_that_flower_calls_running_is_replaced() -> None:
    world = World()
    world.submit("a")
    world.tick()
    world.attempts[0].phase = FlowerPhase.RUNNING
    world.settle(119)
    assert len(world.attempts) == 1
    world.settle(5)
    assert len(world.attempts) == 2
