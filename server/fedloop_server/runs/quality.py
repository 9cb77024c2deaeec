"""The quality gate: bounds on estimates that may be held, broken or undecidable. Nothing here asks or stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fedloop_core.measure import measure_of, measure_width
from fedloop_core.schema import ClassLabel, Label, RegressionLabel, SurvivalLabel
from fedloop_core.task.document import ExportTarget, QualityGate
from fedloop_server.runs.estimates import Estimate, difference

__all__ = ["Bound", "Decision", "decide"]

Verdict = Literal["pass", "fail", "undecidable"]


@dataclass(frozen=True)
class Bound:
    """A value that an estimate must not be below (``least``) or above, in the measure's own unit."""

    value: float
    least: bool

    def judge(self, name: str, estimate: Estimate) -> Decision:
        """Holds or breaks when the whole interval is on one side."""
        side = "at least" if self.least else "at most"
        said = f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}], {side} {self.value:.3f} is asked"
        sign = 1 if self.least else -1
        worst, best = sorted((sign * estimate.low, sign * estimate.high))
        if worst >= sign * self.value:
            return Decision(name, "pass", said)
        if best < sign * self.value:
            return Decision(name, "fail", said)
        return Decision(name, "undecidable", said)


@dataclass(frozen=True)
class Decision:
    """One bound and what became of it."""

    name: str
    verdict: Verdict
    detail: str


def decide(
    gate: QualityGate,
    label: Label,
    artifacts: Mapping[ExportTarget, Estimate],
    *,
    float_kind: ExportTarget,
    production: Estimate | None,
) -> tuple[bool, tuple[Decision, ...]]:
    """Whether a version is released, with every bound's verdict. What nobody evaluated is never released.

    Args:
        gate: the task's bounds.
        label: says which of the bounds is meant, and its unit.
        artifacts: overall estimate of the label's measure for each artifact that would ship.
        float_kind: the artifact that stands for the model before quantisation.
        production: overall estimate of the version in production on the same rows, if there is one.
    """
    measure, width, bound = measure_of(label), measure_width(label), _bound(gate, label)

    def gain(estimate: Estimate, other: Estimate) -> Estimate:
        return difference(estimate, other) if measure.rises else difference(other, estimate)

    to_float, to_production = (
        Bound(-loss * width, least=True) for loss in (gate.maximum_loss_to_float, gate.maximum_loss_to_production)
    )
    decisions: list[Decision] = []
    for kind, estimate in artifacts.items():
        if estimate.total < 1:
            decisions.append(Decision(f"{kind}: {measure.words}", "fail", "no evaluation row told anything about it"))
            continue
        decisions.append(bound.judge(f"{kind}: {measure.words}", estimate))
        if kind != float_kind and float_kind in artifacts:
            decisions.append(to_float.judge(f"{kind}: against {float_kind}", gain(estimate, artifacts[float_kind])))
        if production is not None:
            decisions.append(to_production.judge(f"{kind}: against production", gain(estimate, production)))
    failed = any(decision.verdict == "fail" for decision in decisions)
    open_question = any(decision.verdict == "undecidable" for decision in decisions)
    released = not failed and (not open_question or gate.when_undecidable == "release")
    return released, tuple(decisions)


def _bound(gate: QualityGate, label: Label) -> Bound:
    match label:
        case ClassLabel():
            return Bound(gate.minimum_accuracy, least=True)
        case RegressionLabel():
            return Bound(gate.maximum_error * measure_width(label), least=False)
        case SurvivalLabel():
            return Bound(gate.minimum_concordance, least=True)
