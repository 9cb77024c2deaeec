"""The verdict: bounded sensitivity, scales that cost what is charged, one alarm, and thresholds that hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedloop_clients.monitoring.monitor import DriftKind, ErrorCount, Finding, Monitor, MonitorPlan, Reference, Test
from fedloop_clients.monitoring.verdict import VerdictPlan, VerdictState, release_verdict
from fedloop_core.encoding import CATEGORICAL, NUMERIC, Inputs
from fedloop_core.noise import NoiseSource, SeededNoise, SystemNoise
from fedloop_core.privacy.charges import NonPrivateCharge, PureCharge
from fedloop_core.scaling import Scaler
from fedloop_core.schema import CategoricalFeature, ClassLabel, FeatureSchema, NumericFeature
from fedloop_core.sketch import Profile, Sketch

SCHEMA = FeatureSchema(
    features=(
        NumericFeature(kind="numeric", name="pulse", range=(20.0, 220.0), missing="mean"),
        CategoricalFeature(kind="categorical", name="ward", values=("a", "b", "c")),
    ),
    label=ClassLabel(kind="classes", name="outcome", classes=("well", "ill")),
)
PROFILE = Profile.for_schema(SCHEMA, Scaler(np.array([80], np.float32), np.array([15], np.float32)))


def monitor_plan(window_rows: int = 50, reference_rows: int = 90, false_alarm: float = 0.02) -> MonitorPlan:
    return MonitorPlan(false_alarm=false_alarm, sites=1, window_rows=window_rows, reference_rows=reference_rows)


def finding(distance: float, *, window: int = 1, alarmed: bool = False) -> Finding:
    test = Test(kind=DriftKind.COVARIATE, column="pulse", cumulative=False, p=1e-9 if alarmed else 0.5, alpha=1e-3)
    return Finding(
        version=1, window=window, rows=50, alarmed=alarmed, strongest=test, alarms=(test,) * alarmed, distance=distance
    )


def plan(epsilon: float, **of_monitor: float) -> VerdictPlan:
    return VerdictPlan.for_profile(monitor_plan(**of_monitor), PROFILE, epsilon)  # type: ignore[arg-type]


def rows(count: int, seed: int) -> Sketch:
    rng = np.random.default_rng(seed)
    inputs: Inputs = {
        NUMERIC: rng.normal(80 + 30 * (seed % 3), 15, (count, 1)).astype(np.float32),
        CATEGORICAL: rng.integers(0, 1 + seed % 3, (count, 1)),
    }
    return Sketch.empty(PROFILE).add(inputs, rng.integers(0, 2, count), rng.uniform(0.5, 1, count))


@given(window=st.integers(0, 80), reference=st.integers(1, 80), seed=st.integers(0, 10_000), in_window=st.booleans())
def test_one_row_more_moves_the_distance_by_at_most_one_over_the_planned_rows(
    window: int, reference: int, seed: int, in_window: bool
) -> None:
    planned = monitor_plan(window_rows=25, reference_rows=40)
    one = rows(1, seed + 2)
    seen, known = rows(window, seed), rows(reference, seed + 1)

    def distance(known: Sketch, seen: Sketch) -> float:
        monitor = Monitor(planned, Reference(known, ErrorCount()), version=1)
        return monitor.update(monitor.start(), seen)[1].distance

    before = distance(known, seen)
    after = distance(known, seen.merge(one)) if in_window else distance(known.merge(one), seen)
    assert abs(after - before) <= (1 / 25 if in_window else 1 / 40) + 1e-12


@given(
    epsilon=st.floats(0.01, 50),
    window_rows=st.integers(1, 5000),
    reference_rows=st.integers(1, 5000),
    rows_per_unit=st.integers(1, 5),
)
def test_scales_never_cost_more_than_is_charged(
    epsilon: float, window_rows: int, reference_rows: int, rows_per_unit: int
) -> None:
    made = plan(epsilon, window_rows=window_rows, reference_rows=reference_rows).model_copy(
        update={"rows_per_unit": rows_per_unit}
    )
    on_distance, on_threshold = made.scales
    window, reference = rows_per_unit / window_rows, rows_per_unit / reference_rows
    assert window / on_distance <= epsilon * (1 + 1e-9)
    assert reference / on_threshold + 2 * reference / on_distance <= epsilon * (1 + 1e-9)
    assert on_distance > on_threshold > 0
    assert made.charge == PureCharge(epsilon=epsilon)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0, 1000.0])
def test_noise_and_chance_together_cross_the_threshold_as_often_as_planned(epsilon: float) -> None:
    made = plan(epsilon, false_alarm=0.3)
    rng = np.random.default_rng(0)
    draws = 200_000
    worst_chance = np.sqrt(np.log(2 * made.contrasts / rng.uniform(size=draws)) / (2 * 50 * 90 / 140))
    noise = rng.laplace(0, made.scales[0], draws) - rng.laplace(0, made.scales[1], draws)
    rate = float((np.minimum(worst_chance, 1) + noise >= made.threshold(1)).mean())
    assert rate == pytest.approx(made.monitor.alpha(1), rel=0.05)


def test_thresholds_rise_with_windows_and_fall_with_epsilon() -> None:
    assert plan(0.5).threshold(1) < plan(0.5).threshold(2) < plan(0.5).threshold(9)
    assert plan(2.0).threshold(1) < plan(0.5).threshold(1)


def test_without_privacy_the_verdict_is_the_finding_and_costs_an_exact_release() -> None:
    made = plan(math.inf)
    assert made.charge == NonPrivateCharge()
    state = VerdictState.start(made, SeededNoise(0))
    state, quiet = release_verdict(state, finding(0.99), SeededNoise(0))
    state, loud = release_verdict(state, finding(0.1, window=2, alarmed=True), SeededNoise(0))
    assert (quiet.drifted, quiet.kind, quiet.private) == (False, None, False)
    assert (loud.drifted, loud.kind, loud.private) == (True, DriftKind.COVARIATE, False)


def test_a_private_verdict_tells_no_kind_and_the_first_alarm_is_the_last_answer() -> None:
    class NoMoreNoise(SeededNoise):
        def discrete_laplace(self, scale: float, size: int) -> NDArray[np.int64]:
            raise AssertionError("data were read again after the last answer")

    state = VerdictState.start(plan(4.0), SeededNoise(1))
    state, first = release_verdict(state, finding(1.0, alarmed=True), SeededNoise(1))
    state, second = release_verdict(state, finding(0.0, window=2), NoMoreNoise(1))
    assert first.drifted
    assert second.drifted
    assert first.kind is None
    assert state.drifted_at == 1


def test_state_survives_being_written() -> None:
    state = VerdictState.start(plan(0.5), SeededNoise(5))
    assert state.threshold_noise != 0
    assert VerdictState.model_validate_json(state.model_dump_json()) == state


@pytest.mark.parametrize(("noise", "private"), [(SystemNoise(), True), (SeededNoise(0), False)], ids=["real", "seeded"])
def test_noise_has_its_scale_and_only_real_noise_is_called_private(noise: NoiseSource, private: bool) -> None:
    made = plan(0.5)
    drawn = [VerdictState.start(made, noise).threshold_noise / 1e6 for _ in range(400)]
    assert np.mean(np.abs(drawn)) == pytest.approx(made.scales[1], rel=0.3)
    _, verdict = release_verdict(VerdictState.start(made, noise), finding(0.5), noise)
    assert verdict.private is private


def test_seeded_verdicts_repeat() -> None:
    def told(seed: int) -> list[bool]:
        noise = SeededNoise(seed)
        state, answers = VerdictState.start(plan(0.5), noise), []
        for window in range(1, 6):
            state, verdict = release_verdict(state, finding(0.7, window=window), noise)
            answers.append(verdict.drifted)
        return answers

    assert [told(seed) for seed in range(8)] == [told(seed) for seed in range(8)]
