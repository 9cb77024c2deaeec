"""Audits private training: canaries in or out by a coin, the site's own trainer, an adversary's guesses, a lower bound.

One run holds as many canaries as its model has room for; a small model is trained several times, each time with coins of
its own. Each coin decides about one unit of one run, so all runs together keep what one promises for every coin, and the
guesses of all of them are counted together. No ledger is touched: the rows are a rehearsal's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloop_clients.privacy.planning import PrivacyPlan, plan_run
from fedloop_clients.statistics import exact_moments
from fedloop_clients.training.rows import UnitIndex
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.arrays import NamedArrays
from fedloop_core.dataset import Dataset
from fedloop_core.errors import UsageError
from fedloop_core.models import initial_arrays
from fedloop_core.noise import NoiseSource
from fedloop_core.privacy.accounting import epsilon
from fedloop_core.privacy.audit import AuditResult
from fedloop_core.scaling import Scaler
from fedloop_core.schema import ClassLabel
from fedloop_core.task import Task
from fedloop_simulations.auditing.adversary import Adversary, RowGradients
from fedloop_simulations.auditing.bound import CONFIDENCE, epsilon_lower_bound, highest_bound

__all__ = ["audit_training", "canaries_a_run"]

_PARAMETERS_A_CANARY = 8
_MOST_A_RUN = 1000
_MOST_NUMBERS = 20_000_000  # of a matrix of gradients
_FEWEST = 8


def canaries_a_run(parameters: int) -> int:
    """How many canaries a model of so many parameters has room for: more than that hide each other, or fill the memory."""
    return min(max(parameters // _PARAMETERS_A_CANARY, 1), _MOST_A_RUN, max(_MOST_NUMBERS // parameters, 1))


def audit_training(
    task: Task,
    rows: Dataset,
    canaries: int,
    noise: NoiseSource,
    *,
    coins: NoiseSource,
    progress: Callable[[int, int], None] | None = None,
) -> AuditResult:
    """Trains a task on a rehearsal's rows with canaries among them, and guesses which were in.

    Half of the canaries are guessed: the quarter that looks most like being in, and the quarter that looks least so.

    Args:
        task: private, trained by federated averaging, with classes as label.
        rows: that are in for certain.
        canaries: in all runs together.
        noise: of the training.
        coins: decides which canaries are in, and what they look like; no seeded source for an audit that counts.
        progress: is told how many runs are done, and of how many.

    Raises:
        UsageError: the task cannot be audited, or there are too few canaries or too many rows for so large a model.
        PrivacyParameterInvalid: the task's parameters guard nothing with these rows.
    """
    if not task.privacy.private or not isinstance(task.label, ClassLabel):
        raise UsageError(
            f"task {task.name!r} cannot be audited: it must be private, and its label have classes.",
            hint="Add --epsilon to a task that is not private.",
        )
    if canaries < _FEWEST:
        raise UsageError(f"{canaries} canaries show nothing: {_FEWEST} at least.", hint="Some hundred are usual.")
    gradients = RowGradients(task)
    if gradients.parameters * len(rows) > 4 * _MOST_NUMBERS:
        raise UsageError(
            f"{len(rows)} rows are too many for an audit of a model with {gradients.parameters:,} parameters.",
            hint="Divide them over more --sites, or audit a smaller model.",
        )
    room = canaries_a_run(gradients.parameters)
    sizes = [room] * (canaries // room) + ([canaries % room] if canaries % room else [])
    told = len(UnitIndex.of(rows.units)) + min(room, canaries) // 2  # follows from no coin
    plan = plan_run(task, told, task.rounds.count)
    trainer = LocalTrainer(task)
    scores: list[NDArray[np.float64]] = []
    tossed: list[NDArray[np.bool_]] = []
    try:
        for run, size in enumerate(sizes):
            own = coins.derive(f"run {run}")
            made = _canaries(rows, size, own, len(task.label.classes))
            heads = np.array([own.uniform() < 0.5 for _ in range(size)])
            adversary = Adversary(gradients, task, plan.round, plan.expected_batch_size, rows, made)
            trained_on = rows.concatenate(made.take(np.flatnonzero(heads)))
            _train(task, trainer, trained_on, plan, noise.derive(f"audit {run}"), adversary, rows, run)
            scores.append(adversary.scores())
            tossed.append(heads)
            if progress is not None:
                progress(run + 1, len(sizes))
    finally:
        trainer.close()
    guesses, correct = _guess(np.concatenate(scores), np.concatenate(tossed))
    delta = task.privacy.delta
    return AuditResult(
        task=task.name,
        claimed=epsilon([plan.round] * task.rounds.count, delta),
        delta=delta,
        bound=epsilon_lower_bound(canaries, guesses, correct, delta),
        highest=highest_bound(canaries, guesses, delta),
        confidence=CONFIDENCE,
        canaries=canaries,
        guesses=guesses,
        correct=correct,
        runs=len(sizes),
        rounds=task.rounds.count,
        noise_multiplier=plan.round.noise_multiplier,
        sampling_rate=plan.round.sampling_rate,
        private=noise.private and coins.private,
    )


def _train(
    task: Task,
    trainer: LocalTrainer,
    rows: Dataset,
    plan: PrivacyPlan,
    noise: NoiseSource,
    adversary: Adversary,
    known: Dataset,
    run: int,
) -> None:
    """All rounds of a run at one site: the coordinator adds each update to the weights."""
    weights: dict[str, NDArray[Any]] = dict(initial_arrays(task, run))
    scaler = _scaler(task, known)
    for number in range(1, task.rounds.count + 1):
        arrays: NamedArrays = {**weights, **scaler}
        result = trainer.train_privately(
            arrays,
            rows,
            plan.round.noise_multiplier,
            plan.round.sampling_rate,
            noise.derive(f"round {number}"),
            expected_batch_size=plan.expected_batch_size,
        )
        adversary.observe(arrays, result.update)
        weights = {name: weights[name] + result.update[name] for name in weights}


def _scaler(task: Task, known: Dataset) -> NamedArrays:
    """Of the known rows, where the task scales by statistics: their noise is not what is audited."""
    schema = task.feature_schema
    if not schema.numeric:
        return {}
    if task.preprocessing.scaling != "federated":
        return Scaler.from_ranges(schema).arrays()
    moments = exact_moments(task, known)
    return Scaler.from_moments(schema, moments.total, moments.total_of_squares, moments.count).arrays()


def _canaries(rows: Dataset, count: int, coins: NoiseSource, classes: int) -> Dataset:
    """Rows as no one has: each column taken from rows of its own, and a label drawn at random."""
    inputs: dict[str, NDArray[np.generic]] = {}
    for name, values in rows.inputs.items():
        flat = values.reshape(len(rows), -1)
        if values.ndim == 2:
            columns = [flat[_some(coins, len(rows), count), at] for at in range(flat.shape[1])]
            inputs[name] = np.stack(columns, axis=1).astype(values.dtype)
        else:
            inputs[name] = values[_some(coins, len(rows), count)]
    labels = np.array([int(coins.uniform() * classes) for _ in range(count)]).astype(rows.labels.dtype)
    return Dataset(inputs, labels, tuple(f"canary {at}" for at in range(count)))


def _some(coins: NoiseSource, rows: int, count: int) -> NDArray[np.int64]:
    return np.array([int(coins.uniform() * rows) for _ in range(count)], dtype=np.int64)


def _guess(scores: NDArray[np.float64], heads: NDArray[np.bool_]) -> tuple[int, int]:
    """How many guesses, and how many of them are right: fixed numbers of "in" and "out", by the scores' order alone."""
    order = np.argsort(scores, kind="stable")
    each = len(scores) // 4
    out, within = order[:each], order[len(order) - each :]
    return 2 * each, int((~heads[out]).sum() + heads[within].sum())
