"""Devices whose memory does not take a batch whole: the same result in pieces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedloop_clients.training.devices import DevicePool
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.task.document import Task

pytestmark = pytest.mark.slow
TOLERANCE = 2e-6  # see test_ranks
Opened = Callable[[Task, DevicePool], LocalTrainer]


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
