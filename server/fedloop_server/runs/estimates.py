"""From what sites measured to estimates with intervals, one for each measure.

Counts and sums may carry the discrete Laplace noise of the sites; its variance widens the intervals. An estimate without
any rows has the measure's worst value, and its interval is everything. Every finite number gives an estimate, since journals of
earlier releases may hold any: sums are read as no farther from 0 than 10^30.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scipy.special import ndtri, stdtrit  # scipy.stats takes a second to import

from fedloop_core.schema import ClassLabel, Label, RegressionLabel, SurvivalLabel
from fedloop_server.runs.events import AnswersMeasured, ErrorsMeasured, Measured, PairsMeasured

__all__ = ["Estimate", "absolute_error", "accuracy", "concordance", "difference", "estimate"]


_FARTHEST = 1e30  # so that squares and cubes are numbers too


@dataclass(frozen=True)
class Estimate:
    """A value of a measure with its confidence interval; ``total`` is the number of rows behind it, possibly noised."""

    value: float
    low: float
    high: float
    total: float

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


def estimate(label: Label, measured: Sequence[Measured], confidence: float) -> Estimate:
    """The estimate of the label's measure over all that was measured."""
    match label:
        case ClassLabel():
            return accuracy([m for m in measured if isinstance(m, AnswersMeasured)], confidence)
        case RegressionLabel(range=(low, high)):
            return absolute_error([m for m in measured if isinstance(m, ErrorsMeasured)], high - low, confidence)
        case SurvivalLabel():
            return concordance([m for m in measured if isinstance(m, PairsMeasured)], confidence)


def accuracy(measured: Sequence[AnswersMeasured], confidence: float) -> Estimate:
    """Share of right answers, Wilson interval (Wilson 1927), widened by the noise on the counts."""
    right = _held(m.right for m in measured)
    total = right + _held(m.wrong for m in measured)
    if total < 1:
        return Estimate(0.0, 0.0, 1.0, max(total, 0.0))
    share = min(max(right / total, 0.0), 1.0)
    low, high = _wilson(share, total, confidence)
    noise = _held(_noise_variance(m.noise_scale) for m in measured)
    variance = noise * (share**2 + (1 - share) ** 2) / total**2
    widening = _quantile(confidence) * math.sqrt(variance)
    return Estimate(
        share,
        max(share - math.hypot(share - low, widening), 0.0),
        min(share + math.hypot(high - share, widening), 1.0),
        total,
    )


def absolute_error(measured: Sequence[ErrorsMeasured], width: float, confidence: float) -> Estimate:
    """Mean absolute error with Student's interval, widened by the noise on its sums.

    With errors as shares of the label's range, the mean m of n of them has the variance ``(q - m^2) / (n - 1)``, q being
    the mean of their squares; it is at most ``m (1 - m) / (n - 1)`` (Bhatia and Davis 2000). Noise of variance v on each of
    the sums of ``s^2``, ``s - s^2`` and ``1 - s`` adds ``v (2 (1 - m)^2 + m^2) / n^2`` to it by the delta method, since the
    error is the first two over all three; q is then taken one deviation of its noise higher than it came.

    Measured at 0.95: 93 to 99 per cent of intervals hold the truth from 36 rows on, normal and Laplace errors, with noise
    and without; 89 where one error in ten is eight times the others and there are but 36 rows without noise.

    Args:
        measured: sums of each site.
        width: the label's range, no error being greater.
        confidence: of the interval.
    """
    rows = _held(m.rows for m in measured)
    if rows < 2:
        return Estimate(width, 0.0, width, max(rows, 0.0))
    mean = min(max(_held(m.absolute / width for m in measured) / rows, 0.0), 1.0)
    noise = _held(_noise_variance(m.noise_scale) for m in measured)
    squares = _held(m.squared / width / width for m in measured)
    spread = max(squares / rows - mean**2, 0.0) + math.sqrt(noise) / rows
    variance = min(spread, mean * (1 - mean)) / (rows - 1)
    sampling = float(stdtrit(rows - 1, (1 + confidence) / 2)) * math.sqrt(variance)
    widening = _quantile(confidence) * math.sqrt(noise * (2 * (1 - mean) ** 2 + mean**2)) / rows
    half = math.hypot(sampling, widening)
    return Estimate(mean * width, max(mean - half, 0.0) * width, min(mean + half, 1.0) * width, rows)


def concordance(measured: Sequence[PairsMeasured], confidence: float) -> Estimate:
    """Share of concordant among comparable pairs, with a Wilson interval over an effective number of pairs.

    Pairs that share a row are not independent. The share C is a ratio of two U-statistics, whose variance is about
    ``sum((c - C n)^2) / pairs^2`` over rows, c and n being the concordant and comparable pairs that a row is in (Pencina
    and D'Agostino 2004); ``C (1 - C)`` over that is the number of independent pairs that would say as much. It is kept
    between the number of comparable pairs and, where all pairs agree and the variance says nothing, ``pairs / (rows - 1)``:
    as many of them have no row in common, and no U-statistic is less certain than that (Hoeffding 1963).
    """
    rows = _held(m.rows for m in measured)
    pairs = _held(m.comparable for m in measured)
    if pairs < 1:
        return Estimate(0.0, 0.0, 1.0, rows)
    share = min(max(_held(m.concordant for m in measured) / pairs, 0.0), 1.0)
    disjoint = _held(m.comparable / max(m.rows - 1, 1.0) for m in measured)
    squares = (
        _held(m.concordant_squared for m in measured)
        - 2 * share * _held(m.concordant_comparable for m in measured)
        + share**2 * _held(m.comparable_squared for m in measured)
    )
    effective = share * (1 - share) * pairs**2 / squares if squares > 0 else 0.0
    low, high = _wilson(share, min(max(effective, disjoint, 1.0), pairs), confidence)
    return Estimate(share, low, high, rows)


def difference(first: Estimate, second: Estimate) -> Estimate:
    """``first - second`` as if measured on different rows, which is wider than on the same: never too sure."""
    value = first.value - second.value
    half = math.hypot(first.half_width, second.half_width)
    low, high = max(value - half, first.low - second.high), min(value + half, first.high - second.low)
    return Estimate(value, low, high, min(first.total, second.total))


def _held(values: Iterable[float]) -> float:
    """The sum, each value and itself no farther from 0 than ``_FARTHEST``."""
    total = sum(min(max(value, -_FARTHEST), _FARTHEST) for value in values)
    return min(max(total, -_FARTHEST), _FARTHEST)


def _wilson(share: float, total: float, confidence: float) -> tuple[float, float]:
    """Ends of the Wilson interval; ``total`` need not be whole."""
    z = _quantile(confidence)
    middle = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z / (1 + z**2 / total) * math.sqrt(share * (1 - share) / total + z**2 / (4 * total**2))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def _quantile(confidence: float) -> float:
    return float(ndtri((1 + confidence) / 2))


def _noise_variance(scale: float) -> float:
    """Variance of the discrete Laplace distribution with scale b: ``2 p / (1 - p)**2`` with ``p = exp(-1 / b)``."""
    if scale < 1 / _FARTHEST:  # p is 0 long before
        return 0.0
    p, rest = math.exp(-1 / scale), -math.expm1(-1 / scale)
    return 2 * p / rest / rest
