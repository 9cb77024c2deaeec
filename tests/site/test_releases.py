"""What leaves a site beside updates: moments and scores, exact and noised."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloop_clients.evaluation import exact_scores, noised_scores, one_row_per_unit
from fedloop_clients.statistics import exact_moments, noised_moments
from fedloop_core.dataset import Dataset
from fedloop_core.noise import SeededNoise, SystemNoise
from fedloop_core.scaling import Scaler
from fedloop_core.schema import ClassLabel, NumericFeature, RegressionLabel, SurvivalLabel
from fedloop_core.task.document import LogisticModel, Preprocessing, Privacy, Task

FEATURES = (
    NumericFeature(kind="numeric", name="age", range=(20.0, 80.0), missing="mean"),
    NumericFeature(kind="numeric", name="dose", range=(0.0, 1.0)),
)
CLASSES = ClassLabel(kind="classes", name="y", classes=("no", "yes"))
TASK = Task(
    format=1,
    name="moments",
    features=FEATURES,
    label=CLASSES,
    model=LogisticModel(kind="logistic"),
    preprocessing=Preprocessing(scaling="federated"),
    privacy=Privacy(epsilon=float("inf")),
)
SCHEMA = TASK.feature_schema


def some_rows(count: int, units: tuple[str, ...] | None = None) -> Dataset:
    generator = np.random.default_rng(1)
    values = np.stack([generator.uniform(10, 90, count), generator.uniform(0, 1, count)], axis=1).astype(np.float32)
    values[::5, 0] = np.nan
    return Dataset({"numeric": values}, generator.integers(0, 2, count), units or ("",) * count)


def test_exact_moments_clamp_and_leave_missing_values_out() -> None:
    rows = some_rows(50)
    moments = exact_moments(TASK, rows)
    ages = np.clip(rows.inputs["numeric"][:, 0].astype(np.float64), 20, 80)
    assert moments.count.tolist() == [40, 50]
    assert moments.total[0] == pytest.approx(np.nansum(ages))
    assert moments.total_of_squares[0] == pytest.approx(np.nansum(ages**2))


def test_noised_moments_without_noise_are_the_exact_ones() -> None:
    rows = some_rows(50)
    ours, exact = noised_moments(SCHEMA, rows, 1e-12, SeededNoise(1)), exact_moments(TASK, rows)
    np.testing.assert_allclose(ours.total, exact.total, rtol=1e-9)
    np.testing.assert_allclose(ours.total_of_squares, exact.total_of_squares, rtol=1e-9)
    np.testing.assert_allclose(ours.count, exact.count, rtol=1e-9)


def test_noised_moments_still_give_a_sound_scaler() -> None:
    moments = noised_moments(SCHEMA, some_rows(20), 50.0, SystemNoise())
    scaler = Scaler.from_moments(SCHEMA, moments.total, moments.total_of_squares, moments.count)
    assert np.isfinite(scaler.mean).all()
    assert (scaler.deviation > 0).all()


@settings(deadline=None, max_examples=30)
@given(age=st.floats(-1e6, 1e6) | st.just(math.nan), dose=st.floats(-1e6, 1e6), copies=st.integers(1, 5))
def test_a_unit_moves_the_scaled_sums_by_at_most_the_sensitivity(age: float, dose: float, copies: int) -> None:
    """Read back through the post-processing: with noise as good as none, and with or without one unit."""
    rows = some_rows(10)
    unit = Dataset(
        {"numeric": np.tile(np.array([[age, dose]], np.float32), (copies, 1))},
        np.zeros(copies, np.int64),
        ("x",) * copies,
    )
    with_unit = noised_moments(SCHEMA, rows.concatenate(unit), 1e-12, SeededNoise(1))
    without = noised_moments(SCHEMA, rows, 1e-12, SeededNoise(1))
    middle, reach = np.array([50.0, 0.5]), np.array([30.0, 0.5])
    count = with_unit.count - without.count
    first = (with_unit.total - without.total - count * middle) / reach
    raw_second = with_unit.total_of_squares - without.total_of_squares
    second = (raw_second - 2 * first * reach * middle - count * middle**2) / reach**2
    moved = math.sqrt(float((first**2).sum() + (second**2).sum() + (count**2).sum()))
    assert moved <= math.sqrt(3 * 2) * (1 + 1e-5)


def test_moments_noise_has_the_deviation_that_is_charged() -> None:
    schema = SCHEMA.model_copy(update={"features": (FEATURES[1],)})
    rows = Dataset({"numeric": np.full((400, 1), 0.5, np.float32)}, np.zeros(400, np.int64), ("",) * 400)
    noise = SeededNoise(2)
    sums = np.array([noised_moments(schema, rows, 2.0, noise).total[0] for _ in range(400)])
    # sum = first * reach + count * middle, both halves with noise of deviation 2 * sqrt(2 d + 1)
    expected = 2.0 * math.sqrt(3) * math.hypot(0.5, 0.5)
    assert sums.std() == pytest.approx(expected, rel=0.15)
    assert sums.mean() == pytest.approx(200, abs=4 * expected / 20)


def test_scores_of_classes() -> None:
    outputs = np.array([[2, 0], [0, 1], [3, 0], [np.nan, 0]], np.float32)
    scores = exact_scores(CLASSES, outputs, np.array([0, 1, 1, 0]))
    assert (scores.correct, scores.total) == (2, 4)
    losses = [math.log1p(math.exp(-2)), math.log1p(math.exp(-1)), 3 + math.log1p(math.exp(-3)), math.log(2)]
    assert scores.loss_sum == pytest.approx(sum(losses))


def test_scores_of_a_regression_are_in_the_labels_unit() -> None:
    label = RegressionLabel(kind="regression", name="y", range=(0.0, 10.0))
    scores = exact_scores(label, np.array([[1], [12], [np.inf]], np.float32), np.array([2, 9, 5], np.float32))
    assert scores.absolute_error_sum == pytest.approx(1 + 3 + 10)
    assert scores.squared_error_sum == pytest.approx(1 + 9 + 100)
    assert scores.loss_sum == pytest.approx(110 / 25)


def test_scores_of_survival_are_concordant_pairs() -> None:
    label = SurvivalLabel(kind="survival", time="t", event="e", time_range=(0.0, 9.0))
    labels = np.array([[1, 1], [2, 0], [3, 1], [4, 1]], np.float32)
    scores = exact_scores(label, np.array([[4], [1], [2], [2]], np.float32), labels)
    assert (scores.correct, scores.total) == (3.5, 4)


def test_noised_counts_of_classes_say_their_scale() -> None:
    outputs = np.tile(np.array([[2, 0]], np.float32), (1000, 1))
    scores = noised_scores(CLASSES, outputs, np.arange(1000) % 4 // 3, 0.5, SeededNoise(1))
    assert scores.noise_scale == 2.0
    assert scores.loss_sum == 0
    assert scores.correct == pytest.approx(750, abs=40)
    assert scores.total == pytest.approx(1000, abs=60)
    assert scores.correct != 750


def test_noised_errors_of_a_regression() -> None:
    label = RegressionLabel(kind="regression", name="y", range=(0.0, 10.0))
    outputs = np.full((2000, 1), 6.0, np.float32)
    scores = noised_scores(label, outputs, np.full(2000, 4.0, np.float32), 1.0, SeededNoise(1))
    assert scores.total == pytest.approx(2000, abs=60)
    assert scores.absolute_error_sum == pytest.approx(4000, abs=10 * 60)
    assert scores.squared_error_sum == pytest.approx(8000, abs=100 * 60)


def test_a_unit_with_many_rows_has_one_in_a_noised_evaluation() -> None:
    rows = some_rows(6, ("a", "b", "a", "", "", "b"))
    kept = one_row_per_unit(rows)
    assert kept.units == ("a", "", "", "b")
    np.testing.assert_array_equal(kept.labels, rows.labels[[2, 3, 4, 5]])
    assert one_row_per_unit(some_rows(4)) is not None
