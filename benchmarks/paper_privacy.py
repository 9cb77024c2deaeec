"""FLamby's study of differential privacy on the heart data, with its accounting corrected, beside ours.

FLamby (arXiv 2210.04620, its ``dp_example``) trains a logistic regression by FedAvg: 15 rounds of 100 steps, batch 4, learning rate
0.001, gradients clipped to 1.1, features standardised by each hospital's own rows. It plans noise for 15 epochs, which are 120 to
750 steps, and every hospital takes 1,500, from a shuffled loader where the accountant assumes Poisson sampling; means and deviations are
charged to nobody. ``their_study`` states what that noise is worth by 1,500 steps, and trains the same again with noise for the steps that
are taken, Poisson sampling, and the standardisation still for free.

Ours is the federation's own DP-SGD. Its settings (15 rounds, 5 steps of 16 rows, rate 0.3, clipping norm 1) are those with which the
preset was first written, before a test row was looked at. Features are scaled by public ranges, the task document's default, and for
comparison by federated means and deviations, the preset's. Everything that is read from the rows is charged: rounds, the number of rows,
and the sums for federated scaling.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fedloop_clients.privacy.calibration import find_noise_multiplier
from fedloop_core.dataset import Dataset
from fedloop_core.newton import Standardisation, design_matrix
from fedloop_core.privacy.accounting import epsilon
from fedloop_core.privacy.charges import SampledGaussianCharge
from fedloop_core.schema import FeatureSchema
from fedloop_core.task import Task
from fedloop_core.task.document import FederatedAveraging
from fedloop_simulations.data import World, load_world
from fedloop_simulations.tasks import chosen_task
from paper_runs import accuracies, trained

__all__ = ["DELTA", "EPSILONS", "Ours", "Theirs", "our_study", "private_task", "their_study"]

DELTA = 1e-4
EPSILONS = (1.0, 5.0)
PUBLISHED = {1.0: 0.6853, 5.0: 0.7036}
"""Mean accuracy over hospitals and seeds at delta 1e-4: owkin/FLamby, results of its dp_example."""

_ROUNDS, _STEPS, _BATCH, _RATE, _CLIP = 15, 100, 4, 0.001, 1.1
_BLOCK = 100  # steps whose noise is drawn at once

Floats = NDArray[np.float64]
Scaling = Literal["range", "federated"]


@dataclass(frozen=True)
class Theirs:
    """FLamby's settings at one nominal epsilon.

    ``spent``: epsilon of their noise over the steps that are taken, by hospital, were their sampling Poisson; ``again``: mean accuracy
    of their settings trained here with their noise, ``corrected``: with noise that keeps the nominal epsilon.
    """

    epsilon: float
    published: float
    spent: tuple[float, ...]
    again: float
    corrected: float
    seeds: int


@dataclass(frozen=True)
class Ours:
    """Ours at one epsilon: mean and deviation over seeds of the mean over hospitals, and the highest epsilon that a site has spent."""

    epsilon: float
    scaling: Scaling
    accuracy: float
    deviation: float
    by_hospital: tuple[float, ...]
    spent: float
    seeds: int


@dataclass(frozen=True)
class _Hospital:
    rows: Floats
    labels: Floats
    test_rows: Floats
    test_labels: Floats

    @property
    def sampling_rate(self) -> float:
        """One over the number of batches, as Opacus takes it."""
        return 1.0 / -(-len(self.rows) // _BATCH)


def private_task(target: float, scaling: Scaling) -> Task:
    """The heart task as it was first written."""
    preset = chosen_task("heart", epsilon=target, rounds=15, scaling=scaling)
    if not isinstance(preset.training, FederatedAveraging):
        raise TypeError("the heart preset is trained by federated averaging")
    training = preset.training.model_copy(update={"local_steps": 5, "batch_size": 16, "learning_rate": 0.3})
    rounds = preset.rounds.model_copy(update={"evaluate_every": 0})
    return preset.model_copy(update={"training": training, "rounds": rounds})


def our_study(
    data: Path | None, target: float, scaling: Scaling, seeds: Sequence[int], confirm: Callable[[str], bool]
) -> Ours:
    """Our training over seeds, each a run of its own."""
    task = private_task(target, scaling)
    found, spent = [], 0.0
    for seed in seeds:
        world = load_world(task, data=data, evaluation_share=1.0, seed=seed, confirm=confirm)
        largest = max(len(site.train) for site in world.sites)
        if task.privacy.delta != DELTA or 1 / largest <= DELTA:
            raise ValueError(f"delta {task.privacy.delta} is not {DELTA}, or guards nothing in {largest} rows")
        arrays, spends = trained(task, world, seed)
        spent = max(spent, *(spend.run_epsilon for spend in spends))
        found.append(accuracies(task, world, arrays))
    means = [statistics.fmean(by_site) for by_site in found]
    by_hospital = tuple(float(value) for value in np.mean(found, axis=0))
    return Ours(target, scaling, statistics.fmean(means), statistics.pstdev(means), by_hospital, spent, len(seeds))


def their_study(data: Path | None, target: float, seeds: Sequence[int], confirm: Callable[[str], bool]) -> Theirs:
    """Their training over seeds, with their noise and with noise for all steps."""
    preset = chosen_task("heart", scaling="per-site", epsilon=float("inf"))
    world = load_world(preset, data=data, evaluation_share=1.0, seed=0, confirm=confirm)
    hospitals = list(_hospitals(world, preset.feature_schema))
    taken = _ROUNDS * _STEPS
    rates = [hospital.sampling_rate for hospital in hospitals]
    planned = [find_noise_multiplier(target, DELTA, rate, round(_ROUNDS / rate)) for rate in rates]
    honest = [find_noise_multiplier(target, DELTA, rate, taken) for rate in rates]
    spent = tuple(
        epsilon([SampledGaussianCharge(noise_multiplier=noise, sampling_rate=rate, steps=taken)], DELTA)
        for noise, rate in zip(planned, rates, strict=True)
    )
    again, corrected = (
        statistics.fmean(_their_training(hospitals, noise, seed) for seed in seeds) for noise in (planned, honest)
    )
    return Theirs(target, PUBLISHED[target], spent, again, corrected, len(seeds))


def _hospitals(world: World, schema: FeatureSchema) -> Iterator[_Hospital]:
    """Each with rows standardised by its own training rows, as they do, and a last column of ones."""
    for site in world.sites:
        matrix = design_matrix(site.train.inputs, schema)
        scaler = Standardisation.from_moments(
            matrix.sum(axis=0), (matrix**2).sum(axis=0), np.full(matrix.shape[1], len(matrix))
        )
        parts = [_with_ones(rows, schema, scaler) for rows in (site.train, site.evaluation)]
        labels = [rows.labels.astype(np.float64) for rows in (site.train, site.evaluation)]
        yield _Hospital(parts[0], labels[0], parts[1], labels[1])


def _with_ones(rows: Dataset, schema: FeatureSchema, scaler: Standardisation) -> Floats:
    matrix = design_matrix(rows.inputs, schema, scaler)
    return np.concatenate([matrix, np.ones((len(matrix), 1))], axis=1)


def _their_training(hospitals: Sequence[_Hospital], noises: Sequence[float], seed: int) -> float:
    """Mean accuracy over hospitals. The noise can be guessed from the seed: this is a table, and releases nothing."""
    chance = np.random.default_rng([seed, 2210])
    columns = hospitals[0].rows.shape[1]
    bound = (columns - 1) ** -0.5
    weights = chance.uniform(-bound, bound, columns)
    total = sum(len(hospital.rows) for hospital in hospitals)
    for _ in range(_ROUNDS):
        moved = np.zeros(columns)
        for hospital, noise in zip(hospitals, noises, strict=True):
            moved += len(hospital.rows) / total * (_local(hospital, weights, noise, chance) - weights)
        weights = weights + moved
    return statistics.fmean(
        float(((hospital.test_rows @ weights > 0) == (hospital.test_labels == 1)).mean()) for hospital in hospitals
    )


def _local(hospital: _Hospital, weights: Floats, noise: float, chance: np.random.Generator) -> Floats:
    """One hospital's steps of DP-SGD in one round."""
    rate, count = hospital.sampling_rate, len(hospital.rows)
    for _ in range(_STEPS // _BLOCK):
        drawn = chance.random((_BLOCK, count)) < rate
        noises = chance.normal(0.0, noise * _CLIP, (_BLOCK, len(weights)))
        for chosen, added in zip(drawn, noises, strict=True):
            rows = hospital.rows[chosen]
            gradients = (expit(rows @ weights) - hospital.labels[chosen])[:, None] * rows
            lengths = np.maximum(np.linalg.norm(gradients, axis=1, keepdims=True) / _CLIP, 1.0)
            weights = weights - _RATE * ((gradients / lengths).sum(axis=0) + added) / (rate * count)
    return weights
