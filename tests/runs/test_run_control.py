"""A run while the federation changes under it: late sites, revoked ones, stops, reopenings, and a second driver."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedloop_clients.app import SITE_KEY, relay
from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.data.site_data import SiteData
from fedloop_clients.endpoint import Question, Reply, SiteEndpoint
from fedloop_clients.outbox import Outbox
from fedloop_clients.policy import Budget, SiteConfig, SitePolicy
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core.arrays import digest
from fedloop_core.audit import AuditAction
from fedloop_core.dataset import Dataset
from fedloop_core.errors import RunBusy, RunError
from fedloop_core.noise import SeededNoise
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task.document import FederatedAveraging, LogisticModel, Preprocessing, Privacy, Rounds, Task
from fedloop_server.app import drive
from fedloop_server.home import CoordinatorHome
from fedloop_server.registry import RunState as RegisteredState
from fedloop_server.runs.control import fail_run, reopen_run, stop_run
from fedloop_server.runs.events import Event, RoundClosed, RoundOpened, SiteLeftOut
from fedloop_server.runs.lock import driver_of, drives
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import Phase, RunState
from fedloop_server.runs.surroundings import SiteKey, Surroundings
from fedloop_simulations.grid import InProcessGrid, Node
from fedloop_simulations.keys import rehearsal_key

RUN = "run-1"
Observer = Callable[[RunState, Event], None]


def task(quorum: float = 0.5, **rounds: object) -> Task:
    return Task(
        format=1,
        name="wards",
        features=tuple(NumericFeature(kind="numeric", name=name, range=(-4.0, 4.0)) for name in "ab"),
        label=ClassLabel(kind="classes", name="outcome", classes=("no", "yes")),
        model=LogisticModel(kind="logistic"),
        preprocessing=Preprocessing(scaling="range"),
        training=FederatedAveraging(algorithm="fedavg", local_steps=2, batch_size=8),
        privacy=Privacy(epsilon=math.inf),
        rounds=Rounds.model_validate({"count": 4, "quorum": quorum, "deadline_seconds": 30.0, **rounds}),
    )


class ComingAndGoing(InProcessGrid):
    """Only some nodes are there at a time."""

    there: set[int]

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.there)


class Federation:
    """Real site daemons in memory over one grid, with a directory, an audit log and a wish that tests change."""

    def __init__(self, folder: Path, names: Iterable[str], policies: Mapping[str, SitePolicy] | None = None) -> None:
        self.home = CoordinatorHome(folder)
        self.names = dict(enumerate(names, 100))
        self.active_nodes = set(self.names)
        self.wish = False
        self.policies = dict(policies or {})
        self.wrap: Callable[[str, SiteEndpoint], SiteEndpoint] = lambda name, site: site
        self.seen: list[Event] = []
        self.observe: Observer = lambda state, event: None
        self._daemons = {name: self._daemon(name) for name in self.names.values()}
        self.grid = ComingAndGoing(
            {node: Node(relay(Wrapped(self, name)), {SITE_KEY: name}) for node, name in self.names.items()}
        )
        self.grid.there = set(self.names)

    def nodes(self) -> dict[int, SiteKey]:
        return {
            node: SiteKey(name, rehearsal_key(name).verifying)
            for node, name in self.names.items()
            if node in self.active_nodes
        }

    def active(self) -> frozenset[str]:
        return frozenset(self.names[node] for node in self.active_nodes)

    def wished(self) -> bool:
        return self.wish

    def node(self, site: str) -> int:
        return next(node for node, name in self.names.items() if name == site)

    def drive(self, expected: int, chosen: Task | None = None) -> RunState:
        plan = RunPlan(
            run_id=RUN,
            task=chosen or task(),
            seed=3,
            private=False,
            expected_sites=expected,
            export=False,
            durable=False,
        )
        self.home.store_plan(plan)
        return self.again()

    def again(self) -> RunState:
        around = Surroundings(self, audit=self.home.audit(), countersignatures=self.home.countersignatures(), stop=self)
        return drive(self.grid, self.home, RUN, around, self._observed)

    def answer(self, name: str, question: Question) -> Reply:
        return self.wrap(name, self._daemons[name]).answer(question)

    def registered(self) -> RegisteredState:
        with closing(self.home.registry()) as registry:
            return registry.run(RUN).state

    def _observed(self, state: RunState, event: Event) -> None:
        self.seen.append(event)
        self.observe(state, event)

    def _daemon(self, name: str) -> SiteDaemon:
        generator = np.random.default_rng(list(name.encode()))
        values = generator.normal(size=(24, 2)).astype(np.float32)
        labels = (values.sum(axis=1) > 0).astype(np.int64)
        rows = Dataset({"numeric": values}, labels, ("",) * len(labels))
        budget = Budget(epsilon=math.inf)
        policy = self.policies.get(name, SitePolicy())
        return SiteDaemon(
            SiteConfig(site=name, policy=policy, training_budget=budget, evaluation_budget=budget),
            SiteData(rows, rows.take(()), secret=bytes(16)),
            Ledger(":memory:", lambda: 0),
            Outbox(":memory:"),
            SeededNoise(5, name),
            self.home.envelope_key.verifying,
            lambda: int(time.time()),
            signing_key=rehearsal_key(name),
        )


class Wrapped:
    """A site whose answers a test may meddle with."""

    def __init__(self, federation: Federation, name: str) -> None:
        self._federation = federation
        self._name = name

    def answer(self, question: Question) -> Reply:
        return self._federation.answer(self._name, question)


def at(kind: type[RoundOpened | RoundClosed], number: int, do: Callable[[], None]) -> Observer:
    """Does something when a round opens or closes."""

    def observe(state: RunState, event: Event) -> None:
        if isinstance(event, kind) and event.round == number:
            do()

    return observe


def folded(state: RunState) -> list[tuple[str, ...]]:
    return [closed.folded for closed in state.rounds]


def test_a_site_that_comes_late_takes_part_from_the_next_opening(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "abcd")
    federation.grid.there.discard(federation.node("d"))
    federation.observe = at(RoundClosed, 1, lambda: federation.grid.there.add(federation.node("d")))
    state = federation.drive(3)
    assert folded(state) == [("a", "b", "c"), ("a", "b", "c"), ("a", "b", "c", "d"), ("a", "b", "c", "d")]
    assert not state.left_out
    assert state.phase is Phase.FINISHED


def test_a_late_site_whose_policy_forbids_the_task_is_left_out_for_good_and_asked_once(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "abcd", {"d": SitePolicy(tasks=("another",))})
    asked: list[str] = []

    def count(name: str, site: SiteEndpoint) -> SiteEndpoint:
        asked.append(name)
        return site

    federation.wrap = count
    federation.grid.there.discard(federation.node("d"))
    federation.observe = at(RoundClosed, 1, lambda: federation.grid.there.add(federation.node("d")))
    state = federation.drive(3)
    assert asked.count("d") == 1
    assert [(out.site, out.round, out.code, out.for_good) for out in state.left_out] == [("d", 0, "FL-TRUST-006", True)]
    assert state.barred_sites == {"d"}


def test_a_site_that_is_revoked_is_no_longer_asked_and_the_others_go_on(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "abc")
    federation.observe = at(RoundClosed, 2, lambda: federation.active_nodes.discard(federation.node("b")))
    state = federation.drive(3, task(quorum=1.0))
    assert folded(state) == [("a", "b", "c"), ("a", "b", "c"), ("a", "c"), ("a", "c")]
    assert [(out.site, out.round, out.code) for out in state.barred] == [("b", 3, "FL-TRUST-008")]
    assert state.phase is Phase.FINISHED
    told = [entry for entry in federation.home.audit().entries() if entry.action is AuditAction.SITE_LEFT_OUT]
    assert [(entry.subject, entry.details["code"]) for entry in told] == [("b", "FL-TRUST-008")]


def test_a_run_of_which_too_few_sites_are_left_fails_and_says_why(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "abcd", {name: SitePolicy(tasks=()) for name in "bcd"})
    state = federation.drive(4)
    assert state.failure is not None
    assert state.failure.code == "FL-RUN-001"
    assert "1 of 4 sites may take part; 2 are needed" in state.failure.reason
    assert federation.registered() is RegisteredState.FAILED


def test_a_site_that_broke_off_comes_back_in_the_next_round(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "abc")
    broken: list[int] = []

    class Breaks:
        def __init__(self, site: SiteEndpoint) -> None:
            self._site = site

        def answer(self, question: Question) -> Reply:
            if federation.home.journal(RUN).state.completed_rounds == 1 and not broken:
                broken.append(1)
                raise RuntimeError("its process died")
            return self._site.answer(question)

    federation.wrap = lambda name, site: Breaks(site) if name == "b" else site
    state = federation.drive(3)
    assert folded(state) == [("a", "b", "c"), ("a", "c"), ("a", "b", "c"), ("a", "b", "c")]
    assert [(out.site, out.round, out.code) for out in state.left_out] == [("b", 2, "FL-RUN-011")]
    assert not state.barred


def wanted(federation: Federation) -> Callable[[], None]:
    def wish() -> None:
        federation.wish = True

    return wish


@pytest.mark.parametrize("kind", [RoundOpened, RoundClosed])
def test_a_stopped_run_goes_on_to_the_same_weights_when_it_is_resumed(
    tmp_path: Path, kind: type[RoundOpened | RoundClosed]
) -> None:
    whole = Federation(tmp_path / "whole", "abc")
    assert whole.drive(3).phase is Phase.FINISHED
    federation = Federation(tmp_path / "stopped", "abc")
    federation.observe = at(kind, 2, wanted(federation))
    state = federation.drive(3)
    assert state.phase is Phase.STOPPED
    assert state.failure is None
    assert state.completed_rounds == 2 if kind is RoundClosed else 1
    assert federation.registered() is RegisteredState.CANCELLED
    assert federation.again() == state  # a stopped run is not driven
    assert reopen_run(federation.home, RUN).phase is Phase.TRAINING
    federation.wish = False
    federation.observe = lambda state, event: None
    state = federation.again()
    assert (state.phase, state.attempt, state.completed_rounds) == (Phase.FINISHED, 2, 4)
    assert digest(federation.home.trained_arrays(RUN)) == digest(whole.home.trained_arrays(RUN))
    assert federation.registered() is RegisteredState.SUCCEEDED
    actions = [entry.action for entry in federation.home.audit().entries()]
    assert actions == [AuditAction.RUN_STOPPED, AuditAction.RUN_FINISHED]


def test_a_failed_run_may_be_opened_again_and_asks_everybody_anew(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "abc", {"b": SitePolicy(tasks=())})
    state = federation.drive(3, task(quorum=1.0))
    assert state.phase is Phase.FAILED
    assert state.barred_sites == {"b"}
    state = reopen_run(federation.home, RUN)
    assert (state.phase, state.failure, state.barred) == (Phase.GATHERING, None, ())
    federation.policies.clear()
    federation._daemons["b"] = federation._daemon("b")
    state = federation.again()
    assert state.phase is Phase.FINISHED
    assert folded(state)[0] == ("a", "b", "c")


def test_ends_are_noted_by_others_only_while_nobody_drives_and_only_once(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "abc")

    def meddle() -> None:
        for control in (stop_run, reopen_run):
            with pytest.raises(RunBusy, match=str(os.getpid())):
                control(federation.home, RUN)
        assert driver_of(federation.home.run_folder(RUN)) == os.getpid()
        with pytest.raises(RunBusy, match="driven by process"):
            federation.again()
        raise KeyboardInterrupt

    federation.observe = at(RoundOpened, 2, meddle)
    with pytest.raises(KeyboardInterrupt):
        federation.drive(3)
    assert driver_of(federation.home.run_folder(RUN)) is None
    assert stop_run(federation.home, RUN).phase is Phase.STOPPED
    assert federation.registered() is RegisteredState.CANCELLED
    assert fail_run(federation.home, RUN, "FL-PROC-001", "its process ends again and again").phase is Phase.STOPPED
    assert reopen_run(federation.home, RUN).phase is Phase.TRAINING
    assert fail_run(federation.home, RUN, "FL-PROC-001", "its process ends again and again").phase is Phase.FAILED
    with pytest.raises(RunError, match="there is no run nothing"):
        stop_run(federation.home, "nothing")


HOLDER = """
import sys, time
from pathlib import Path
from fedloop_server.runs.lock import drives
with drives(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_lock_ends_with_the_process_that_holds_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            assert driver_of(tmp_path) == holder.pid
            with pytest.raises(RunBusy, match=str(holder.pid)), drives(tmp_path):
                pass
        finally:
            holder.kill()
    assert driver_of(tmp_path) is None
    with drives(tmp_path):
        assert driver_of(tmp_path) == os.getpid()


def test_an_answer_countersigns_the_audit_log(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "abc")
    federation.home.audit().record("operator:me", AuditAction.RUN_STARTED, RUN)
    federation.drive(3)
    kept = federation.home.countersignatures().all()
    assert [(one.site, one.sequence) for one in kept] == [("a", 1), ("b", 1), ("c", 1)]
    assert not any(isinstance(event, SiteLeftOut) for event in federation.seen)
