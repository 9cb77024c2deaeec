"""What the attack "a little is enough" knows: how far apart honest updates lie, by the attacker's own rows alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedloop_clients.privacy.planning import plan_run
from fedloop_clients.training.rows import UnitIndex
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.arrays import NamedArrays
from fedloop_core.dataset import Dataset
from fedloop_core.noise import SeededNoise
from fedloop_core.task import Task
from fedloop_simulations.attacks.kinds import ALittle

__all__ = ["LittleLie"]

_ESTIMATES = 5


class LittleLie:
    """Trains honestly several times, each time on rows drawn anew from its own, and lies by their mean and deviation.

    Args:
        attack: how far off.
        task: trained by federated averaging; a private one with the noise that the site itself would take.
        rows: the attacker's.
        seed: decides what is drawn.
    """

    def __init__(self, attack: ALittle, task: Task, rows: Dataset, seed: int) -> None:
        self._attack = attack
        self._task = task
        self._rows = rows
        self._seed = seed
        self._trainer = LocalTrainer(task)

    def __call__(self, number: int, received: NamedArrays, honest: NamedArrays) -> Mapping[str, NDArray[np.generic]]:
        """The lie of a round; its own honest update is one of the estimates."""
        estimates = [self._estimate(number, at, received) for at in range(_ESTIMATES)]
        return self._attack.off([honest, *estimates])

    def _estimate(self, number: int, at: int, received: NamedArrays) -> NamedArrays:
        rows = _drawn(self._rows, np.random.default_rng([self._seed, number, at]))
        if not self._task.privacy.private:
            return self._trainer.train(received, rows, self._seed + _ESTIMATES * number + at).update
        plan = plan_run(self._task, len(UnitIndex.of(rows.units)), self._task.rounds.count)
        return self._trainer.train_privately(
            received,
            rows,
            plan.round.noise_multiplier,
            plan.round.sampling_rate,
            SeededNoise(self._seed, f"a little {number} {at}"),
            expected_batch_size=plan.expected_batch_size,
        ).update


def _drawn(rows: Dataset, generator: np.random.Generator) -> Dataset:
    """As many units as there are, drawn with repetition; each time that one is drawn it counts as another."""
    units = UnitIndex.of(rows.units)
    drawn = generator.integers(len(units), size=len(units))
    places, owners = units.rows_of(drawn)
    taken = rows.take(places)
    return Dataset(taken.inputs, taken.labels, tuple(str(owner) for owner in owners))
