"""Sketches: every row lands in one bin of every column, merging is addition, and the network is not believed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedloop_core.encoding import CATEGORICAL, NUMERIC, Inputs
from fedloop_core.errors import ArtifactRefused, SketchRefused
from fedloop_core.scaling import Scaler
from fedloop_core.schema import (
    CategoricalFeature,
    ClassLabel,
    FeatureSchema,
    ImageFeature,
    NumericFeature,
    RegressionLabel,
    SignalFeature,
)
from fedloop_core.sketch import Profile, Sketch
from fedloop_proto.fleet.v1 import fleet_pb2

SCHEMA = FeatureSchema(
    features=(
        NumericFeature(kind="numeric", name="pulse", range=(20.0, 220.0), missing="mean"),
        CategoricalFeature(kind="categorical", name="ward", values=("a", "b"), other=True, missing="category"),
        ImageFeature(kind="image", name="scan", height=4, width=4, range=(0.0, 16.0)),
        NumericFeature(kind="numeric", name="age", range=(0.0, 120.0)),
        SignalFeature(kind="signal", name="ecg", length=8, range=(-2.0, 2.0)),
    ),
    label=ClassLabel(kind="classes", name="outcome", classes=("well", "ill", "dead")),
)
SCALER = Scaler(np.array([80, 50], dtype=np.float32), np.array([15, 20], dtype=np.float32))
PROFILE = Profile.for_schema(SCHEMA, SCALER)

Answers = tuple[Inputs, NDArray[np.int64], NDArray[np.float32]]


def answers(rows: int, seed: int = 0) -> Answers:
    rng = np.random.default_rng(seed)
    numeric = rng.normal(SCALER.mean, SCALER.deviation, (rows, 2)).astype(np.float32)
    inputs: Inputs = {
        NUMERIC: numeric,
        CATEGORICAL: rng.integers(0, 4, (rows, 1)),
        "scan": rng.uniform(0, 16, (rows, 1, 4, 4)).astype(np.float32),
        "ecg": rng.uniform(-2, 2, (rows, 1, 8)).astype(np.float32),
    }
    return inputs, rng.integers(0, 3, rows), rng.uniform(1 / 3, 1, rows).astype(np.float32)


def part(given_: Answers, rows: slice) -> Answers:
    inputs, predicted, confidence = given_
    return {name: array[rows] for name, array in inputs.items()}, predicted[rows], confidence[rows]


def test_columns_stand_in_the_order_of_the_models_inputs_then_its_answers() -> None:
    assert PROFILE.names == (
        "pulse",
        "age",
        "ward",
        "scan:mean",
        "scan:deviation",
        "ecg:mean",
        "ecg:deviation",
        "prediction",
        "confidence",
    )


def test_a_normal_column_fills_its_bins_equally() -> None:
    counts = Sketch.empty(PROFILE).add(*answers(20_000)).column("pulse")
    assert counts[-1] == 0
    np.testing.assert_allclose(counts[:-1] / 20_000, 0.1, atol=0.01)


def test_bins_are_closed_below_and_open_above() -> None:
    column = PROFILE.columns[0]
    assert column.kind == "numeric"
    edge = column.edges[3]
    below, above = np.nextafter(edge, -np.inf), np.nextafter(edge, np.inf)
    assert column.places(np.array([below, edge, above, np.nan, -1e30, 1e30])).tolist() == [3, 4, 4, 10, 0, 9]


def test_missing_cells_and_numbers_out_of_range_are_counted() -> None:
    inputs, predicted, confidence = answers(4)
    inputs[NUMERIC] = np.array([[np.nan, 50], [300, 50], [80, -1], [80, 50]], dtype=np.float32)
    inputs[CATEGORICAL] = np.array([[3], [0], [1], [2]])
    inputs["scan"][3, 0, :2] = 17
    sketch = Sketch.empty(PROFILE).add(inputs, predicted, confidence)
    assert (sketch.rows, sketch.missing, sketch.out_of_range) == (4, 2, 3)
    assert sketch.column("pulse")[-1] == 1
    assert sketch.column("ward").tolist() == [1, 1, 1, 1]


@given(rows=st.integers(0, 40), cut=st.integers(0, 40), seed=st.integers(0, 1000))
def test_merging_parts_equals_counting_the_whole(rows: int, cut: int, seed: int) -> None:
    whole = answers(rows, seed)
    empty = Sketch.empty(PROFILE)
    first, second = empty.add(*part(whole, slice(cut))), empty.add(*part(whole, slice(cut, None)))
    counted = empty.add(*whole)
    for merged in (first.merge(second), second.merge(first), first.add(*part(whole, slice(cut, None)))):
        np.testing.assert_array_equal(merged.flat, counted.flat)
        assert (merged.rows, merged.missing, merged.out_of_range) == (
            counted.rows,
            counted.missing,
            counted.out_of_range,
        )
    assert all(int(counts.sum()) == rows for counts in counted.counts)


def test_adding_changes_neither_the_sketch_nor_the_rows() -> None:
    sketch = Sketch.empty(PROFILE)
    given_ = answers(5)
    before = {name: array.copy() for name, array in given_[0].items()}
    sketch.add(*given_)
    assert sketch.rows == 0
    assert not sketch.flat.any()
    for name, array in before.items():
        np.testing.assert_array_equal(given_[0][name], array)


def test_a_profile_survives_its_bytes_with_its_digest() -> None:
    again = Profile.from_bytes(PROFILE.to_bytes())
    assert again == PROFILE
    assert again.digest == PROFILE.digest
    assert len(PROFILE.digest) == 64
    other = Profile.for_schema(SCHEMA, Scaler(SCALER.mean, SCALER.deviation * 2))
    assert other.digest != PROFILE.digest


def test_a_message_carries_a_sketch_whole() -> None:
    sketch = Sketch.empty(PROFILE).add(*answers(30))
    wire = sketch.to_message(task="heart", version=2, window=7).SerializeToString()
    message = fleet_pb2.Sketch.FromString(wire)
    assert (message.task, message.version, message.window) == ("heart", 2, 7)
    again = Sketch.from_message(message, Profile.from_bytes(PROFILE.to_bytes()))
    np.testing.assert_array_equal(again.flat, sketch.flat)
    assert (again.rows, again.missing, again.out_of_range) == (sketch.rows, sketch.missing, sketch.out_of_range)


def _set_profile(message: fleet_pb2.Sketch) -> None:
    message.profile_digest = b"\0" * 32


def _set_rows(message: fleet_pb2.Sketch) -> None:
    message.rows = 2**60


def _drop_column(message: fleet_pb2.Sketch) -> None:
    del message.columns[-1]


def _drop_bin(message: fleet_pb2.Sketch) -> None:
    del message.columns[0].counts[-1]


def _raise_count(message: fleet_pb2.Sketch) -> None:
    message.columns[3].counts[0] += 2**63


def _raise_missing(message: fleet_pb2.Sketch) -> None:
    message.missing = 2**40


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        pytest.param(_set_profile, "profile", id="another profile"),
        pytest.param(_set_rows, "rows", id="more rows than a fleet can see"),
        pytest.param(_drop_column, "columns", id="a column is absent"),
        pytest.param(_drop_bin, "bins", id="a bin is absent"),
        pytest.param(_raise_count, "sum", id="a count beyond int64"),
        pytest.param(_raise_missing, "cells", id="more missing cells than cells"),
    ],
)
def test_a_message_that_no_rows_can_give_is_refused(spoil: Callable[[fleet_pb2.Sketch], None], reason: str) -> None:
    message = Sketch.empty(PROFILE).add(*answers(30)).to_message(task="heart", version=1, window=0)
    spoil(message)
    with pytest.raises(SketchRefused) as refused:
        Sketch.from_message(message, PROFILE)
    assert refused.value.wire().fields == {"reason": reason}


def test_sketches_over_different_profiles_do_not_merge() -> None:
    other = Profile.for_schema(SCHEMA, Scaler(SCALER.mean, SCALER.deviation * 2))
    with pytest.raises(SketchRefused, match="different profiles"):
        Sketch.empty(PROFILE).merge(Sketch.empty(other))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{}", id="no columns"),
        pytest.param(PROFILE.to_bytes().replace(b'"classes":3', b'"classes":3.5'), id="half a class"),
        pytest.param(PROFILE.to_bytes().replace(b'"range":[20.0,220.0]', b'"range":[20.0]'), id="half a range"),
        pytest.param(PROFILE.to_bytes().replace(b'"kind":"score"', b'"kind":"secret"'), id="unknown kind"),
    ],
)
def test_a_profile_that_is_not_one_is_refused(content: bytes) -> None:
    with pytest.raises(ArtifactRefused):
        Profile.from_bytes(content)


@pytest.mark.parametrize("predicted", [[0, 3], [-1, 0], [0]], ids=["no such class", "below zero", "too few"])
def test_answers_that_the_model_cannot_give_are_refused(predicted: list[int]) -> None:
    inputs, _, confidence = answers(2)
    with pytest.raises(ValueError, match=r"outside|unequal"):
        Sketch.empty(PROFILE).add(inputs, np.array(predicted), confidence)


def test_a_regressions_predictions_are_binned_over_the_public_range() -> None:
    schema = FeatureSchema(
        features=(NumericFeature(kind="numeric", name="dose", range=(0.0, 10.0)),),
        label=RegressionLabel(kind="regression", name="weeks", range=(0.0, 100.0)),
    )
    profile = Profile.for_schema(schema, Scaler.from_ranges(schema))
    inputs: Inputs = {NUMERIC: np.full((3, 1), 5, dtype=np.float32)}
    predicted = np.array([-5, 50, 1000], dtype=np.float32)
    sketch = Sketch.empty(profile).add(inputs, predicted, np.ones(3, dtype=np.float32))
    assert np.flatnonzero(sketch.column("prediction")).tolist() == [0, 10, 19]


def test_edges_of_every_column_rise() -> None:
    for column in PROFILE.columns:
        if column.kind in ("numeric", "summary", "score"):
            assert all(a < b for a, b in pairwise(column.edges))
