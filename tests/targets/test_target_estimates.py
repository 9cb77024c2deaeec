"""Estimates of errors and concordance: right values, intervals that hold what they say, and gates over them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedloop_clients.evaluation import exact_scores, noised_scores
from fedloop_core.errors import TaskInvalid, UpdateRefused
from fedloop_core.noise import SeededNoise
from fedloop_core.schema import ClassLabel, Label, RegressionLabel, SurvivalLabel
from fedloop_core.task.document import QualityGate
from fedloop_core.task.presets import starter_text
from fedloop_core.task.reader import parse_task
from fedloop_proto.coordination.v1.coordination_pb2 import Evaluation, PairSums
from fedloop_server.runs.answers import measured_in
from fedloop_server.runs.estimates import Estimate, absolute_error, concordance, estimate
from fedloop_server.runs.quality import decide

CLASSES = ClassLabel(kind="classes", name="y", classes=("no", "yes"))
NUMBER = RegressionLabel(kind="regression", name="y", range=(0.0, 100.0))
SURVIVAL = SurvivalLabel(kind="survival", time="t", event="e", time_range=(0.0, 9.0))
Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]


def errors_at(site: str, errors: NDArray[np.float64], epsilon: float | None, seed: int) -> Any:
    outcomes = np.full(len(errors), 50.0, np.float32)
    outputs = (outcomes + errors)[:, np.newaxis].astype(np.float32)
    if epsilon is None:
        scores = exact_scores(NUMBER, outputs, outcomes)
    else:
        scores = noised_scores(NUMBER, outputs, outcomes, epsilon, SeededNoise(seed, site))
    (measured,) = measured_in(site, NUMBER, scores.message())
    return measured


@pytest.mark.parametrize("epsilon", [None, 1.0, 0.3], ids=["exact", "epsilon 1", "epsilon 0.3"])
@pytest.mark.parametrize(
    ("draw", "truth"),
    [
        pytest.param(lambda g, n: g.normal(0, 10, n), 10 * math.sqrt(2 / math.pi), id="normal"),
        pytest.param(lambda g, n: g.laplace(0, 8, n), 8.0, id="heavy tails"),
    ],
)
def test_intervals_of_errors_cover_at_their_level(draw: Draw, truth: float, epsilon: float | None) -> None:
    covered, trials = 0, 1500
    for seed in range(trials):
        generator = np.random.default_rng(seed)
        found = absolute_error([errors_at(site, draw(generator, 60), epsilon, seed) for site in "abc"], 100.0, 0.95)
        covered += found.low <= truth <= found.high
    assert covered / trials >= 0.93


@pytest.mark.parametrize(("effect", "rows"), [(0.0, 8), (0.8, 20), (2.0, 60)])
def test_intervals_of_concordance_cover_at_their_level(effect: float, rows: int) -> None:
    def drawn(seed: int, count: int) -> Any:
        generator = np.random.default_rng(seed)
        hazard = generator.normal(size=count)
        event, censored = generator.exponential(np.exp(-effect * hazard)), generator.exponential(2, count)
        labels = np.stack([np.minimum(event, censored), event <= censored], axis=1).astype(np.float32)
        scores = exact_scores(SURVIVAL, hazard[:, np.newaxis].astype(np.float32), labels)
        (measured,) = measured_in(f"site-{seed}", SURVIVAL, scores.message())
        return measured

    truth = concordance([drawn(1, 4000)], 0.95).value
    trials = 400
    found = [concordance([drawn(10 + 3 * trial + site, rows) for site in range(3)], 0.95) for trial in range(trials)]
    assert sum(f.low <= truth <= f.high for f in found) / trials >= 0.93
    assert found[0].total == 3 * rows


def test_pairs_that_all_agree_are_no_certainty() -> None:
    labels = np.stack([np.arange(10.0), np.ones(10)], axis=1).astype(np.float32)
    scores = exact_scores(SURVIVAL, -np.arange(10.0, dtype=np.float32)[:, np.newaxis], labels)
    found = concordance(measured_in("a", SURVIVAL, scores.message()), 0.95)  # type: ignore[arg-type]
    assert (scores.correct, scores.total) == (45, 45)
    assert found.value == found.high == 1
    assert found.low < 0.6  # as five rows of five pairs without a row in common would say


def test_many_rows_are_paired_a_block_at_a_time() -> None:
    generator = np.random.default_rng(2)
    hazard, labels = generator.normal(size=2300), np.stack([generator.random(2300), np.ones(2300)], axis=1)
    scores = exact_scores(SURVIVAL, hazard[:, np.newaxis].astype(np.float32), labels.astype(np.float32))
    assert scores.total == 2300 * 2299 / 2
    assert scores.pairs is not None
    assert scores.pairs.comparable_squared == 2300 * 2299**2
    assert scores.correct / scores.total == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(("label", "worst"), [(CLASSES, 0.0), (NUMBER, 100.0), (SURVIVAL, 0.0)])
def test_without_rows_the_value_is_the_worst_and_the_interval_everything(label: Label, worst: float) -> None:
    found = estimate(label, [], 0.95)
    assert found.value == worst
    assert (found.low, found.high) == (0.0, 100.0 if label is NUMBER else 1.0)


def test_noise_on_errors_is_that_of_one_count() -> None:
    drawn = [errors_at("a", np.full(50, 20.0), 0.5, seed) for seed in range(400)]
    deviation = math.sqrt(2) * 2.0  # of discrete Laplace noise of scale 2, nearly
    assert np.std([m.squared / 100**2 for m in drawn]) == pytest.approx(deviation, rel=0.15)
    assert np.std([m.absolute / 100 for m in drawn]) == pytest.approx(math.sqrt(2) * deviation, rel=0.15)
    assert np.std([m.rows for m in drawn]) == pytest.approx(math.sqrt(3) * deviation, rel=0.15)
    assert np.mean([m.rows for m in drawn]) == pytest.approx(50, abs=1)
    assert np.mean([m.absolute for m in drawn]) == pytest.approx(1000, abs=80)


def near(value: float, half: float) -> Estimate:
    return Estimate(value, value - half, value + half, 100)


@pytest.mark.parametrize(
    ("label", "gate", "found", "verdict"),
    [
        pytest.param(NUMBER, {"maximum_error": 0.2}, near(15, 3), "pass", id="error clearly below"),
        pytest.param(NUMBER, {"maximum_error": 0.2}, near(19, 3), "undecidable", id="error about there"),
        pytest.param(NUMBER, {"maximum_error": 0.2}, near(25, 3), "fail", id="error clearly above"),
        pytest.param(NUMBER, {}, near(60, 40), "pass", id="any error by default"),
        pytest.param(SURVIVAL, {"minimum_concordance": 0.6}, near(0.7, 0.05), "pass", id="concordance above"),
        pytest.param(SURVIVAL, {"minimum_concordance": 0.6}, near(0.62, 0.05), "undecidable", id="concordance there"),
        pytest.param(SURVIVAL, {"minimum_concordance": 0.6}, near(0.5, 0.05), "fail", id="concordance below"),
        pytest.param(SURVIVAL, {}, near(0.3, 0.3), "pass", id="any concordance by default"),
        pytest.param(CLASSES, {"minimum_accuracy": 0.6}, near(0.5, 0.05), "fail", id="accuracy below"),
    ],
)
def test_the_bound_of_each_label(label: Label, gate: dict[str, float], found: Estimate, verdict: str) -> None:
    released, (decision,) = decide(
        QualityGate.model_validate(gate), label, {"onnx-fp32": found}, float_kind="onnx-fp32", production=None
    )
    assert decision.verdict == verdict
    assert released is (verdict != "fail")


@pytest.mark.parametrize(
    ("label", "float_model", "int8", "released"),
    [
        pytest.param(NUMBER, near(10, 0.1), near(11, 0.1), True, id="error grew by less than 2 % of the range"),
        pytest.param(NUMBER, near(10, 0.1), near(13, 0.1), False, id="error grew by more"),
        pytest.param(NUMBER, near(10, 0.1), near(5, 0.1), True, id="error fell"),
        pytest.param(SURVIVAL, near(0.7, 0.001), near(0.69, 0.001), True, id="concordance fell by less than 0.02"),
        pytest.param(SURVIVAL, near(0.7, 0.001), near(0.67, 0.001), False, id="concordance fell by more"),
    ],
)
def test_losses_are_in_each_labels_own_measure(
    label: Label, float_model: Estimate, int8: Estimate, released: bool
) -> None:
    outcome, decisions = decide(
        QualityGate(),
        label,
        {"onnx-fp32": float_model, "onnx-int8": int8},
        float_kind="onnx-fp32",
        production=float_model,
    )
    assert outcome is released
    assert {decision.verdict == "fail" for decision in decisions[3:]} == {not released}


CLASS_LABEL = 'kind = "classes"\nname = "outcome"\nclasses = ["no", "yes"]'
NUMBER_LABEL = 'kind = "regression"\nname = "outcome"\nrange = [0, 1]'
SURVIVAL_LABEL = 'kind = "survival"\ntime = "t"\nevent = "e"\ntime_range = [0, 9]'


@pytest.mark.parametrize(
    ("label", "gate", "says"),
    [
        pytest.param(NUMBER_LABEL, "minimum_accuracy = 0.6", "which a label with classes has", id="accuracy"),
        pytest.param(CLASS_LABEL, "maximum_error = 0.6", "which a regression has", id="error"),
        pytest.param(
            NUMBER_LABEL, "minimum_concordance = 0.6", "for this label it is 'maximum_error'", id="concordance"
        ),
        pytest.param(SURVIVAL_LABEL, "minimum_accuracy = 0.6", "it is 'minimum_concordance'", id="survival"),
    ],
)
def test_a_gate_that_does_not_fit_the_label_is_a_mistake_with_its_place(label: str, gate: str, says: str) -> None:
    text = starter_text("first").replace(CLASS_LABEL, label).replace("minimum_accuracy = 0.6", gate)
    text = text.replace("epsilon = 8.0", "epsilon = inf")
    assert label in text
    with pytest.raises(TaskInvalid) as caught:
        parse_task(text)
    (problem,) = caught.value.problems
    line = 1 + text[: text.index(gate)].count("\n")
    assert problem.startswith(f"task.toml:{line}:1: gates.quality.")
    assert says in problem


@pytest.mark.parametrize(
    ("label", "evaluation"),
    [
        pytest.param(CLASSES, Evaluation(present=True, correct=math.nan, total=3), id="NaN"),
        pytest.param(CLASSES, Evaluation(present=True, correct=3, total=math.inf), id="infinite rows"),
        pytest.param(NUMBER, Evaluation(present=True, total=3, absolute_error_sum=math.nan), id="NaN error"),
        pytest.param(NUMBER, Evaluation(present=True, total=3, noise_scale=-1), id="negative scale"),
        pytest.param(SURVIVAL, Evaluation(present=True, correct=-1, total=3), id="negative pairs"),
        pytest.param(SURVIVAL, Evaluation(present=True, total=3, pairs=PairSums(rows=math.nan)), id="NaN rows"),
    ],
)
def test_an_evaluation_that_cannot_be_is_refused(label: Label, evaluation: Evaluation) -> None:
    with pytest.raises(UpdateRefused, match="evaluation of evil is not possible"):
        measured_in("evil", label, evaluation)
