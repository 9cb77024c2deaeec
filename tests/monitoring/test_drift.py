"""Injected shifts change what they say they change, by the seed alone, and touch nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from fedloop_core.dataset import Dataset
from fedloop_core.encoding import CATEGORICAL, NUMERIC, InputEncoder, Inputs
from fedloop_core.schema import (
    CategoricalFeature,
    ClassLabel,
    FeatureSchema,
    ImageFeature,
    NumericFeature,
    RegressionLabel,
    SignalFeature,
    SurvivalLabel,
)
from fedloop_simulations.drift import (
    ConceptDrift,
    CovariateDrift,
    DriftKind,
    LabelDrift,
    apply,
    drift_of_kind,
)

ROWS = 200
SCHEMA = FeatureSchema(
    features=(
        *(NumericFeature(kind="numeric", name=f"n{at}", range=(0.0, 10.0), missing="mean") for at in range(8)),
        CategoricalFeature(kind="categorical", name="ward", values=("a", "b", "c")),
        ImageFeature(kind="image", name="scan", height=4, width=4),
        SignalFeature(kind="signal", name="ecg", length=8, range=(-2.0, 2.0)),
    ),
    label=ClassLabel(kind="classes", name="outcome", classes=("well", "ill")),
)


def world(seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    numeric = rng.uniform(0, 10, (ROWS, 8)).astype(np.float32)
    numeric[3, :] = np.nan
    inputs: Inputs = {
        NUMERIC: numeric,
        CATEGORICAL: rng.integers(0, 3, (ROWS, 1)),
        "scan": rng.uniform(0, 1, (ROWS, 1, 4, 4)).astype(np.float32),
        "ecg": rng.uniform(-2, 2, (ROWS, 1, 8)).astype(np.float32),
    }
    return Dataset(inputs, rng.integers(0, 2, ROWS), tuple(map(str, range(ROWS))))


@pytest.mark.parametrize("kind", ["none", "covariate", "label", "concept"])
def test_a_shift_repeats_by_its_seed_and_leaves_the_rows_given_alone(kind: DriftKind) -> None:
    given = world()
    first, second = (apply(drift_of_kind(kind), given, SCHEMA, 7) for _ in range(2))
    for name, array in first.inputs.items():
        np.testing.assert_array_equal(array, second.inputs[name])
        np.testing.assert_array_equal(given.inputs[name], world().inputs[name])
    np.testing.assert_array_equal(first.labels, second.labels)
    np.testing.assert_array_equal(given.labels, world().labels)
    assert first.units == second.units
    assert [(array.dtype, array.shape[1:]) for array in first.inputs.values()] == [
        (array.dtype, array.shape[1:]) for array in given.inputs.values()
    ]


def test_recalibration_moves_its_share_of_the_features_inside_the_ranges_and_no_label() -> None:
    given = world()
    shifted = apply(CovariateDrift(share=0.5, gain=0.9, offset=0.25), given, SCHEMA, 1)
    before, after = (rows.inputs[NUMERIC].astype(np.float64) for rows in (given, shifted))
    moved = [not np.array_equal(before[:, at], after[:, at], equal_nan=True) for at in range(8)]
    assert sum(moved) == 4
    np.testing.assert_allclose(after[0, moved], np.minimum(0.9 * before[0, moved] + 2.5, 10), rtol=1e-6)
    assert np.isnan(after[3]).all()
    assert not InputEncoder(SCHEMA).out_of_range(shifted.inputs).any()
    np.testing.assert_array_equal(shifted.labels, given.labels)
    np.testing.assert_array_equal(shifted.inputs[CATEGORICAL], given.inputs[CATEGORICAL])
    signal, reversed_signal = (rows.inputs["ecg"].astype(np.float64) for rows in (given, shifted))
    np.testing.assert_allclose(reversed_signal, -0.9 * signal, rtol=1e-6)
    assert not np.array_equal(shifted.inputs["scan"], given.inputs["scan"])


def test_all_sites_live_in_the_same_world_and_seeds_are_different_worlds() -> None:
    def instruments(rows: Dataset, seed: int) -> list[int]:
        after = apply(CovariateDrift(), rows, SCHEMA, seed).inputs[NUMERIC]
        return [at for at in range(8) if not np.array_equal(after[:, at], rows.inputs[NUMERIC][:, at], equal_nan=True)]

    assert instruments(world(1), 5) == instruments(world(2), 5)
    assert len({tuple(instruments(world(1), seed)) for seed in range(10)}) > 3


def test_another_mix_of_outcomes_leaves_rows_out_and_repeats_none() -> None:
    given = world()
    shifted = apply(LabelDrift(kept=0.1), given, SCHEMA, 2)
    assert len(set(shifted.units)) == len(shifted) < ROWS
    assert [int(unit) for unit in shifted.units] == sorted(int(unit) for unit in shifted.units)
    shares = np.bincount(shifted.labels.astype(np.int64)) / len(shifted)
    assert shares.max() > 0.85
    np.testing.assert_array_equal(shifted.labels, given.labels[[int(unit) for unit in shifted.units]])


def test_another_meaning_changes_its_share_of_the_labels_and_no_input() -> None:
    given = world()
    shifted = apply(ConceptDrift(share=0.4), given, SCHEMA, 2)
    assert int((shifted.labels != given.labels).sum()) == 80
    assert shifted.inputs is given.inputs


@pytest.mark.parametrize("kind", ["label", "concept"])
@pytest.mark.parametrize("seed", range(4))
def test_numbers_and_times_shift_too(kind: DriftKind, seed: int) -> None:
    numeric = (NumericFeature(kind="numeric", name="n", range=(0.0, 10.0)),)
    number = FeatureSchema(features=numeric, label=RegressionLabel(kind="regression", name="w", range=(0.0, 8.0)))
    time = FeatureSchema(
        features=numeric, label=SurvivalLabel(kind="survival", time="t", event="e", time_range=(0.0, 8.0))
    )
    values = np.linspace(0, 8, 40, dtype=np.float32)
    inputs: Inputs = {NUMERIC: np.linspace(0, 10, 40, dtype=np.float32)[:, None]}
    units = tuple(map(str, range(40)))
    for schema, labels in ((number, values), (time, np.stack([values, np.ones_like(values)], axis=1))):
        shifted = apply(drift_of_kind(kind), Dataset(inputs, labels, units), schema, seed)
        assert shifted.labels.dtype == np.float32
        assert shifted.labels.shape[1:] == labels.shape[1:]
        numbers = shifted.labels if shifted.labels.ndim == 1 else shifted.labels[:, 0]
        assert 0 <= numbers.min() <= numbers.max() <= 8
        assert not np.array_equal(shifted.labels, labels)


@pytest.mark.parametrize("kind", ["none", "covariate", "label", "concept"])
def test_no_rows_stay_no_rows(kind: DriftKind) -> None:
    assert len(apply(drift_of_kind(kind), world().take([]), SCHEMA, 0)) == 0
