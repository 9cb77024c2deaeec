"""Tasks, rows and pools of devices that are CPUs."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedloop_clients.training.devices import RANK_COMMAND, Choice, DevicePool
from fedloop_clients.training.trainer import LocalResult, LocalTrainer
from fedloop_core.dataset import Dataset
from fedloop_core.encoding import InputEncoder
from fedloop_core.errors import RunCancelled
from fedloop_core.models import initial_arrays
from fedloop_core.noise import SeededNoise
from fedloop_core.scaling import Scaler
from fedloop_core.schema import CategoricalFeature, ClassLabel, NumericFeature, SurvivalLabel
from fedloop_core.task.document import FederatedAveraging, MlpModel, Privacy, Task

FAULTY_RANK = Path(__file__).parent / "faulty_rank.py"
FEATURES = (
    NumericFeature(kind="numeric", name="age", range=(0.0, 100.0)),
    NumericFeature(kind="numeric", name="dose", range=(0.0, 1.0)),
    CategoricalFeature(kind="categorical", name="sex", values=("f", "m"), other=True),
)

MakeTask = Callable[..., Task]


def make_task(*, private: bool = False, survival: bool = False, **training: Any) -> Task:
    """A small perceptron."""
    settings = {"algorithm": "fedavg", "local_steps": 6, "batch_size": 24, "learning_rate": 0.2} | training
    return Task(
        format=1,
        name="ranks",
        features=FEATURES,
        label=SurvivalLabel(kind="survival", time="t", event="e", time_range=(0.0, 9.0))
        if survival
        else ClassLabel(kind="classes", name="y", classes=("a", "b", "c")),
        model=MlpModel(kind="mlp", hidden=(16,)),
        training=FederatedAveraging.model_validate(settings),
        privacy=Privacy(epsilon=5.0, delta=1e-4, clipping_norm=0.5) if private else Privacy(epsilon=float("inf")),
    )


def rows_for(task: Task, count: int = 120, rows_of_unit: int = 1) -> Dataset:
    """Rows of anybody; so many of each unit."""
    generator = np.random.default_rng(5)
    inputs: dict[str, NDArray[np.generic]] = {}
    for spec in InputEncoder(task.feature_schema).inputs:
        shape = (count, *spec.shape)
        drawn = generator.integers(0, 3, shape) if spec.dtype == "int64" else generator.uniform(0, 1, shape)
        inputs[spec.name] = drawn.astype(spec.dtype)
    labels: NDArray[np.generic] = generator.integers(0, 3, count)
    if isinstance(task.label, SurvivalLabel):
        labels = np.stack([generator.uniform(0, 9, count), generator.integers(0, 2, count)], 1).astype(np.float32)
    return Dataset(inputs, labels, tuple(f"u{at // rows_of_unit}" for at in range(count)))


class Round:
    """One round of a task, trained by whatever trainer is given."""

    def __init__(self, task: Task, rows: Dataset, *, rate: float = 0.3) -> None:
        self.task, self.rows, self.rate = task, rows, rate
        self.arrays = {**initial_arrays(task, 3), **Scaler.from_ranges(task.feature_schema).arrays()}
        self.here = LocalTrainer(task)

    def train(self, trainer: LocalTrainer, **named: Any) -> LocalResult:
        if not self.task.privacy.private:
            return trainer.train(self.arrays, self.rows, 42, **named)
        noise, units = SeededNoise(4), len(set(self.rows.units))
        return trainer.train_privately(
            self.arrays, self.rows, 0.8, self.rate, noise, expected_batch_size=self.rate * max(units, 1), **named
        )

    def expected(self) -> LocalResult:
        """As one process trains it on the CPU."""
        return self.train(self.here)


def differs(first: LocalResult, second: LocalResult) -> float:
    """Largest difference of a weight."""
    return max(float(np.abs(first.update[name] - second.update[name]).max()) for name in first.update)


def pool_of(*names: str, cpu_after: bool = True, faults: dict[str, dict[str, Any]] | None = None) -> DevicePool:
    """These CPUs as devices, some with faults."""
    command = RANK_COMMAND if faults is None else (sys.executable, str(FAULTY_RANK), json.dumps(faults))
    return DevicePool(lambda: Choice(names, cpu_after=cpu_after, why="a test"), command=command)


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
    """Its processes, by rank."""
    group = trainer._rounds._group
    return () if group is None else group.processes


@pytest.fixture
def opened() -> Iterator[Callable[[Task, DevicePool], LocalTrainer]]:
    """Makes trainers whose processes are ended with the test."""
    trainers: list[LocalTrainer] = []

    def make(task: Task, devices: DevicePool) -> LocalTrainer:
        trainers.append(LocalTrainer(task, devices))
        return trainers[-1]

    yield make
    for trainer in trainers:
        trainer.close()


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    """What the tests of this folder make things with."""
    return SimpleNamespace(
        task=make_task, rows=rows_for, round=Round, pool=pool_of, differs=differs, watch=Watch, pids=pids
    )
