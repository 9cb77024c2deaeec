"""Rounds that are called off, and processes whose trainer is gone: all ranks hear of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedloop_clients.training.devices import DevicePool
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.errors import RunCancelled
from fedloop_core.task.document import Task

pytestmark = pytest.mark.slow
Opened = Callable[[Task, DevicePool], LocalTrainer]


def test_a_round_that_is_called_off_ends_on_all_ranks_and_leaves_them_warm(
    kit: SimpleNamespace, opened: Opened
) -> None:
    task = kit.task(private=True, local_steps=50)
    asked = kit.round(task, kit.rows(task))
    trainer = opened(task, kit.pool("cpu:0", "cpu:1"))
    expected = asked.train(trainer)
    started = kit.pids(trainer)
    watch = kit.watch()
    watch._at, watch._act = 20, watch.cancelled.set
    with pytest.raises(RunCancelled):
        asked.train(trainer, watch=watch)
    assert max(watch.steps) == 20
    assert kit.pids(trainer) == started
    assert kit.differs(asked.train(trainer), expected) == 0


def test_a_rank_that_does_not_let_go_is_ended(kit: SimpleNamespace, opened: Opened, tmp_path: Path) -> None:
    """It hangs in a piece of a batch, as a GPU may."""
    slow = tmp_path / "slow"
    slow.touch()
    task = kit.task(physical_batch_size=2)
    asked = kit.round(task, kit.rows(task))
    trainer = opened(task, kit.pool("cpu:0", "cpu:1", faults={"cpu:1": {"slow": str(slow)}}))
    watch = kit.watch()
    threading.Timer(3.0, watch.cancelled.set).start()
    with pytest.raises(RunCancelled):
        asked.train(trainer, watch=watch)
    assert kit.pids(trainer) == ()


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
