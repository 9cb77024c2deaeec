"""The workload that all rivals run: scikit-learn's digits dealt to 100 small sites, and a perceptron 64-64-10.

Of the 1797 images, 360 are kept to measure accuracy. Each site draws 32 of the others without repeats, from a seed of its
own; 100 x 32 is more than there are, so sites overlap. Nothing of this is private: it is the plainest federated averaging
there is, so that what is measured is what surrounds the training.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.arrays import NamedArrays
from fedloop_core.dataset import Dataset
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task.document import DataGate, FederatedAveraging, Gates, MlpModel, Privacy, Rounds, Task

__all__ = ["SEED", "SITES", "SITES_PER_ROUND", "accuracy", "digits_task", "site_name", "site_rows"]

SITES = 100
SITES_PER_ROUND = 10
SEED = 7
_ROWS_PER_SITE = 32
_HELD_OUT = 360
_BATCH = 16


def digits_task(rounds: int) -> Task:
    """One local epoch a round: two steps over batches of 16."""
    pixels = tuple(NumericFeature(kind="numeric", name=f"pixel-{at}", range=(0.0, 16.0)) for at in range(64))
    return Task(
        format=1,
        name="digits",
        features=pixels,
        label=ClassLabel(kind="classes", name="digit", classes=tuple("0123456789")),
        model=MlpModel(kind="mlp", hidden=(64,)),
        training=FederatedAveraging(
            algorithm="fedavg", local_steps=_ROWS_PER_SITE // _BATCH, batch_size=_BATCH, learning_rate=0.1
        ),
        privacy=Privacy(epsilon=math.inf),
        rounds=Rounds(count=rounds, quorum=1.0, evaluate_every=0, sites_per_round=SITES_PER_ROUND, weighting="equal"),
        gates=Gates(data=DataGate(all_classes=False)),
    )


def site_name(partition: int) -> str:
    """Names whose alphabetical order is that of the partitions."""
    return f"site-{partition:03}"


@cache
def _split() -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(labels))
    return images.astype(np.float32), labels.astype(np.int64), order


def _dataset(places: NDArray[np.int64]) -> Dataset:
    images, labels, _ = _split()
    return Dataset({"numeric": images[places]}, labels[places], ("",) * len(places))


@cache
def site_rows(partition: int) -> Dataset:
    """The rows of one site."""
    _, _, order = _split()
    generator = np.random.default_rng([SEED, partition])
    return _dataset(generator.choice(order[_HELD_OUT:], _ROWS_PER_SITE, replace=False))


def accuracy(arrays: NamedArrays) -> float:
    """Share of the held-out images that a model names rightly."""
    _, _, order = _split()
    rows = _dataset(order[:_HELD_OUT])
    outputs = LocalTrainer(digits_task(1)).outputs(arrays, rows, rows)
    return float((outputs.argmax(axis=1) == rows.labels).mean())
