"""Evaluation of a model or artifact on evaluation rows: counts and sums, exact or noised."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from fedloop_clients.privacy.mechanisms import noised_counts
from fedloop_core.dataset import Dataset
from fedloop_core.noise import NoiseSource
from fedloop_core.schema import ClassLabel, Label, RegressionLabel, SurvivalLabel
from fedloop_proto.coordination.v1.coordination_pb2 import Evaluation, PairSums

__all__ = ["Scores", "exact_scores", "newest_rows", "noised_scores", "one_row_per_unit"]

_STEPS = 1000  # an error as a share of the label's range is counted in thousandths, so that noise is on whole numbers
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class Scores:
    """What an evaluation found over ``total`` rows.

    Classes: ``correct`` rows and the sum of cross-entropies. A regression: sums of absolute and squared errors, in the
    label's unit. Survival: concordant and comparable pairs as ``correct`` and ``total`` (Harrell 1982), and how they are
    spread over rows. Noised scores may be negative and have no loss; ``noise_scale`` is that of each of the sums that
    were noised: see ``noised_scores``.
    """

    correct: float
    total: float
    loss_sum: float = 0.0
    absolute_error_sum: float = 0.0
    squared_error_sum: float = 0.0
    noise_scale: float = 0.0
    pairs: PairSums | None = None

    def message(self) -> Evaluation:
        """As a site answers them."""
        return Evaluation(
            present=True,
            correct=self.correct,
            total=self.total,
            loss_sum=self.loss_sum,
            noised=self.noise_scale > 0,
            noise_scale=self.noise_scale,
            absolute_error_sum=self.absolute_error_sum,
            squared_error_sum=self.squared_error_sum,
            pairs=self.pairs,
        )


def exact_scores(label: Label, outputs: NDArray[np.float32], labels: NDArray[np.generic]) -> Scores:
    """Scores of a model's outputs, float32 ``[rows, outputs]``.

    A row whose outputs are not finite counts as wrong, with the loss of a uniform guess; in a regression, with the
    greatest error that counts: the label's range.
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

    Classes: one row moves exactly one of the two counts, right and wrong, by 1. A regression: with s its error as a share
    of the label's range, it adds ``s^2``, ``s - s^2`` and ``1 - s`` to three sums; these are not negative and 1 together,
    so that the three have no more sensitivity than one count, and rows, errors and squares are sums of them. Every unit
    may have one row here: see ``one_row_per_unit``.

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
    share = _errors(label, outputs, labels) / width
    errors, squares = (np.rint(part * _STEPS).astype(np.int64) for part in (share, np.square(share)))
    parts = (squares, errors - squares, _STEPS - errors)
    released = noised_counts([int(part.sum()) for part in parts], _STEPS / epsilon, noise)
    squared, rest, good = (part / _STEPS for part in released)
    return Scores(
        0.0,
        squared + rest + good,
        absolute_error_sum=(squared + rest) * width,
        squared_error_sum=squared * width**2,
        noise_scale=1 / epsilon,
    )


def one_row_per_unit(rows: Dataset) -> Dataset:
    """The newest row of each unit, so that one unit moves a count by 1; rows with an empty unit all stay."""
    return newest_rows(rows, 1)


def newest_rows(rows: Dataset, most: int) -> Dataset:
    """At most so many rows of each unit, the newest ones, in their order; rows with an empty unit all stay."""
    taken: Counter[str] = Counter()
    kept: list[int] = []
    for place in range(len(rows) - 1, -1, -1):
        unit = rows.units[place]
        if not unit or taken[unit] < most:
            kept.append(place)
            taken[unit] += 1
    return rows if len(kept) == len(rows) else rows.take(kept[::-1])


def _reach(label: RegressionLabel) -> float:
    return (label.range[1] - label.range[0]) / 2


def _errors(label: RegressionLabel, outputs: NDArray[np.float32], labels: NDArray[np.generic]) -> NDArray[np.float64]:
    """Absolute errors, none above the label's range: one row of a bad model moves a sum no further."""
    low, high = label.range
    error = np.abs(outputs[:, 0].astype(np.float64) - np.clip(labels.astype(np.float64), low, high))
    return np.minimum(np.where(np.isfinite(error), error, np.inf), high - low)


def _concordance(hazards: NDArray[np.generic], labels: NDArray[np.generic]) -> Scores:
    """Pairs in which one row's event was seen before the other's time; ties of hazards count half."""
    time, event = labels[:, 0].astype(np.float64), labels[:, 1].astype(np.float64) > 0
    hazard, rows = hazards.astype(np.float64), len(labels)
    right, of = np.zeros(rows), np.zeros(rows)  # pairs that each row is in
    for start in range(0, rows, _ROWS_AT_ONCE):  # memory for some rows against all, never for all against all
        some = slice(start, start + _ROWS_AT_ONCE)
        comparable = (event[some, None] & (time[some, None] < time[None, :])).astype(np.float64)
        concordant = comparable * (0.5 + 0.5 * np.sign(hazard[some, None] - hazard[None, :]))
        for sums, pairs in ((right, concordant), (of, comparable)):
            sums += pairs.sum(axis=0)
            sums[some] += pairs.sum(axis=1)
    spread = PairSums(
        rows=rows,
        concordant_squared=float(right @ right),
        concordant_comparable=float(right @ of),
        comparable_squared=float(of @ of),
    )
    return Scores(float(right.sum()) / 2, float(of.sum()) / 2, pairs=spread)
