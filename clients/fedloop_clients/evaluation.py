"""Evaluation of a model or artifact on evaluation rows: counts and sums, exact or noised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from fedloop_clients.privacy.mechanisms import noised_counts
from fedloop_core.dataset import Dataset
from fedloop_core.noise import NoiseSource
from fedloop_core.schema import ClassLabel, Label, RegressionLabel, SurvivalLabel

__all__ = ["Scores", "exact_scores", "noised_scores", "one_row_per_unit"]

_STEPS = 1000  # an error as a share of the label's range is counted in thousandths, so that noise is on whole numbers


@dataclass(frozen=True)
class Scores:
    """What an evaluation found over ``total`` rows.

    Classes: ``correct`` rows and the sum of cross-entropies. A regression: sums of absolute and squared errors, in the
    label's unit. Survival: concordant and comparable pairs as ``correct`` and ``total`` (Harrell 1982). Noised scores
    may be negative and have no loss; ``noise_scale`` is that of each count.
    """

    correct: float
    total: float
    loss_sum: float = 0.0
    absolute_error_sum: float = 0.0
    squared_error_sum: float = 0.0
    noise_scale: float = 0.0


def exact_scores(label: Label, outputs: NDArray[np.float32], labels: NDArray[np.generic]) -> Scores:
    """Scores of a model's outputs, float32 ``[rows, outputs]``.

    A row whose outputs are not finite counts as wrong, with the loss of a uniform guess; in a regression, with the
    greatest error that the label's range allows.
    """
    finite = np.asarray(np.isfinite(outputs).all(axis=1), dtype=np.bool_)
    match label:
        case ClassLabel():
            logits = np.where(finite[:, np.newaxis], outputs.astype(np.float64), 0.0)
            right = finite & (logits.argmax(axis=1) == labels)
            loss = logsumexp(logits, axis=1) - logits[np.arange(len(logits)), labels.astype(np.int64)]
            return Scores(float(right.sum()), float(len(labels)), float(loss.sum()))
        case RegressionLabel():
            error = _errors(label, outputs, labels)
            return Scores(
                0.0,
                float(len(labels)),
                float((np.square(error) / _reach(label) ** 2).sum()),
                float(error.sum()),
                float(np.square(error).sum()),
            )
        case SurvivalLabel():
            return _concordance(np.where(finite, outputs[:, 0], 0.0), labels)


def noised_scores(
    label: Label, outputs: NDArray[np.float32], labels: NDArray[np.generic], epsilon: float, noise: NoiseSource
) -> Scores:
    """Scores under discrete Laplace noise: ``epsilon``-differentially private for adding or removing one row.

    Classes: one row moves exactly one of the two counts, right and wrong, by 1. A regression: it moves the number of
    rows by 1 and each sum of errors by at most the label's range; the three share epsilon equally. Every unit may have
    one row here: see ``one_row_per_unit``.

    Args:
        label: classes or a regression.
        outputs: float32 ``[rows, outputs]``.
        labels: of the same rows.
        epsilon: of this release.
        noise: source of the noise.
    """
    if isinstance(label, ClassLabel):
        scores = exact_scores(label, outputs, labels)
        right, wrong = noised_counts((int(scores.correct), int(scores.total - scores.correct)), 1 / epsilon, noise)
        return Scores(float(right), float(right + wrong), noise_scale=1 / epsilon)
    if not isinstance(label, RegressionLabel):
        raise TypeError("survival tasks are never private")
    width = 2 * _reach(label)
    share = np.minimum(_errors(label, outputs, labels) / width, 1.0)
    third = epsilon / 3
    (rows,) = noised_counts((len(labels),), 1 / third, noise)
    sums = (int(np.rint(share * _STEPS).sum()), int(np.rint(np.square(share) * _STEPS).sum()))
    (absolute,) = noised_counts(sums[:1], _STEPS / third, noise)
    (squared,) = noised_counts(sums[1:], _STEPS / third, noise)
    return Scores(
        0.0,
        float(rows),
        absolute_error_sum=absolute / _STEPS * width,
        squared_error_sum=squared / _STEPS * width**2,
        noise_scale=1 / third,
    )


def one_row_per_unit(rows: Dataset) -> Dataset:
    """The newest row of each unit, so that one unit moves a count by 1; rows with an empty unit all stay."""
    last = {unit or f"\0{place}": place for place, unit in enumerate(rows.units)}
    return rows if len(last) == len(rows) else rows.take(sorted(last.values()))


def _reach(label: RegressionLabel) -> float:
    return (label.range[1] - label.range[0]) / 2


def _errors(label: RegressionLabel, outputs: NDArray[np.float32], labels: NDArray[np.generic]) -> NDArray[np.float64]:
    low, high = label.range
    error = np.abs(outputs[:, 0].astype(np.float64) - np.clip(labels.astype(np.float64), low, high))
    return np.where(np.isfinite(error), error, high - low)


def _concordance(hazards: NDArray[np.generic], labels: NDArray[np.generic]) -> Scores:
    time, event = labels[:, 0].astype(np.float64), labels[:, 1].astype(np.float64) > 0
    hazard = hazards.astype(np.float64)
    comparable = event[:, None] & (time[:, None] < time[None, :])
    pairs = np.sign(hazard[:, None] - hazard[None, :])[comparable]
    return Scores(float((pairs > 0).sum() + 0.5 * (pairs == 0).sum()), float(len(pairs)))
