"""Workers: the same run as in process, and what becomes of it when one of them dies."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flwr.app import ArrayRecord, Message

from fedloop_core.errors import RunError
from fedloop_core.federation.records import TRAIN, pack
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task.document import FederatedAveraging, LogisticModel, Preprocessing, Privacy, Rounds, Task
from fedloop_server.home import CoordinatorHome
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import Phase
from fedloop_simulations.federation import run_in_process, run_with_workers
from fedloop_simulations.worker_grid import WorkerGrid

SITES = tuple(f"site-{at}" for at in range(8))
TIMES = ("unix", "took", "waiting_seconds", "aggregating_seconds", "checkpointing_seconds")


def plan(quorum: float = 1.0) -> RunPlan:
    task = Task(
        format=1,
        name="wards",
        features=tuple(NumericFeature(kind="numeric", name=name, range=(-4.0, 4.0)) for name in "ab"),
        label=ClassLabel(kind="classes", name="outcome", classes=("no", "yes")),
        model=LogisticModel(kind="logistic"),
        preprocessing=Preprocessing(scaling="federated"),
        training=FederatedAveraging(algorithm="fedavg", local_steps=3, batch_size=8),
        privacy=Privacy(epsilon=math.inf),
        rounds=Rounds(count=3, quorum=quorum, deadline_seconds=30.0, evaluate_every=1),
    )
    return RunPlan(
        run_id="run-1", task=task, seed=3, private=False, expected_sites=len(SITES), export=False, durable=False
    )


def journal(home: CoordinatorHome) -> list[dict[str, Any]]:
    """Events without times; sites that were admitted one after another stand in the order of their names."""
    lines = (home.run_folder("run-1") / "journal.jsonl").read_text().splitlines()
    events = [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in lines]
    admitted = iter(sorted((e for e in events if "member" in e), key=lambda e: str(e["member"]["site"])))
    return [next(admitted) if "member" in event else event for event in events]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_over_workers_is_the_run_in_process_to_the_bit(tmp_path: Path, sites: ModuleType, workers: int) -> None:
    alone, shared = CoordinatorHome(tmp_path / "alone"), CoordinatorHome(tmp_path / "shared")
    make = sites.RealSites(alone.envelope_key.verifying.raw)
    run_in_process(alone, plan(), {name: make(name) for name in SITES}, lambda state, event: None)
    make = sites.RealSites(shared.envelope_key.verifying.raw)
    state = run_with_workers(shared, plan(), make, SITES, workers, lambda state, event: None)
    assert state.completed_rounds == 3
    expected, got = alone.trained_arrays("run-1"), shared.trained_arrays("run-1")
    assert list(got) == list(expected)
    assert all(got[name].tobytes() == array.tobytes() for name, array in expected.items())
    assert journal(shared) == journal(alone)


def test_a_worker_that_dies_in_a_round_leaves_its_sites_out_and_the_round_closes(
    tmp_path: Path, sites: ModuleType
) -> None:
    home = CoordinatorHome(tmp_path)
    make = sites.RealSites(home.envelope_key.verifying.raw, fatal="site-3")
    state = run_with_workers(home, plan(quorum=0.5), make, SITES, 2, lambda state, event: None)
    assert (state.phase, state.failure) == (Phase.FINISHED, None)
    gone = {left_out.site for left_out in state.left_out if left_out.round == 2}
    assert {"site-3"} <= gone <= set(SITES[1::2])  # those of its worker; who had answered before is in the round
    assert {left_out.site for left_out in state.left_out if left_out.round == 3} == set(SITES[1::2])
    codes = {(left_out.round, left_out.code) for left_out in state.left_out}
    assert codes == {(2, "FL-RUN-011"), (3, "FL-RUN-010")}  # it broke off, and then it is not connected


def test_sites_of_a_dead_worker_are_refused_and_their_nodes_are_gone(
    sites: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    with WorkerGrid({1: "a", 2: "dies", 3: "b", 4: "c"}, sites.echo, 2) as grid:

        def ask(*nodes: int) -> dict[int, bool]:
            replies = grid.send_and_receive([Message(pack(b"", ArrayRecord()), node, TRAIN) for node in nodes])
            return {reply.metadata.src_node_id: reply.has_error() for reply in replies}

        assert ask(1, 2, 4, 4, 4, 4, 4, 3) == {1: False, 2: True, 4: True, 3: False}
        assert "with it went sites c, dies" in caplog.text
        assert list(grid.get_node_ids()) == [1, 3]
        assert ask(4, 1) == {4: True, 1: False}


def test_a_grid_without_workers_says_so(sites: ModuleType) -> None:
    with WorkerGrid({1: "dies"}, sites.echo, 1) as grid:
        question = Message(pack(b"", ArrayRecord()), 1, TRAIN)
        (reply,) = grid.send_and_receive([question])
        assert reply.has_error()
        with pytest.raises(RunError, match="all worker processes have ended"):
            grid.push_messages([question])


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("broken", "sites a, c cannot be made: ValueError: no rows for a"),
        ("dying", "a worker process ended with status -9; with it went sites a, c"),
    ],
)
def test_sites_that_cannot_be_made_are_named(sites: ModuleType, factory: str, said: str) -> None:
    with pytest.raises(RunError, match=said):
        WorkerGrid({1: "a", 2: "b", 3: "c"}, getattr(sites, factory), 2)
    assert multiprocessing.active_children() == []


ORPHANS = """
import multiprocessing, sys, time
from fedloop_simulations.worker_grid import WorkerGrid
from sites_for_workers import echo
if __name__ == "__main__":
    grid = WorkerGrid({1: "a", 2: "b"}, echo, 2)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(100)
"""


def test_workers_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(ORPHANS)
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    ) as driver:
        assert driver.stdout is not None
        workers = [int(word) for word in driver.stdout.readline().split()]
        driver.send_signal(signal.SIGKILL)
    assert len(workers) == 2
    deadline = time.monotonic() + 60
    while any(runs(worker) for worker in workers):
        assert time.monotonic() < deadline, "a worker outlived its driver"
        time.sleep(0.05)


def runs(process: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
