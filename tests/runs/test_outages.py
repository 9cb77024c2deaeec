"""The coordinator's own database and disk fail while a run is driven: that ends no run, and what is damaged ends in a sentence."""

from __future__ import annotations

import functools
import logging
import math
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloop_clients.app import SITE_KEY, relay
from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.data.site_data import SiteData
from fedloop_clients.outbox import Outbox
from fedloop_clients.policy import Budget, SiteConfig
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core.arrays import digest
from fedloop_core.dataset import Dataset
from fedloop_core.errors import ContentDamaged, DiskFull, StorageError
from fedloop_core.noise import SeededNoise
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task.document import Export, FederatedAveraging, LogisticModel, Preprocessing, Privacy, Rounds, Task
from fedloop_server.app import drive
from fedloop_server.blobs import BlobStore
from fedloop_server.deployed import QueuedStop
from fedloop_server.home import CoordinatorHome
from fedloop_server.registry import Registry
from fedloop_server.registry import RunState as RegisteredState
from fedloop_server.runs.control import reopen_run
from fedloop_server.runs.events import AttemptBroken, Event, RoundClosed, RoundOpened
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.room import WaitsForRoom
from fedloop_server.runs.state import Phase, RunState
from fedloop_server.runs.surroundings import Surroundings
from fedloop_simulations.federation import rehearsal_directory
from fedloop_simulations.grid import InProcessGrid, Node
from fedloop_simulations.keys import rehearsal_key

RUN = "run-1"
Observer = Callable[[RunState, Event], None]


def task(epsilon: float = math.inf) -> Task:
    return Task(
        format=1,
        name="wards",
        features=tuple(NumericFeature(kind="numeric", name=name, range=(-4.0, 4.0)) for name in "ab"),
        label=ClassLabel(kind="classes", name="outcome", classes=("no", "yes")),
        model=LogisticModel(kind="logistic"),
        preprocessing=Preprocessing(scaling="range"),
        training=FederatedAveraging(algorithm="fedavg", local_steps=2, batch_size=8),
        privacy=Privacy(epsilon=epsilon, delta=1e-3),
        rounds=Rounds(count=3, quorum=0.5, deadline_seconds=30.0),
        export=Export(targets=("onnx-fp32",)),
    )


class Coordinator:
    """Three real daemons in memory, a home with a real database, and the run's queue."""

    def __init__(self, folder: Path, chosen: Task, *, export: bool) -> None:
        self.home = CoordinatorHome(folder)
        self.task = chosen
        private = chosen.privacy.private
        plan = RunPlan(run_id=RUN, task=chosen, seed=3, private=private, expected_sites=3, export=export)
        self.home.store_plan(plan)
        self.queue = self.home.queue()
        self.queue.submit(plan)
        self.slept: list[float] = []
        self.on_sleep: Callable[[], None] = lambda: None
        names = dict(enumerate("abc", 100))
        self.directory = rehearsal_directory(names)
        self.grid = InProcessGrid(
            {node: Node(relay(self._daemon(name)), {SITE_KEY: name}) for node, name in names.items()}
        )

    def drive(self, observe: Observer = lambda state, event: None) -> RunState:
        stop = QueuedStop(self.queue, RUN)
        room = WaitsForRoom(stop, self._sleep)
        around = Surroundings(self.directory, audit=self.home.audit(), stop=stop, room=room)
        return drive(self.grid, self.home, RUN, around, observe)

    def weights(self) -> bytes:
        return digest(self.home.trained_arrays(RUN))

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.on_sleep()

    def _daemon(self, name: str) -> SiteDaemon:
        generator = np.random.default_rng(list(name.encode()))
        values = generator.normal(size=(64, 2)).astype(np.float32)
        labels = (values.sum(axis=1) > 0).astype(np.int64)
        rows = Dataset({"numeric": values}, labels, tuple(f"{name}{at}" for at in range(64)))
        budget = Budget(epsilon=20.0 if self.task.privacy.private else math.inf, delta=1e-3)
        return SiteDaemon(
            SiteConfig(site=name, training_budget=budget, evaluation_budget=budget),
            SiteData(rows.take(np.arange(16, 64)), rows.take(np.arange(16)), secret=bytes(16)),
            Ledger(":memory:", lambda: 0),
            Outbox(":memory:"),
            SeededNoise(5, name),
            self.home.envelope_key.verifying,
            lambda: int(time.time()),
            signing_key=rehearsal_key(name),
        )


Make = Callable[..., Coordinator]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Make]:
    coordinators: list[Coordinator] = []

    def make(name: str, *, epsilon: float = math.inf, export: bool = False) -> Coordinator:
        coordinators.append(Coordinator(tmp_path / name, task(epsilon), export=export))
        return coordinators[-1]

    yield make
    for coordinator in coordinators:
        coordinator.queue.close()


def rename(home: CoordinatorHome, before: str, after: str) -> None:
    """A table that is not there makes a real database fail."""
    with closing(sqlite3.connect(home.folder / "coordinator.db", timeout=30)) as connection:
        connection.execute(f"ALTER TABLE {before} RENAME TO {after}")
        connection.commit()


def at_round(number: int, do: Callable[[], None]) -> Observer:
    """Does something once, when a round opens."""
    done: list[int] = []

    def observe(state: RunState, event: Event) -> None:
        if isinstance(event, RoundOpened) and event.round == number and not done:
            done.append(1)
            do()

    return observe


def test_a_database_that_fails_for_a_while_costs_a_run_nothing_but_time(
    made: Make, caplog: pytest.LogCaptureFixture
) -> None:
    whole, coordinator = made("whole"), made("failing")
    whole.drive()

    def back() -> None:
        if len(coordinator.slept) == 5:
            rename(coordinator.home, "away", "run_queue")

    coordinator.on_sleep = back
    with caplog.at_level(logging.WARNING):
        state = coordinator.drive(at_round(2, lambda: rename(coordinator.home, "run_queue", "away")))
    assert (state.phase, state.attempt) == (Phase.FINISHED, 1)
    assert coordinator.weights() == whole.weights()
    assert len(coordinator.slept) == 5
    assert caplog.text.count("no such table") == 1


def test_a_database_that_stays_away_leaves_the_run_open_and_the_next_attempt_goes_on(made: Make) -> None:
    whole, coordinator = made("whole"), made("failing")
    whole.drive()
    events: list[Event] = []
    away = at_round(2, lambda: rename(coordinator.home, "run_queue", "away"))

    def observe(state: RunState, event: Event) -> None:
        events.append(event)
        away(state, event)

    with pytest.raises(StorageError, match="no such table"):
        coordinator.drive(observe)
    state = coordinator.home.journal(RUN).state
    assert not state.ended
    assert sum(coordinator.slept) == 60.0
    assert isinstance(events[-1], AttemptBroken)
    assert state.trouble == events[-1]
    with closing(coordinator.home.registry()) as registry:
        assert registry.run(RUN).state is RegisteredState.RUNNING
    rename(coordinator.home, "away", "run_queue")
    state = coordinator.drive()
    assert (state.phase, state.attempt, state.trouble) == (Phase.FINISHED, 2, None)
    assert coordinator.weights() == whole.weights()


def test_a_stop_is_heard_while_the_registry_fails(made: Make) -> None:
    coordinator = made("failing", export=True)

    def stop() -> None:
        coordinator.queue.wish_stop(RUN)

    coordinator.on_sleep = stop
    state = coordinator.drive(at_round(3, lambda: rename(coordinator.home, "versions", "away")))
    assert (state.phase, state.completed_rounds) == (Phase.STOPPED, 3)


WRITES: tuple[tuple[type, str], ...] = (
    (Registry, "register_task"),
    (Registry, "register_version"),
    (Registry, "add_artifact"),
    (Registry, "add_metrics"),
    (Registry, "add_gate_result"),
    (Registry, "finish_run"),
    (BlobStore, "put"),
)


def full_once(patched: pytest.MonkeyPatch, *, after: bool) -> set[str]:
    """Every write fails at its first call, before or after it was done: nobody knows what became of a failed commit."""
    failed: set[str] = set()

    def failing(kind: type, name: str) -> None:
        real = getattr(kind, name)

        @functools.wraps(real)
        def call(*arguments: Any, **named: Any) -> Any:
            if name in failed:
                return real(*arguments, **named)
            failed.add(name)
            if after:
                real(*arguments, **named)
            raise DiskFull(f"{name} cannot be done: the disk is full.")

        patched.setattr(kind, name, call)

    for kind, name in WRITES:
        failing(kind, name)
    return failed


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["not done", "done and not known"])
def test_a_run_waits_for_room_from_its_first_write_to_its_last(
    made: Make, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    coordinator = made("full", export=True)
    failed = full_once(monkeypatch, after=after)
    state = coordinator.drive()
    assert (state.phase, state.failure, state.attempt) == (Phase.FINISHED, None, 1)
    assert failed == {name for _, name in WRITES}
    assert len(coordinator.slept) >= len(WRITES) - 1  # a blob is a part of its artifact
    with closing(coordinator.home.registry()) as registry:
        (version,) = registry.versions("wards")
        assert (version.run_id, [a.kind for a in version.artifacts]) == (RUN, ["onnx-fp32"])
        assert len({(m.scope, m.artifact, m.metric) for m in version.metrics}) == len(version.metrics) == 4
        assert registry.run(RUN).state is RegisteredState.SUCCEEDED


class Killed(BaseException):
    """Stands for a process that dies: nothing catches it."""


def die_after(number: int) -> Observer:
    def observe(state: RunState, event: Event) -> None:
        if isinstance(event, RoundClosed) and event.round == number:
            raise Killed

    return observe


def spends(state: RunState) -> list[tuple[str, float, float]]:
    return [(s.site, s.run_epsilon, s.lifetime_epsilon) for closed in state.rounds for s in closed.spends]


def test_a_round_that_is_trained_again_is_paid_for_once(made: Make) -> None:
    whole, coordinator = made("whole", epsilon=5.0), made("damaged", epsilon=5.0)
    expected = whole.drive()
    assert expected.phase is Phase.FINISHED
    with pytest.raises(Killed):
        coordinator.drive(die_after(2))
    (coordinator.home.run_folder(RUN) / "round-2.safetensors").write_bytes(b"nothing")
    state = coordinator.drive()
    assert (state.phase, state.completed_rounds) == (Phase.FINISHED, 3)
    assert spends(state) == spends(expected) != []
    assert coordinator.weights() == whole.weights()


def test_damaged_checkpoints_end_the_run_and_a_file_put_back_lets_it_go_on(made: Make) -> None:
    coordinator = made("damaged")
    with pytest.raises(Killed):
        coordinator.drive(die_after(2))
    folder = coordinator.home.run_folder(RUN)
    kept = (folder / "round-2.safetensors").read_bytes()
    for path in folder.glob("*.safetensors"):
        path.write_bytes(b"nothing")
    state = coordinator.drive()
    assert state.failure is not None
    assert state.failure.code == ContentDamaged.code
    assert "round-2.safetensors" in state.failure.reason
    assert coordinator.slept == []
    with pytest.raises(ContentDamaged, match="round-2"):
        coordinator.weights()
    (folder / "round-2.safetensors").write_bytes(kept)
    reopen_run(coordinator.home, RUN)
    assert coordinator.drive().phase is Phase.FINISHED


def test_a_damaged_journal_is_one_sentence(made: Make) -> None:
    coordinator = made("damaged")
    coordinator.drive()
    (coordinator.home.run_folder(RUN) / "journal.jsonl").write_text("nonsense\n")
    with pytest.raises(ContentDamaged, match="line 1 is not the next event"):
        coordinator.drive()
    assert coordinator.slept == []
