"""A round as it is asked of whatever trains it, and what came of it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

from torch import Tensor

from fedloop_clients.training.rows import TrainingRows
from fedloop_core.noise import NoiseSource

__all__ = ["PlainRound", "PrivateRound", "Trained"]


@dataclass(frozen=True)
class PlainRound:
    """Without privacy. ``start``: the trainable parameters, on the CPU, never changed."""

    start: list[Tensor]
    rows: TrainingRows
    seed: int


@dataclass(frozen=True)
class PrivateRound:
    """DP-SGD: see ``LocalTrainer.train_privately``. The two sources are drawn from while it is trained."""

    start: list[Tensor]
    rows: TrainingRows
    noise_multiplier: float
    rate: float
    expected_batch_size: float
    sampling: NoiseSource
    gaussian: NoiseSource
    layer_seed: int

    def attempt(self) -> PrivateRound:
        """The round with copies of its sources as they are.

        A round that breaks off and is repeated draws the same batches and the same noise: had it been drawn anew until it
        went through, a device that fails with some batches would choose among them, which the accounting does not know.
        """
        return replace(self, sampling=copy.deepcopy(self.sampling), gaussian=copy.deepcopy(self.gaussian))


@dataclass(frozen=True)
class Trained:
    """The parameters as they ended, on the CPU, and what was counted: see ``LocalResult``."""

    parameters: list[Tensor]
    empty_batches: int = 0
    nonfinite_gradients: int = 0
