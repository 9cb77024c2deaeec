"""Monitors keep their word on false alarms over real rows, and see shifts of a stated size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from fedloop_clients.monitoring.monitor import (
    DriftKind,
    ErrorCount,
    Finding,
    Monitor,
    MonitorPlan,
    MonitorState,
    Reference,
)
from fedloop_clients.monitoring.statistics import distance, p_value
from fedloop_clients.monitoring.verdict import VerdictPlan, VerdictState, release_verdict
from fedloop_core.dataset import Dataset
from fedloop_core.encoding import NUMERIC
from fedloop_core.errors import SketchRefused
from fedloop_core.noise import SeededNoise
from fedloop_core.profile import NumericColumn
from fedloop_core.scaling import Scaler
from fedloop_core.schema import ClassLabel, FeatureSchema, NumericFeature
from fedloop_core.sketch import Profile, Sketch
from fedloop_simulations.drift import DriftKind as WorldDrift
from fedloop_simulations.drift import apply, drift_of_kind

WINDOW = 25
REFERENCE = 90


@dataclass(frozen=True)
class Clinic:
    """Real rows, a model trained on 150 of them, and the 419 others to draw references and streams from."""

    schema: FeatureSchema
    profile: Profile
    model: Pipeline
    rows: Dataset

    def sketch(self, rows: Dataset) -> Sketch:
        values = rows.inputs[NUMERIC]
        probabilities = self.model.predict_proba(values)
        empty = Sketch.empty(self.profile)
        return empty.add(rows.inputs, probabilities.argmax(axis=1), probabilities.max(axis=1))

    def errors(self, rows: Dataset) -> ErrorCount:
        predicted = self.model.predict(rows.inputs[NUMERIC])
        return ErrorCount(rows=len(rows), wrong=int((predicted != rows.labels).sum()))

    def watch(
        self, seed: int, world: WorldDrift, windows: int, plan: MonitorPlan
    ) -> tuple[list[Finding], MonitorState]:
        """Findings of one site whose reference and stream are drawn without replacement."""
        order = np.random.default_rng(seed).permutation(len(self.rows))
        known, later = self.rows.take(order[:REFERENCE]), self.rows.take(order[REFERENCE:])
        stream = apply(drift_of_kind(world), later, self.schema, seed)
        monitor = Monitor(plan, Reference(self.sketch(known), self.errors(known)), version=1)
        state, findings = monitor.start(), []
        for at in range(windows):
            window = stream.take(np.arange(at * plan.window_rows, (at + 1) * plan.window_rows))
            state, finding = monitor.update(state, self.sketch(window), self.errors(window))
            findings.append(finding)
        return findings, state


@pytest.fixture(scope="module")
def clinic() -> Clinic:
    data = load_breast_cancer()
    values: NDArray[np.float32] = data.data.astype(np.float32)
    malignant = (1 - data.target).astype(np.int64)
    top = values.max(axis=0) * 1.2
    schema = FeatureSchema(
        features=tuple(
            NumericFeature(kind="numeric", name=f"f{at}", range=(0.0, float(high))) for at, high in enumerate(top)
        ),
        label=ClassLabel(kind="classes", name="tumour", classes=("benign", "malignant")),
    )
    rows = Dataset({NUMERIC: values}, malignant, tuple(map(str, range(len(values)))))
    order = np.random.default_rng(0).permutation(len(rows))
    train, rest = rows.take(order[:150]), rows.take(order[150:])
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1)).fit(train.inputs[NUMERIC], train.labels)
    scaler = Scaler(train.inputs[NUMERIC].mean(axis=0), train.inputs[NUMERIC].std(axis=0))
    return Clinic(schema, Profile.for_schema(schema, scaler), model, rest)


def plan(*, false_alarm: float = 0.02, sites: int = 4, window_rows: int = WINDOW) -> MonitorPlan:
    return MonitorPlan(false_alarm=false_alarm, sites=sites, window_rows=window_rows, reference_rows=REFERENCE)


@pytest.mark.slow
def test_an_unchanged_world_alarms_no_more_often_than_the_plan_says(clinic: Clinic) -> None:
    seeds, promised = 300, 0.1
    strict = plan(false_alarm=promised, sites=1)
    exact = private = 0
    for seed in range(seeds):
        findings, _ = clinic.watch(seed, "none", 3, strict)
        exact += any(finding.alarmed for finding in findings)
        noise = SeededNoise(seed)
        verdicts = VerdictState.start(VerdictPlan.for_profile(strict, clinic.profile, 0.5), noise)
        for finding in findings:
            verdicts, _ = release_verdict(verdicts, finding, noise)
        private += verdicts.drifted_at is not None
    most = int(stats.binom.ppf(0.999, seeds, promised))
    assert exact <= most
    assert private <= most


@pytest.mark.parametrize(
    ("world", "window_rows", "within", "kinds"),
    [
        pytest.param("covariate", 25, 1, set(DriftKind), id="recalibrated instruments, 25 rows"),
        pytest.param("covariate", 50, 1, set(DriftKind), id="recalibrated instruments, 50 rows"),
        pytest.param("label", 50, 3, {DriftKind.PREDICTION, DriftKind.COVARIATE}, id="another mix, 50 rows"),
        pytest.param("concept", 25, 2, {DriftKind.QUALITY}, id="another meaning, 25 labels"),
        pytest.param("concept", 50, 1, {DriftKind.QUALITY}, id="another meaning, 50 labels"),
    ],
)
def test_shifts_of_a_stated_size_are_seen(
    clinic: Clinic, world: WorldDrift, window_rows: int, within: int, kinds: set[DriftKind]
) -> None:
    seen = 0
    for seed in range(10):
        findings, state = clinic.watch(seed, world, within, plan(window_rows=window_rows))
        alarms = [finding for finding in findings if finding.alarmed]
        assert {finding.kind for finding in alarms} <= kinds
        assert state.alarmed_at == (alarms[0].window if alarms else None)
        seen += bool(alarms)
    assert seen >= 8


def test_a_small_lasting_shift_is_seen_by_all_windows_together_and_hardly_by_one_alone() -> None:
    column = NumericColumn(kind="numeric", name="x", range=(-9.0, 9.0), edges=tuple(np.linspace(-2, 2, 20)))
    rng = np.random.default_rng(0)

    def counts(rows: int, shift: float) -> NDArray[np.int64]:
        return np.bincount(column.places(rng.normal(shift, 1, rows)), minlength=column.bins)

    known = counts(2000, 0.0)
    windows = [counts(25, 0.5) for _ in range(20)]
    alone = min(p_value(column, known, window) for window in windows)
    assert p_value(column, known, np.sum(windows, axis=0)) < 1e-9
    assert alone > 1e-6


@pytest.mark.parametrize(("rows", "others"), [(5, 7), (25, 90), (50, 90), (90, 90), (200, 31), (25, 1000)])
def test_the_distance_is_smirnovs_and_small_p_values_are_never_below_the_exact_one(rows: int, others: int) -> None:
    column = NumericColumn(kind="numeric", name="x", range=(-9.0, 9.0), edges=tuple(np.linspace(-2, 2, 20)))
    rng = np.random.default_rng(rows)
    for shift in (0.25, 0.5, 1.0, 2.0, 4.0):
        places, known = column.places(rng.normal(shift, 1, rows)), column.places(rng.normal(0, 1, others))
        exact = stats.ks_2samp(places, known, method="exact")
        counted = np.bincount(known, minlength=column.bins), np.bincount(places, minlength=column.bins)
        assert distance(column, *counted) == pytest.approx(exact.statistic)
        if exact.pvalue > 0.1:
            continue
        assert p_value(column, *counted) >= exact.pvalue
        effective = rows * others / (rows + others)
        assert 2 * np.exp(-2 * effective * exact.statistic**2) >= exact.pvalue


def test_all_the_spending_over_sites_and_endless_windows_is_the_promise() -> None:
    promised = plan(false_alarm=0.02, sites=4)
    spent = 4 * sum(promised.alpha(window) for window in range(1, 100_000))
    assert 0.0199 < spent <= 0.02


def test_a_monitor_goes_on_from_its_written_state(clinic: Clinic) -> None:
    findings, state = clinic.watch(3, "none", 3, plan())
    again = MonitorState.model_validate_json(state.model_dump_json())
    assert again == state
    assert (state.windows, state.rows, state.quality.rows) == (3, 75, 75)
    assert [finding.window for finding in findings] == [1, 2, 3]


def test_a_window_without_rows_or_labels_changes_nothing_and_alarms_nothing(clinic: Clinic) -> None:
    known = clinic.rows.take(np.arange(REFERENCE))
    monitor = Monitor(plan(), Reference(clinic.sketch(known), clinic.errors(known)), version=1)
    _, finding = monitor.update(monitor.start(), Sketch.empty(clinic.profile))
    assert (finding.alarmed, finding.score, finding.distance, finding.kind) == (False, 0.0, 0.0, None)


def test_state_or_windows_of_another_version_are_refused(clinic: Clinic) -> None:
    known = clinic.rows.take(np.arange(REFERENCE))
    reference = Reference(clinic.sketch(known), clinic.errors(known))
    first, second = Monitor(plan(), reference, version=1), Monitor(plan(), reference, version=2)
    with pytest.raises(SketchRefused, match="version 2 is watched"):
        second.update(first.start(), clinic.sketch(known))
    wider = Profile.for_schema(clinic.schema, Scaler.from_ranges(clinic.schema))
    with pytest.raises(SketchRefused, match="different profiles"):
        first.update(first.start(), Sketch.empty(wider))


def test_more_wrong_rows_than_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be wrong"):
        ErrorCount(rows=3, wrong=4)
