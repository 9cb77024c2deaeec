from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloop_core.arrays import ArraySpec
from fedloop_core.errors import RunError, UpdateRefused
from fedloop_core.update_gate import check_update
from fedloop_server.aggregation import FixedPointSum

Reply = tuple[dict[str, np.ndarray], int]


def replies(draw_seed: int, sites: int, largest: float) -> list[Reply]:
    generator = np.random.default_rng(draw_seed)
    return [
        (
            {
                "weight": generator.uniform(-largest, largest, (3, 2)).astype(np.float32),
                "bias": generator.uniform(-largest, largest, 2).astype(np.float32),
            },
            int(generator.integers(1, 500)),
        )
        for _ in range(sites)
    ]


def fold(parts: list[Reply], order: list[int], largest: float) -> FixedPointSum:
    total = FixedPointSum(
        ArraySpec.of(parts[0][0]), largest_value=largest, total_weight=sum(weight for _, weight in parts)
    )
    for place in order:
        total.add(*parts[place])
    return total


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), sites=st.integers(1, 12), exponent=st.integers(-6, 12), data=st.data())
def test_any_order_of_replies_gives_the_same_bits(seed: int, sites: int, exponent: int, data: st.DataObject) -> None:
    largest = 2.0**exponent
    parts = replies(seed, sites, largest)
    order = data.draw(st.permutations(range(sites)))
    first = fold(parts, list(range(sites)), largest).mean()
    second = fold(parts, list(order), largest).mean()
    for name in first:
        assert first[name].tobytes() == second[name].tobytes()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), sites=st.integers(1, 12), exponent=st.integers(-6, 12))
def test_the_mean_is_the_weighted_mean_within_the_stated_error(seed: int, sites: int, exponent: int) -> None:
    largest = 2.0**exponent
    parts = replies(seed, sites, largest)
    total = fold(parts, list(range(sites)), largest)
    weights = [weight for _, weight in parts]
    for name, mean in total.mean().items():
        exact = np.average([arrays[name].astype(np.longdouble) for arrays, _ in parts], axis=0, weights=weights)
        allowed = total.rounding_error + 4 * np.spacing(largest)
        assert float(np.abs(mean - exact).max()) <= allowed


@settings(max_examples=200, deadline=None)
@given(
    value=st.floats(-1, 1),
    exponent=st.integers(-6, 12),
    weight=st.integers(1, 10**6),
    more=st.integers(0, 10**9),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_each_value_is_rounded_to_the_nearest_whole_number(
    value: float, exponent: int, weight: int, more: int, dtype: str
) -> None:
    largest = 2.0**exponent
    reply = {"weight": np.array([value * largest, largest, -largest]).astype(dtype)}
    total = FixedPointSum(ArraySpec.of(reply), largest_value=largest, total_weight=weight + more)
    total.add(reply, weight)
    for summed, given_value in zip(total.sum()["weight"], reply["weight"], strict=True):
        whole = round(math.ldexp(float(given_value), total.fraction_bits))  # to even, as the standard for floats has it
        assert summed == math.ldexp(float(whole * weight), -total.fraction_bits)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("nan", "not-finite"),
        ("inf", "not-finite"),
        ("too large", "range"),
        ("another shape", "shape"),
        ("length one, which would broadcast", "shape"),
        ("another dtype", "dtype"),
        ("names in another order", "names"),
        ("a name missing", "names"),
        ("weight 0", "weight"),
        ("weight below 0", "weight"),
        ("more weight than agreed", "weight"),
    ],
)
def test_a_refused_reply_changes_nothing(what: str, reason: str) -> None:
    good = {"weight": np.ones((3, 2), np.float32), "bias": np.ones(2, np.float32)}
    total = FixedPointSum(ArraySpec.of(good), largest_value=10.0, total_weight=7)
    total.add(good, 3)
    before = total.mean()
    bad = {name: array.copy() for name, array in good.items()}
    weight = 2
    match what:
        case "nan":
            bad["bias"][1] = math.nan
        case "inf":
            bad["weight"][0, 0] = math.inf
        case "too large":
            bad["weight"][0, 0] = 10.5
        case "another shape":
            bad["weight"] = np.ones((2, 3), np.float32)
        case "length one, which would broadcast":
            bad["bias"] = np.ones(1, np.float32)
        case "another dtype":
            bad["bias"] = np.ones(2, np.float64)
        case "names in another order":
            bad = {"bias": bad["bias"], "weight": bad["weight"]}
        case "a name missing":
            del bad["bias"]
        case "weight 0":
            weight = 0
        case "weight below 0":
            weight = -5
        case "more weight than agreed":
            weight = 5
    with pytest.raises(UpdateRefused) as refusal:
        total.add(bad, weight)
    assert refusal.value.fields["reason"] == reason
    assert total.weight == 3
    for name, array in total.mean().items():
        assert np.array_equal(array, before[name])


def test_sums_at_the_limit_do_not_overflow() -> None:
    spec = ArraySpec(("x",), ((4,),), ("float32",))
    total = FixedPointSum(spec, largest_value=1000.0, total_weight=2**20)
    for _ in range(8):
        total.add({"x": np.full(4, 1000.0, np.float32)}, 2**17)
    assert total.mean()["x"] == pytest.approx([1000.0] * 4, abs=total.rounding_error)


@pytest.mark.parametrize(
    ("largest", "weight", "least", "steps"),
    [
        (1000.0, 2**63 - 1, 0, r"2\^11 only; 2\^0 is needed"),
        (2.0**40, 2**7, 16, r"2\^-10 only; 2\^-16 is needed"),
        (1e308, 2**40, 0, "is needed"),
    ],
    ids=["rows without limit", "a wide norm", "beyond what floats hold"],
)
def test_bounds_that_leave_nothing_of_honest_values_are_refused(
    largest: float, weight: int, least: int, steps: str
) -> None:
    spec = ArraySpec(("x",), ((1,),), ("float32",))
    with pytest.raises(RunError, match=steps):
        FixedPointSum(spec, largest_value=largest, total_weight=weight, least_bits=least)


def test_nothing_folded_has_no_mean() -> None:
    total = FixedPointSum(ArraySpec(("x",), ((1,),), ("float32",)), largest_value=1.0, total_weight=1)
    with pytest.raises(UpdateRefused):
        total.mean()


@pytest.mark.parametrize(("length", "refused"), [(0.0, False), (1.0, False), (1e9, True)])
def test_the_update_gate_bounds_the_norm(length: float, refused: bool) -> None:
    arrays = {"x": np.array([length, 0.0], np.float32)}
    spec = ArraySpec.of(arrays)
    if refused:
        with pytest.raises(UpdateRefused) as refusal:
            check_update(arrays, spec, maximum_norm=1000.0)
        assert refusal.value.fields["reason"] == "norm"
    else:
        assert check_update(arrays, spec, maximum_norm=1000.0) == length
