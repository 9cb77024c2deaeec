"""Devices that are full, lost, killed or slow in mid-round: the same result on what is left, or one clear sentence."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedloop_clients.training.devices import DevicePool
from fedloop_clients.training.messages import DeviceFault
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.errors import DeviceLost, ProcessFailed, RunCancelled
from fedloop_core.task.document import Task

pytestmark = pytest.mark.slow
TOLERANCE = 2e-6  # see test_ranks
Opened = Callable[[Task, DevicePool], LocalTrainer]


class Watch:
    """Notes the steps; acts at one of them; cancels when it is told to."""

    def __init__(self, at: int = 0, act: Callable[[], None] = lambda: None) -> None:
        self.steps: list[int] = []
        self.cancelled = threading.Event()
        self._at, self._act = at, act

    def at_step(self, step: int, steps: int) -> None:
        self.steps.append(step)
        if step == self._at and self.steps.count(step) == 1:
            self._act()
        self.between_batches()

    def between_batches(self) -> None:
        if self.cancelled.is_set():
            raise RunCancelled("the run was called off.")


def pids(trainer: LocalTrainer) -> tuple[int, ...]:
    group = trainer._rounds._group
    return () if group is None else group.processes


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("private", [False, True])
def test_a_batch_that_does_not_fit_is_halved_until_it_does(
    kit: SimpleNamespace, opened: Opened, tmp_path: Path, private: bool
) -> None:
    """The first rank holds 5 rows, less than a unit has; what was summed before is not counted twice."""
    task = kit.task(private=private)
    asked = kit.round(task, kit.rows(task, rows_of_unit=6), rate=0.5)
    log = tmp_path / "pieces"
    pool = kit.pool("cpu:0", "cpu:1", faults={"cpu:0": {"holds": 5, "pieces": str(log)}})
    trainer = opened(task, pool)
    assert kit.differs(asked.train(trainer), asked.expected()) <= TOLERANCE
    assert pool.left() == ("cpu:0", "cpu:1")
    tried = [int(line) for line in log.read_text().splitlines()]
    assert max(tried) > 5
    log.unlink()
    assert kit.differs(asked.train(trainer), asked.expected()) <= TOLERANCE
    assert max(int(line) for line in log.read_text().splitlines()) <= 5  # what fitted is remembered


def test_a_batch_is_fitted_by_a_trial_before_anything_is_full(
    kit: SimpleNamespace, opened: Opened, tmp_path: Path
) -> None:
    task = kit.task(private=True, batch_size=60)
    asked = kit.round(task, kit.rows(task), rate=0.5)
    log = tmp_path / "pieces"
    faults = {"cpu:0": {"holds": 40, "tells_free_rows": 40, "pieces": str(log)}}
    trainer = opened(task, kit.pool("cpu:0", faults=faults))
    assert kit.differs(asked.train(trainer), asked.expected()) <= TOLERANCE
    assert max(int(line) for line in log.read_text().splitlines()) == 32  # of 40 free, 0.8 may be used


BREAKS = {
    "full": ({"holds": 0}, DeviceFault.FULL),
    "lost": ({"says": "CUDA error: unspecified launch failure", "at_piece": 9}, DeviceFault.LOST),
    "killed": ({"dies": True, "at_piece": 9}, DeviceFault.ENDED),
    "not there any more": ({"opens": False}, DeviceFault.LOST),
}


@pytest.mark.parametrize(("fault", "found"), BREAKS.values(), ids=BREAKS.keys())
def test_a_round_that_loses_a_device_is_repeated_on_what_is_left(
    kit: SimpleNamespace, opened: Opened, fault: dict[str, object], found: DeviceFault, caplog: pytest.LogCaptureFixture
) -> None:
    """The same sampling, the same noise, the same result."""
    task = kit.task(private=True)
    asked = kit.round(task, kit.rows(task, rows_of_unit=3))
    pool = kit.pool("cpu:0", "cpu:1", "cpu:2", faults={"cpu:1": fault})
    trainer = opened(task, pool)
    assert kit.differs(asked.train(trainer), asked.expected()) <= TOLERANCE
    assert pool.left() == ("cpu:0", "cpu:2")
    assert f"cpu:1: {found.value}" in caplog.text
    assert len(pids(trainer)) == 2


@pytest.mark.parametrize("private", [False, True])
def test_the_cpu_takes_over_when_no_device_is_left(kit: SimpleNamespace, opened: Opened, private: bool) -> None:
    task = kit.task(private=private)
    asked = kit.round(task, kit.rows(task))
    pool = kit.pool("cpu:0", faults={"cpu:0": {"dies": True, "at_piece": 7}})
    trainer, watch = opened(task, pool), Watch()
    assert kit.differs(asked.train(trainer, watch=watch), asked.expected()) == 0
    assert watch.steps[-6:] == [1, 2, 3, 4, 5, 6]
    assert len(watch.steps) > 6
    assert pids(trainer) == ()


def test_a_process_that_is_killed_from_outside_costs_its_device_this_round(
    kit: SimpleNamespace, opened: Opened
) -> None:
    task = kit.task(private=True, local_steps=12)
    asked = kit.round(task, kit.rows(task))
    pool = kit.pool("cpu:0", "cpu:1")
    trainer = opened(task, pool)
    asked.train(trainer)
    victim, other = pids(trainer)
    watch = Watch(7, lambda: os.kill(victim, signal.SIGKILL))
    assert kit.differs(asked.train(trainer, watch=watch), asked.expected()) <= TOLERANCE
    assert pool.left() == ("cpu:1",)
    assert gone(victim)
    assert gone(other)  # a group ends whole


def test_named_devices_that_are_all_lost_end_in_one_sentence(kit: SimpleNamespace, opened: Opened) -> None:
    task = kit.task()
    asked = kit.round(task, kit.rows(task))
    pool = kit.pool("cpu:0", cpu_after=False, faults={"cpu:0": {"holds": 0}})
    with pytest.raises(DeviceLost, match=r"no device is left to train on: cpu:0 \(full\)"):
        asked.train(opened(task, pool))


def test_an_error_of_the_models_own_is_no_devices_fault(kit: SimpleNamespace, opened: Opened) -> None:
    task = kit.task()
    asked = kit.round(task, kit.rows(task))
    pool = kit.pool("cpu:0", "cpu:1", faults={"cpu:1": {"says": "mat1 and mat2 shapes cannot be multiplied"}})
    trainer = opened(task, pool)
    with pytest.raises(ProcessFailed, match=r"cpu:1 failed: RuntimeError: mat1 and mat2"):
        asked.train(trainer)
    assert pool.left() == ("cpu:0", "cpu:1")
    assert pids(trainer) == ()


def test_a_round_that_is_called_off_ends_on_all_ranks_and_leaves_them_warm(
    kit: SimpleNamespace, opened: Opened
) -> None:
    task = kit.task(private=True, local_steps=50)
    asked = kit.round(task, kit.rows(task))
    trainer = opened(task, kit.pool("cpu:0", "cpu:1"))
    expected = asked.train(trainer)
    started = pids(trainer)
    watch = Watch()
    watch._at, watch._act = 20, watch.cancelled.set
    with pytest.raises(RunCancelled):
        asked.train(trainer, watch=watch)
    assert max(watch.steps) == 20
    assert pids(trainer) == started
    assert kit.differs(asked.train(trainer), expected) == 0


def test_a_rank_that_does_not_let_go_is_ended(kit: SimpleNamespace, opened: Opened, tmp_path: Path) -> None:
    """It hangs in a piece of a batch, as a GPU may."""
    slow = tmp_path / "slow"
    slow.touch()
    task = kit.task(physical_batch_size=2)
    asked = kit.round(task, kit.rows(task))
    trainer = opened(task, kit.pool("cpu:0", "cpu:1", faults={"cpu:1": {"slow": str(slow)}}))
    watch = Watch()
    threading.Timer(3.0, watch.cancelled.set).start()
    with pytest.raises(RunCancelled):
        asked.train(trainer, watch=watch)
    assert pids(trainer) == ()


def test_ranks_end_with_the_process_that_started_them(kit: SimpleNamespace, opened: Opened) -> None:
    """Whoever starts them holds the other end of their connection: when that is gone, by whatever death, they end."""
    task = kit.task()
    asked = kit.round(task, kit.rows(task))
    trainer = opened(task, kit.pool("cpu:0", "cpu:1"))
    asked.train(trainer)
    group = trainer._rounds._group
    assert group is not None
    for rank in group._ranks:
        rank.connection.close()  # as the kernel does it at a SIGKILL
    deadline = time.monotonic() + 60
    while any(rank.process.poll() is None for rank in group._ranks):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert {rank.process.returncode for rank in group._ranks} == {0}
