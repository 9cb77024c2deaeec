"""Rounds on several devices: the same result as one process, from the same batches and the same noise.

Weights differ by at most 2e-6 after six steps on weights of about 1: float32 has 24 bits, and sums over rows are added in
another order. Devices here are CPUs and gloo; no test needs a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedloop_clients.training.devices import DevicePool
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.noise import SeededNoise
from fedloop_core.task.document import Task

pytestmark = pytest.mark.slow
TOLERANCE = 2e-6
Opened = Callable[[Task, DevicePool], LocalTrainer]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_plain_rounds_are_those_of_one_process(kit: SimpleNamespace, opened: Opened, ranks: int) -> None:
    asked = kit.round(
        kit.task(momentum=0.9, weight_decay=0.01, proximal=0.3, physical_batch_size=7), kit.rows(kit.task())
    )
    trainer = opened(asked.task, kit.pool(*[f"cpu:{at}" for at in range(ranks)]))
    first = asked.train(trainer)
    assert kit.differs(first, asked.expected()) <= TOLERANCE
    assert all(array.dtype == np.float32 for array in first.update.values())
    started = kit.pids(trainer)
    assert len(started) == ranks
    again = asked.train(trainer)
    assert kit.differs(first, again) == 0  # and nothing was carried over
    assert kit.pids(trainer) == started
    other = kit.round(asked.task, kit.rows(asked.task, count=50))
    assert kit.differs(other.train(trainer), other.expected()) <= TOLERANCE  # other rows in warm processes
    assert kit.pids(trainer) == started


def test_a_private_round_without_any_row_is_noise_on_devices_too(kit: SimpleNamespace, opened: Opened) -> None:
    task = kit.task(private=True)
    asked = kit.round(task, kit.rows(task).take([]))
    trained = asked.train(opened(task, kit.pool("cpu:0", "cpu:1")))
    assert trained.empty_batches == trained.steps
    assert kit.differs(trained, asked.expected()) <= TOLERANCE
    assert all(array.any() for array in trained.update.values())


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_private_rounds_are_those_of_one_process(
    kit: SimpleNamespace, opened: Opened, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units of four rows, physical batches of 9 rows, noise once; and a batch of no unit, and a rank without one."""
    task = kit.task(private=True, momentum=0.5, proximal=0.2, physical_batch_size=9)
    rows = kit.rows(task, rows_of_unit=4)
    drawn: list[tuple[int, ...]] = []
    normal = SeededNoise.normal

    def counted(self: SeededNoise, shape: tuple[int, ...], deviation: float) -> NDArray[Any]:
        drawn.append(shape)
        return normal(self, shape, deviation)

    trainer = opened(task, kit.pool(*[f"cpu:{at}" for at in range(ranks)]))
    for rate in (0.4, 0.03, 1e-9):
        asked = kit.round(task, rows, rate=rate)
        expected = asked.expected()
        with monkeypatch.context() as patch:
            patch.setattr(SeededNoise, "normal", counted)
            trained = asked.train(trainer)
        scale = max(1.0, max(float(np.abs(array).max()) for array in expected.update.values()))
        assert kit.differs(trained, expected) <= TOLERANCE * scale
        assert (trained.steps, trained.empty_batches) == (expected.steps, expected.empty_batches)
        assert len(drawn) == 6 * len(trained.update)  # once a step, however many ranks there are
        drawn.clear()
    assert expected.empty_batches == 6


def test_gradients_that_are_not_finite_are_counted_over_all_ranks(kit: SimpleNamespace, opened: Opened) -> None:
    task = kit.task(private=True)
    rows = kit.rows(task)
    rows.inputs["numeric"][::10] = np.nan
    asked = kit.round(task, rows, rate=0.5)
    trained, expected = asked.train(opened(task, kit.pool("cpu:0", "cpu:1"))), asked.expected()
    assert trained.nonfinite_gradients == expected.nonfinite_gradients > 10
    assert kit.differs(trained, expected) <= TOLERANCE


def test_survival_is_trained_by_whole_batches(kit: SimpleNamespace, opened: Opened) -> None:
    task = kit.task(survival=True, physical_batch_size=4)
    asked = kit.round(task, kit.rows(task))
    assert kit.differs(asked.train(opened(task, kit.pool("cpu:0", "cpu:1"))), asked.expected()) <= TOLERANCE


def test_the_trainers_own_process_keeps_its_generator_and_its_switches(kit: SimpleNamespace, opened: Opened) -> None:
    asked = kit.round(kit.task(), kit.rows(kit.task()))
    trainer = opened(asked.task, kit.pool("cpu:0"))  # building a model draws
    before = torch.random.get_rng_state(), torch.are_deterministic_algorithms_enabled()
    asked.train(trainer)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert torch.are_deterministic_algorithms_enabled() == before[1]
