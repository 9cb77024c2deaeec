from __future__ import annotations

import numpy as np
import pytest

from fedloop_core.schema import ClassLabel
from fedloop_core.task.document import QualityGate
from fedloop_server.runs.estimates import Estimate, accuracy, difference
from fedloop_server.runs.events import AnswersMeasured
from fedloop_server.runs.quality import decide

LABEL = ClassLabel(kind="classes", name="y", classes=("no", "yes"))


def counts(right: float, wrong: float, noise: float = 0.0, site: str = "a") -> AnswersMeasured:
    return AnswersMeasured(site=site, right=right, wrong=wrong, noise_scale=noise)


def test_wilson_interval_of_exact_counts() -> None:
    # Published example: 8 of 10 at 95 per cent, Wilson: 0.490 to 0.943 (Newcombe 1998, method 3).
    estimate = accuracy([counts(8, 2)], 0.95)
    assert estimate.value == 0.8
    assert estimate.low == pytest.approx(0.490, abs=0.001)
    assert estimate.high == pytest.approx(0.943, abs=0.001)


def test_no_rows_know_nothing() -> None:
    assert accuracy([], 0.95) == Estimate(0.0, 0.0, 1.0, 0.0)
    assert accuracy([counts(-3, 1, 2.0)], 0.95).low == 0.0


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_intervals_of_noised_counts_cover_at_their_level(scale: float) -> None:
    generator = np.random.default_rng(5)
    p = 1 - np.exp(-1 / scale)
    covered = 0
    trials = 800
    for _ in range(trials):
        measured = []
        for site in "abc":
            right = generator.binomial(30, 0.85)
            noise = generator.geometric(p, 2) - generator.geometric(p, 2)
            measured.append(counts(right + noise[0], 30 - right + noise[1], scale, site))
        estimate = accuracy(measured, 0.95)
        covered += estimate.low <= 0.85 <= estimate.high
    assert covered / trials >= 0.93


def test_noise_widens_the_interval() -> None:
    exact = accuracy([counts(80, 20)], 0.95)
    noised = accuracy([counts(80, 20, 5.0)], 0.95)
    assert noised.half_width > exact.half_width


def test_a_difference_is_wider_than_either() -> None:
    first, second = accuracy([counts(90, 10)], 0.95), accuracy([counts(80, 20)], 0.95)
    gap = difference(first, second)
    assert gap.value == pytest.approx(0.1)
    assert gap.half_width > max(first.half_width, second.half_width)


@pytest.mark.parametrize(
    ("case", "right", "wrong", "when", "released", "verdict"),
    [
        ("clearly good", 960, 40, "hold", True, "pass"),
        ("clearly bad", 700, 300, "release", False, "fail"),
        ("too few rows, released by the task's choice", 9, 1, "release", True, "undecidable"),
        ("too few rows, held by the task's choice", 9, 1, "hold", False, "undecidable"),
    ],
)
def test_the_minimum_accuracy(case: str, right: int, wrong: int, when: str, released: bool, verdict: str) -> None:
    gate = QualityGate.model_validate({"minimum_accuracy": 0.9, "when_undecidable": when})
    outcome, decisions = decide(
        gate, LABEL, {"onnx-fp32": accuracy([counts(right, wrong)], 0.95)}, float_kind="onnx-fp32", production=None
    )
    assert outcome is released, case
    assert decisions[0].verdict == verdict
    assert "0.900 is asked" in decisions[0].detail


def test_what_nobody_evaluated_is_never_released() -> None:
    gate = QualityGate(minimum_accuracy=0.0, when_undecidable="release")
    good, unknown = accuracy([counts(960, 40)], 0.95), accuracy([], 0.95)
    released, decisions = decide(
        gate, LABEL, {"onnx-fp32": good, "onnx-int8": unknown}, float_kind="onnx-fp32", production=None
    )
    assert not released
    assert [decision.verdict for decision in decisions] == ["pass", "fail"]


def test_int8_that_lost_and_a_challenger_that_lost_are_refused() -> None:
    gate = QualityGate(maximum_loss_to_float=0.02, maximum_loss_to_production=0.02)
    good, bad = accuracy([counts(9500, 500)], 0.95), accuracy([counts(9000, 1000)], 0.95)
    released, decisions = decide(
        gate, LABEL, {"onnx-fp32": good, "onnx-int8": bad}, float_kind="onnx-fp32", production=good
    )
    assert not released
    assert {d.name for d in decisions if d.verdict == "fail"} == {
        "onnx-int8: against onnx-fp32",
        "onnx-int8: against production",
    }
