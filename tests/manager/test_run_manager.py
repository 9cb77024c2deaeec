"""The manager over real journals, locks, SQLite and a real SuperLink whose ServerApps are killed."""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedloop_core.audit import AuditAction
from fedloop_core.errors import DiskFull, ProcessFailed, RunError, StorageError
from fedloop_core.keys import unseal
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task.document import FederatedAveraging, LogisticModel, Privacy, Rounds, Task
from fedloop_server.home import CoordinatorHome
from fedloop_server.manager.cancels import Cancels
from fedloop_server.manager.flower import FlowerStatus
from fedloop_server.manager.journals import JournalReader, read_state
from fedloop_server.manager.manager import RunManager
from fedloop_server.manager.queue import RunQueue
from fedloop_server.manager.state import FlowerPhase, Limits, Status, Wish
from fedloop_server.runs.events import AttemptBroken, AttemptStarted, RunFinished, RunStopped, ScalerFixed
from fedloop_server.runs.lock import driver_of, drives
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import Phase

if TYPE_CHECKING:
    from tests.manager.conftest import Link

SITES = ("north", "south")


def make_plan(run_id: str) -> RunPlan:
    task = Task(
        format=1,
        name="wards",
        features=(NumericFeature(kind="numeric", name="a", range=(-4.0, 4.0)),),
        label=ClassLabel(kind="classes", name="outcome", classes=("no", "yes")),
        model=LogisticModel(kind="logistic"),
        training=FederatedAveraging(algorithm="fedavg"),
        privacy=Privacy(epsilon=math.inf),
        rounds=Rounds(count=3),
    )
    return RunPlan(run_id=run_id, task=task, seed=3, private=False, expected_sites=2, export=False, durable=False)


@dataclass
class Board:
    """Keeps notices by site."""

    posted: dict[str, list[bytes]] = field(default_factory=dict)
    fails: bool = False

    def post(self, site: str, envelope: bytes) -> object:
        if self.fails:
            raise StorageError("the disk is full.")
        self.posted.setdefault(site, []).append(envelope)
        return None


@dataclass
class ScriptedFlower:
    """Flower as a table, for what a real one does only by accident."""

    statuses: dict[int, FlowerStatus] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    down: bool = False

    def start(self, run_config: Mapping[str, str]) -> int:
        self._check("start")
        number = 100 + len(self.statuses)
        self.statuses[number] = FlowerStatus(number, FlowerPhase.PENDING, "pending")
        return number

    def stop(self, flower_run: int) -> None:
        self._check(f"stop {flower_run}")
        self.statuses[flower_run] = FlowerStatus(flower_run, FlowerPhase.ENDED, "finished:stopped", 70, 30)

    def status(self, flower_run: int) -> FlowerStatus:
        self._check(f"status {flower_run}")
        return self.statuses[flower_run]

    def runs(self) -> tuple[FlowerStatus, ...]:
        self._check("list")
        return tuple(self.statuses.values())

    def _check(self, call: str) -> None:
        self.calls.append(call)
        if self.down:
            raise ProcessFailed("`flwr` failed: the SuperLink is not there.")


@dataclass
class Office:
    """A coordinator's folder with queue, manager and what it talks to."""

    home: CoordinatorHome
    queue: RunQueue
    flower: ScriptedFlower
    board: Board
    manager: RunManager
    now: list[float]

    def submit(self, run_id: str, **options: float) -> None:
        plan = make_plan(run_id)
        self.home.store_plan(plan)
        self.queue.submit(plan, **options)

    def status(self, run_id: str) -> Status:
        found = self.queue.find(run_id)
        assert found is not None
        return found.job.status

    def ticks(self, count: int, seconds: float = 1.0) -> None:
        for _ in range(count):
            self.now[0] += seconds
            self.manager.step()

    def restarted(self) -> RunManager:
        cancels = Cancels(self.home.envelope_key, self.board, lambda: SITES)
        self.manager = RunManager(
            self.home, self.queue, self.flower, cancels, audit=self.home.audit(), clock=lambda: self.now[0]
        )
        return self.manager


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    home, now = CoordinatorHome(tmp_path / "home"), [time.time()]
    with closing(RunQueue(home.database(), lambda: now[0])) as queue:
        made = Office(home, queue, ScriptedFlower(), Board(), None, now)  # type: ignore[arg-type]
        made.restarted()
        yield made


def begin(office: Office, run_id: str) -> None:
    """The attempt's driver has journalled that it began, and is gone."""
    with drives(office.home.run_folder(run_id)):
        journal = office.home.journal(run_id)
        journal.record(AttemptStarted(attempt=journal.state.attempt + 1, unix=office.now[0]))


def test_a_run_goes_from_the_queue_to_its_end(office: Office) -> None:
    office.submit("a")
    office.submit("b")
    office.ticks(1)
    assert [office.status("a"), office.status("b")] == [Status.STARTING, Status.QUEUED]
    folder = office.home.run_folder("a")
    with drives(folder):
        journal = office.home.journal("a")
        journal.record(AttemptStarted(attempt=1, unix=0.0))
        office.ticks(3)
        assert office.status("a") is Status.RUNNING
        journal.record(ScalerFixed(checkpoint="round-0.safetensors"))
        journal.record(RunFinished(unix=1.0))
    office.ticks(1)
    assert [office.status("a"), office.status("b")] == [Status.FINISHED, Status.STARTING]
    assert office.queue.find("a").job.stale == (100,)  # type: ignore[union-attr]
    office.ticks(15)
    job = office.queue.find("a").job  # type: ignore[union-attr]
    assert (job.settled, job.bytes_in, job.bytes_out) == (True, 70, 30)
    assert office.board.posted == {}
    assert list(office.home.audit().entries()) == [], "how it ended is for its driver to say"


def test_a_stop_reaches_every_site_and_the_journal(office: Office) -> None:
    office.submit("a")
    office.ticks(1)
    begin(office, "a")
    assert not office.queue.stop_wished("a")
    office.queue.wish_stop("a")
    assert office.queue.stop_wished("a")
    office.ticks(1)
    assert office.queue.stop_wished("a"), "the driver hears of it for as long as it may drive"
    office.ticks(3)
    assert office.status("a") is Status.STOPPED
    assert not office.queue.stop_wished("a")
    assert read_state(office.home.run_folder("a")).phase is Phase.STOPPED
    assert list(office.board.posted) == list(SITES)
    for site, envelopes in office.board.posted.items():
        now = int(office.now[0])
        instruction, _ = unseal(envelopes[-1], office.home.envelope_key.verifying, site=site, now_unix=now)
        assert (instruction.WhichOneof("work"), instruction.run_id, instruction.attempt) == ("cancel_run", "a", 1)
        assert instruction.task_digest == make_plan("a").task.digest
        assert len(envelopes) == 1
    assert [e.action for e in office.home.audit().entries()] == [AuditAction.RUN_STOPPED]


def test_a_stopped_run_is_resumed_as_its_next_attempt(office: Office) -> None:
    office.submit("a")
    office.ticks(1)
    begin(office, "a")
    office.queue.wish_stop("a")
    office.ticks(4)
    office.queue.wish_resume("a")
    office.ticks(2)
    assert office.status("a") is Status.STARTING
    assert read_state(office.home.run_folder("a")).phase is Phase.GATHERING
    begin(office, "a")
    assert read_state(office.home.run_folder("a")).attempt == 2


def test_cancels_that_could_not_be_kept_are_posted_again(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    office.submit("a")
    office.ticks(1)
    begin(office, "a")
    office.board.fails = True
    office.queue.wish_stop("a")
    with caplog.at_level(logging.WARNING):
        office.ticks(5)
    assert "the disk is full" in caplog.text
    office.board.fails = False
    office.ticks(1)
    assert list(office.board.posted) == list(SITES)
    assert office.queue.unsettled() == ()


def test_a_manager_that_died_between_start_and_note_leaves_no_second_attempt(office: Office) -> None:
    office.submit("a")
    office.flower.start({})  # asked for by a manager that died before it noted it
    office.restarted()
    office.ticks(1)
    assert office.flower.statuses[100].phase is FlowerPhase.ENDED
    assert office.queue.find("a").job.flower_run == 101  # type: ignore[union-attr]


def test_nothing_happens_while_the_superlink_is_down_and_nothing_is_lost(office: Office) -> None:
    office.submit("a")
    office.flower.down = True
    office.ticks(5)
    assert office.status("a") is Status.QUEUED
    office.flower.down = False
    office.ticks(1)
    assert office.status("a") is Status.STARTING


def test_a_journal_that_cannot_be_read_fails_its_run_and_not_the_queue(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    office.submit("a")
    office.submit("b")
    office.ticks(1)
    (office.home.run_folder("a") / "journal.jsonl").write_text("nonsense\n")
    with caplog.at_level(logging.ERROR):
        office.ticks(3)
    assert office.status("a") is Status.FAILED
    assert office.status("b") is Status.STARTING
    assert "line 1 is not the next event" in caplog.text


BAD_PLANS: dict[str, Callable[[Path], object]] = {
    "a key of a later release": lambda path: path.write_bytes(path.read_bytes().replace(b'"durable"', b'"durables"')),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "empty": lambda path: path.write_bytes(b""),
    "no text": lambda path: path.write_bytes(b"\xff\x00"),
    "not there": lambda path: path.unlink(),
    "its whole folder is gone": lambda path: shutil.rmtree(path.parent),
}


@pytest.mark.parametrize("name", BAD_PLANS)
@pytest.mark.parametrize("begun", [False, True], ids=["waiting", "begun"])
def test_a_run_without_a_readable_plan_fails_by_name_and_stops_no_other(
    office: Office, name: str, begun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    office.submit("bad", every_seconds=3600.0)
    office.submit("good")
    if begun:
        office.ticks(1)
        begin(office, "bad")
    BAD_PLANS[name](office.home.run_folder("bad") / "plan.json")
    office.ticks(3)
    assert [office.status("bad"), office.status("good")] == [Status.FAILED, Status.STARTING]
    job = office.queue.find("bad").job  # type: ignore[union-attr]
    assert "run bad" in job.reason
    assert "bad" in caplog.text
    assert [(e.action, e.subject) for e in office.home.audit().entries()] == [(AuditAction.RUN_FAILED, "bad")]
    office.ticks(15)
    assert office.queue.find("bad").job.settled  # type: ignore[union-attr]


def test_a_plan_that_comes_back_lets_its_run_go_on(office: Office) -> None:
    office.submit("a")
    path = office.home.run_folder("a") / "plan.json"
    before = path.read_bytes()
    path.write_bytes(b"{}")
    office.ticks(2)
    assert office.status("a") is Status.FAILED
    path.write_bytes(before)
    office.queue.wish_resume("a")
    office.ticks(2)
    assert office.status("a") is Status.STARTING


def test_a_run_whose_next_one_cannot_be_planned_waits_and_lets_others_go_first(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: CoordinatorHome, plan: RunPlan) -> None:
        raise DiskFull("there is no room.")

    office.submit("nightly", every_seconds=100.0)
    office.submit("other")
    with monkeypatch.context() as patched:
        patched.setattr(CoordinatorHome, "store_plan", full)
        office.ticks(2)
    assert [office.status("nightly"), office.status("other")] == [Status.QUEUED, Status.STARTING]
    assert office.queue.find("nightly").job.reason == "waits: there is no room."  # type: ignore[union-attr]
    office.queue.wish_stop("other")
    office.ticks(40)
    assert [office.status("nightly"), office.status("nightly-2")] == [Status.STARTING, Status.SCHEDULED]


def test_a_run_that_is_given_up_says_what_broke_its_last_attempt(office: Office) -> None:
    office.submit("a")
    for _ in range(200):
        office.ticks(1)
        if office.status("a") is Status.STARTING and office.queue.find("a").job.flower_run is not None:  # type: ignore[union-attr]
            with drives(office.home.run_folder("a")):
                journal = office.home.journal("a")
                journal.record(AttemptStarted(attempt=journal.state.attempt + 1, unix=0.0))
                journal.record(AttemptBroken(code="FL-STORE-001", reason="database x failed: it is away.", unix=0.0))
        if office.status("a").over:
            break
    state = read_state(office.home.run_folder("a"))
    assert state.attempt == 5
    assert state.failure is not None
    assert state.failure.reason.endswith("without closing a round: database x failed: it is away")


def test_a_journal_that_cannot_be_read_for_a_moment_fails_no_run(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_self: JournalReader) -> tuple[()]:
        raise StorageError("too many open files.")

    office.submit("a")
    office.ticks(1)
    begin(office, "a")
    with drives(office.home.run_folder("a")):
        office.ticks(1)
        with monkeypatch.context() as patched:
            patched.setattr(JournalReader, "news", fails)
            office.ticks(50)
            assert office.status("a") is Status.RUNNING
        office.ticks(1)
        assert office.status("a") is Status.RUNNING
        monkeypatch.setattr(JournalReader, "news", fails)
        office.ticks(62)
        assert office.status("a") is Status.FAILED


def test_the_opposite_wish_takes_the_pending_one_back(office: Office) -> None:
    office.submit("a")
    office.submit("b")
    assert office.queue.wish_stop("b") is Wish.NONE
    assert office.queue.wish_resume("b") is Wish.STOP, "it waits, and goes on waiting"
    office.ticks(1)
    assert [office.status("a"), office.status("b")] == [Status.STARTING, Status.QUEUED]
    with drives(office.home.run_folder("a")):
        office.ticks(1)
        office.queue.wish_stop("a")
        assert office.queue.wish_resume("a") is Wish.STOP
        assert not office.queue.stop_wished("a")
        office.ticks(2)
        assert office.status("a") is Status.RUNNING
    assert office.queue.wish_stop("b") is Wish.NONE
    office.ticks(1)
    assert office.status("b") is Status.STOPPED
    assert office.queue.wish_resume("b") is Wish.NONE
    assert office.queue.wish_stop("b") is Wish.RESUME
    office.ticks(2)
    found = office.queue.find("b")
    assert found is not None
    assert (found.job.status, found.wish) == (Status.STOPPED, Wish.NONE)


def test_a_stop_that_its_driver_had_heeded_is_taken_back_all_the_same(office: Office) -> None:
    office.submit("a")
    office.ticks(1)
    with drives(office.home.run_folder("a")):
        office.ticks(1)
        office.queue.wish_stop("a")
        journal = office.home.journal("a")
        journal.record(AttemptStarted(attempt=1, unix=0.0))
        journal.record(RunStopped(unix=1.0))
        assert office.queue.wish_resume("a") is Wish.STOP
        office.ticks(2)
    office.ticks(3)
    assert office.status("a") is Status.STARTING
    assert read_state(office.home.run_folder("a")).phase is Phase.GATHERING


def test_a_wish_that_comes_while_the_manager_works_is_kept(office: Office) -> None:
    office.submit("a")
    before = office.queue.unsettled()
    office.queue.wish_stop("a")
    office.queue.keep(before, [before[0].__class__(1, before[0].job.model_copy(update={"rounds": 1}), Wish.NONE)])
    found = office.queue.find("a")
    assert found is not None
    assert (found.wish, found.job.rounds) == (Wish.STOP, 1)


def test_a_series_has_a_run_of_its_own_each_time(office: Office) -> None:
    office.submit("nightly", not_before=office.now[0] + 10.0, every_seconds=100.0)
    assert office.status("nightly") is Status.SCHEDULED
    office.ticks(11)
    assert office.status("nightly") is Status.STARTING
    assert office.status("nightly-2") is Status.SCHEDULED
    assert office.home.plan("nightly-2") == make_plan("nightly-2")
    office.queue.wish_stop("nightly-2")
    office.ticks(1)
    assert office.status("nightly-2") is Status.STOPPED


BAD_WISHES = {
    "stop of no run": ("wish_stop", "none", "there is no run none"),
    "resume of no run": ("wish_resume", "none", "there is no run none"),
    "resume of a run that goes on": ("wish_resume", "a", "is starting: it goes on"),
    "stop of a run that is over": ("wish_stop", "b", "is stopped and cannot"),
}


@pytest.mark.parametrize("name", BAD_WISHES)
def test_wishes_that_make_no_sense_are_refused(office: Office, name: str) -> None:
    office.submit("a")
    office.submit("b")
    office.queue.wish_stop("b")
    office.ticks(1)
    method, run_id, sentence = BAD_WISHES[name]
    with pytest.raises(RunError, match=sentence):
        getattr(office.queue, method)(run_id)


def test_two_runs_of_one_name_are_refused(office: Office) -> None:
    office.submit("a")
    with pytest.raises(RunError, match="there is a run a already"):
        office.submit("a")


# Over a real SuperLink.


@dataclass
class Deployed:
    """The same over a real SuperLink, whose ServerApp waits until it may finish."""

    office: Office
    link: Link

    def until(self, run_id: str, status: Status) -> None:
        deadline = time.monotonic() + 60
        while self.office.status(run_id) is not status:
            assert time.monotonic() < deadline, self.office.queue.find(run_id)
            self.office.now[0] = time.time()
            self.office.manager.tick()
            time.sleep(0.2)

    def driver(self, run_id: str) -> int:
        process = driver_of(self.office.home.run_folder(run_id))
        assert process
        return process


@pytest.fixture
def deployed(office: Office, link: Link) -> Iterator[Deployed]:
    cancels = Cancels(office.home.envelope_key, office.board, lambda: SITES)
    limits = Limits(go_seconds=2.0)
    office.manager = RunManager(office.home, office.queue, link.control, cancels, limits=limits)
    made = Deployed(office, link)
    yield made
    for entry in office.queue.list():
        process = driver_of(office.home.run_folder(entry.job.run_id))
        if process:
            os.kill(process, signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_serverapp_is_followed_by_the_next_attempt_at_once(deployed: Deployed) -> None:
    office = deployed.office
    office.submit("a")
    deployed.until("a", Status.RUNNING)
    os.kill(deployed.driver("a"), signal.SIGKILL)
    deployed.until("a", Status.STARTING)
    deployed.until("a", Status.RUNNING)
    assert read_state(office.home.run_folder("a")).attempt == 2
    (office.home.run_folder("a") / "finish").touch()
    deployed.until("a", Status.FINISHED)
    found = office.queue.find("a")
    assert found is not None
    assert (found.job.attempts, found.job.reason) == (2, "")


@pytest.mark.slow
def test_a_stop_ends_a_driver_that_does_not_listen(deployed: Deployed) -> None:
    office = deployed.office
    office.submit("a")
    deployed.until("a", Status.RUNNING)
    office.queue.wish_stop("a")
    deployed.until("a", Status.STOPPED)
    assert driver_of(office.home.run_folder("a")) is None
    assert read_state(office.home.run_folder("a")).phase is Phase.STOPPED
