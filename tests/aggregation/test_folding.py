"""Folding in pieces: arrays longer than a piece, arrays that do not lie in one stretch of memory, and the step."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from fedloop_core.arrays import ArraySpec
from fedloop_core.errors import RunError, UpdateRefused
from fedloop_core.task.document import FederatedAveraging, NewtonRaphson
from fedloop_core.update_gate import norm
from fedloop_server.aggregation import FixedPointSum
from fedloop_server.aggregation.algorithms import Averaging, Newton

Arrays = dict[str, NDArray[np.generic]]


def update(seed: int) -> Arrays:
    generator = np.random.default_rng(seed)
    return {
        "long": generator.normal(size=150_001).astype(np.float32),
        "turned": generator.normal(size=(300, 400)).astype(np.float32).T,
        "double": generator.normal(size=7),
        "single": np.array(generator.normal(), np.float32),
        "none": np.zeros((0, 3), np.float32),
    }


def test_pieces_sum_to_what_whole_arrays_do() -> None:
    updates = [update(seed) for seed in range(3)]
    sums = FixedPointSum(ArraySpec.of(updates[0]), largest_value=100.0, total_weight=60)
    for weight, arrays in zip((10, 20, 30), updates, strict=True):
        sums.add(arrays, weight)
    for name, total in sums.sum().items():
        whole = sum(
            np.rint(arrays[name].astype(np.float64) * 2.0**sums.fraction_bits).astype(np.int64) * weight
            for weight, arrays in zip((10, 20, 30), updates, strict=True)
        )
        assert total.shape == updates[0][name].shape
        assert np.array_equal(total, np.ldexp(np.asarray(whole).astype(np.float64), -sums.fraction_bits))


def test_the_norm_over_pieces_is_the_norm() -> None:
    arrays = update(4)
    whole = math.sqrt(sum(float(np.sum(np.square(array.astype(np.float64)))) for array in arrays.values()))
    assert norm(arrays) == pytest.approx(whole, rel=1e-12)
    for bad in (math.nan, math.inf):
        assert not math.isfinite(norm({**arrays, "double": np.array([0.0, bad])}))


def test_a_step_moves_the_model_by_the_mean_and_lets_the_sums_go() -> None:
    model, arrays = update(1), update(2)
    algorithm = Averaging(FederatedAveraging(algorithm="fedavg", server_learning_rate=0.5), 1e4)
    sums = algorithm.accumulator(model, 3)
    sums.add(arrays, 3)
    mean = sums.mean()
    moved = algorithm.step(model, sums)
    for name, array in moved.items():
        expected = (model[name].astype(np.float64) + 0.5 * mean[name]).astype(model[name].dtype)
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
        assert array.tobytes() == expected.tobytes()
    with pytest.raises(ValueError, match="let go"):
        algorithm.step(model, sums)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 101.0, -101.0])
def test_a_value_beyond_the_bound_is_refused_wherever_it_lies_and_whatever_norm_is_claimed(bad: float) -> None:
    arrays = update(1)
    arrays["long"][-1] = bad
    sums = FixedPointSum(ArraySpec.of(arrays), largest_value=100.0, total_weight=1)
    for claimed in (None, norm(arrays)):
        with pytest.raises(UpdateRefused, match="long"):
            sums.add(arrays, norm=claimed)
    assert sums.weight == 0
    assert not any(total.any() for total in sums.sum().values())


MILLION = 1_000_000


@pytest.mark.parametrize(
    ("algorithm", "fits", "too_much"),
    [
        (Averaging(FederatedAveraging(algorithm="fedavg"), 1000.0), 1000 * MILLION, 2**37),
        (Newton(NewtonRaphson(algorithm="newton"), 1000 * MILLION), 1000, 2**15),
    ],
    ids=["a thousand sites of a million rows", "their derivatives"],
)
def test_a_federation_that_cannot_be_summed_is_told_before_it_trains(
    algorithm: Averaging | Newton, fits: int, too_much: int
) -> None:
    model: Arrays = {"theta": np.zeros(3, np.float32)}
    algorithm.accumulator(model, fits)
    with pytest.raises(RunError, match="is needed"):
        algorithm.accumulator(model, too_much)
