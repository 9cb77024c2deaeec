"""The quality gate: estimates with intervals, and bounds that may be held, broken or undecidable.

Counts may carry the discrete Laplace noise of the sites; its variance widens the intervals. Nothing here asks or stores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.stats import binomtest, norm

from fedloop_core.task.document import ExportTarget, QualityGate
from fedloop_server.runs.state import Measured

__all__ = ["Decision", "Estimate", "accuracy", "decide", "difference"]


@dataclass(frozen=True)
class Estimate:
    """A share with its confidence interval; ``total`` is the number of rows behind it, possibly noised."""

    value: float
    low: float
    high: float
    total: float

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Decision:
    """One bound and what became of it."""

    name: str
    verdict: Literal["pass", "fail", "undecidable"]
    detail: str


def accuracy(measured: Sequence[Measured], confidence: float) -> Estimate:
    """Share of right answers over all counts given, Wilson interval (Wilson 1927), widened by the noise on the counts.

    Without any rows the value is 0 and the interval is everything.
    """
    right = sum(m.right for m in measured)
    total = right + sum(m.wrong for m in measured)
    if total < 1:
        return Estimate(0.0, 0.0, 1.0, max(total, 0.0))
    share = min(max(right / total, 0.0), 1.0)
    rows = max(round(total), 1)
    interval = binomtest(min(max(round(right), 0), rows), rows).proportion_ci(confidence, method="wilson")
    variance = sum(_noise_variance(m.noise_scale) for m in measured) * (share**2 + (1 - share) ** 2) / total**2
    widening = float(norm.ppf((1 + confidence) / 2)) * math.sqrt(variance)
    low = share - math.hypot(share - interval.low, widening)
    high = share + math.hypot(interval.high - share, widening)
    return Estimate(share, max(low, 0.0), min(high, 1.0), total)


def difference(first: Estimate, second: Estimate) -> Estimate:
    """``first - second`` as if measured on different rows, which is wider than on the same: never too sure."""
    value = first.value - second.value
    half = math.hypot(first.half_width, second.half_width)
    return Estimate(value, max(value - half, -1.0), min(value + half, 1.0), min(first.total, second.total))


def decide(
    gate: QualityGate,
    artifacts: Mapping[ExportTarget, Estimate],
    *,
    float_kind: ExportTarget,
    production: Estimate | None,
) -> tuple[bool, tuple[Decision, ...]]:
    """Whether a version is released, with every bound's verdict.

    Args:
        gate: the task's bounds.
        artifacts: overall accuracy of each artifact that would ship.
        float_kind: the artifact that stands for the model before quantisation.
        production: overall accuracy of the version in production on the same rows, if there is one.
    """
    decisions: list[Decision] = []
    for kind, estimate in artifacts.items():
        decisions.append(_bound(f"{kind}: accuracy", estimate, gate.minimum_accuracy))
        if kind != float_kind and float_kind in artifacts:
            loss = difference(estimate, artifacts[float_kind])
            decisions.append(_bound(f"{kind}: against {float_kind}", loss, -gate.maximum_loss_to_float))
        if production is not None:
            loss = difference(estimate, production)
            decisions.append(_bound(f"{kind}: against production", loss, -gate.maximum_loss_to_production))
    failed = any(decision.verdict == "fail" for decision in decisions)
    open_question = any(decision.verdict == "undecidable" for decision in decisions)
    released = not failed and (not open_question or gate.when_undecidable == "release")
    return released, tuple(decisions)


def _bound(name: str, estimate: Estimate, bound: float) -> Decision:
    said = f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}], at least {bound:.3f} is asked"
    if estimate.low >= bound:
        return Decision(name, "pass", said)
    if estimate.high < bound:
        return Decision(name, "fail", said)
    return Decision(name, "undecidable", said)


def _noise_variance(scale: float) -> float:
    """Variance of the discrete Laplace distribution with scale b: ``2 p / (1 - p)**2`` with ``p = exp(-1 / b)``."""
    if scale <= 0:
        return 0.0
    p = math.exp(-1 / scale)
    return 2 * p / (1 - p) ** 2
