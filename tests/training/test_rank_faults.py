"""Devices that are full, lost, killed or slow in mid-round: the same result on what is left, or one clear sentence."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedloop_clients.training.devices import DevicePool
from fedloop_clients.training.messages import DeviceFault
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.errors import DeviceLost, ProcessFailed
from fedloop_core.task.document import Task

pytestmark = pytest.mark.slow
TOLERANCE = 2e-6  # see test_ranks
Opened = Callable[[Task, DevicePool], LocalTrainer]


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


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
    pool = kit.pool("cpu:0", "cpu:1", faults={"cpu:1": fault})
    trainer = opened(task, pool)
    assert kit.differs(asked.train(trainer), asked.expected()) <= TOLERANCE
    assert pool.left() == ("cpu:0",)
    assert f"cpu:1: {found.value}" in caplog.text
    assert len(kit.pids(trainer)) == 1


@pytest.mark.parametrize("private", [False, True])
def test_the_cpu_takes_over_when_no_device_is_left(kit: SimpleNamespace, opened: Opened, private: bool) -> None:
    task = kit.task(private=private)
    asked = kit.round(task, kit.rows(task))
    pool = kit.pool("cpu:0", faults={"cpu:0": {"dies": True, "at_piece": 7}})
    trainer, watch = opened(task, pool), kit.watch()
    assert kit.differs(asked.train(trainer, watch=watch), asked.expected()) == 0
    assert watch.steps[-6:] == [1, 2, 3, 4, 5, 6]
    assert len(watch.steps) > 6
    assert kit.pids(trainer) == ()


def test_a_process_that_is_killed_from_outside_costs_its_device_this_round(
    kit: SimpleNamespace, opened: Opened
) -> None:
    task = kit.task(private=True, local_steps=12)
    asked = kit.round(task, kit.rows(task))
    pool = kit.pool("cpu:0", "cpu:1")
    trainer = opened(task, pool)
    asked.train(trainer)
    victim, other = kit.pids(trainer)
    watch = kit.watch(7, lambda: os.kill(victim, signal.SIGKILL))
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
    assert kit.pids(trainer) == ()
