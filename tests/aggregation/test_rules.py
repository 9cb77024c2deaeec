"""What every robust rule promises, checked on every rule that a task may name; each against plain numpy, written independently."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedloop_core.arrays import ArraySpec
from fedloop_core.errors import TooFewUpdates, UpdateRefused
from fedloop_core.task.aggregation import (
    Aggregation,
    Bulyan,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    MultiKrum,
    RobustRule,
    TrimmedMean,
)
from fedloop_server.aggregation.held import HeldUpdates
from fedloop_server.aggregation.pieces import pieces
from fedloop_server.aggregation.rules import combine

Updates = list[NDArray[np.float32]]
KINDS: tuple[type[RobustRule], ...] = tuple(kind for kind in get_args(get_args(Aggregation)[0]) if kind is not Mean)
RULES = tuple(kind.model_validate({"rule": kind.model_fields["rule"].annotation.__args__[0]}) for kind in KINDS)  # type: ignore[union-attr]
SELECTING = frozenset({"krum", "multi-krum"})
MODEL = {"w": np.zeros((3, 4), np.float32), "b": np.zeros((), np.float32), "none": np.zeros((0, 2), np.float32)}


def named(rule: RobustRule) -> str:
    return rule.rule


def updates(seed: int, count: int, size: int = 13) -> Updates:
    generator = np.random.default_rng(seed)
    around = generator.normal(size=size)
    return [(around + 0.3 * generator.normal(size=size)).astype(np.float32) for _ in range(count)]


def equal(count: int) -> list[int]:
    return [1] * count


every_rule = pytest.mark.parametrize("rule", RULES, ids=named)


def test_every_rule_of_the_task_file_but_the_mean_is_found() -> None:
    assert {rule.rule for rule in RULES} == {
        "geometric-median",
        "trimmed-mean",
        "median",
        "krum",
        "multi-krum",
        "bulyan",
    }


# The contract.


@every_rule
@pytest.mark.parametrize("extra", [0, 1, 4])
def test_the_order_of_arrival_changes_no_bit(rule: RobustRule, extra: int) -> None:
    """Also when some updates are of one length, or one and the same."""
    count = rule.least_updates + extra
    sent = updates(1, count)
    sent[1] = -sent[0]
    sent[2] = sent[0].copy()

    def moved(order: Any) -> tuple[bytes, list[float]]:
        held = HeldUpdates(ArraySpec.of(MODEL), total_weight=count)
        for place in order:
            held.add({"w": sent[place][:12].reshape(3, 4), "b": sent[place][12], "none": MODEL["none"]})
        after, shares = held.moved(MODEL, rule, 0.7)
        return b"".join(array.tobytes() for array in after.values()), [
            share for _, share in sorted(zip(order, shares, strict=True))
        ]

    first, shares = moved(range(count))
    generator = np.random.default_rng(2)
    for _ in range(10):
        again, others = moved(generator.permutation(count).tolist())
        assert again == first
        assert sorted(others) == sorted(shares)
        distinct = [*range(3, count)]  # of updates that are one and the same, either may be the one that is taken
        assert [others[place] for place in distinct] == [shares[place] for place in distinct]


@every_rule
def test_updates_that_are_all_the_same_are_what_comes_out(rule: RobustRule) -> None:
    (one,) = updates(3, 1)
    found = combine(rule, [one] * rule.least_updates, equal(rule.least_updates))
    assert np.allclose(found.value, one, rtol=1e-12, atol=0)
    assert sum(found.shares) == pytest.approx(1.0)


@every_rule
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), extra=st.integers(0, 5), exponent=st.integers(-20, 20), shift=st.floats(-8, 8))
def test_what_is_moved_and_scaled_alike_comes_out_moved_and_scaled(
    rule: RobustRule, seed: int, extra: int, exponent: int, shift: float
) -> None:
    count = rule.least_updates + extra
    sent = [update.astype(np.float64) for update in updates(seed, count)]
    found = combine(rule, sent, equal(count)).value
    scaled = combine(rule, [update * 2.0**exponent for update in sent], equal(count)).value
    shifted = combine(rule, [update + shift for update in sent], equal(count)).value
    assert np.allclose(scaled, found * 2.0**exponent, rtol=1e-7, atol=1e-9 * 2.0**exponent)
    assert np.allclose(shifted, found + shift, rtol=0, atol=1e-6)


@every_rule
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), extra=st.integers(0, 5))
def test_shares_are_shares_and_the_result_lies_within_what_was_sent(rule: RobustRule, seed: int, extra: int) -> None:
    count = rule.least_updates + extra
    sent = updates(seed, count)
    found = combine(rule, sent, equal(count))
    assert len(found.shares) == count
    assert sum(found.shares) == pytest.approx(1.0)
    assert min(found.shares) >= 0
    assert (found.value >= np.min(sent, axis=0) - 1e-6).all()
    assert (found.value <= np.max(sent, axis=0) + 1e-6).all()


@every_rule
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_f13_one_value_that_is_not_finite_is_refused_and_never_spreads(rule: RobustRule, bad: float) -> None:
    count = rule.least_updates
    sent = updates(4, count)
    sent[1][5] = bad
    with pytest.raises(UpdateRefused, match="not finite"):
        combine(rule, sent, equal(count))
    held = HeldUpdates(ArraySpec.of({"w": sent[0]}), total_weight=count)
    for place, update in enumerate(sent):
        if place == 1:
            with pytest.raises(UpdateRefused, match="not finite"):
                held.add({"w": update})
        else:
            held.add({"w": update})
    assert held.weight == count - 1


@every_rule
@pytest.mark.parametrize("lie", [-10.0, 1e3, -1e30], ids=["ten times the other way", "thousand times", "huge"])
def test_as_many_liars_as_the_rule_is_to_withstand_move_it_no_farther_than_honest_ones_lie_apart(
    rule: RobustRule, lie: float
) -> None:
    """F13: an outlier of 1e6 passed a trimmed mean that trimmed none."""
    count = max(rule.least_updates, 7)
    sent = updates(5, count, size=200)
    honest = np.array(sent[1:], np.float64)
    sent[0] = (sent[0] * np.float32(lie)).astype(np.float32)
    found = combine(rule, sent, equal(count))
    apart = max(float(np.linalg.norm(one - other)) for one, other in itertools.combinations(honest, 2))
    assert np.linalg.norm(found.value - honest.mean(axis=0)) <= apart
    mean = np.mean(np.array(sent, np.float64), axis=0)
    assert np.linalg.norm(mean - honest.mean(axis=0)) > apart


@every_rule
def test_f13_fewer_updates_than_the_condition_asks_for_are_refused_in_a_sentence(rule: RobustRule) -> None:
    for faulty in (1, 2, 3):
        of = rule.model_copy(update={"faulty_sites": faulty})
        combine(of, updates(6, of.least_updates), equal(of.least_updates))
        few = of.least_updates - 1
        with pytest.raises(
            TooFewUpdates, match=f"{rule.rule} with {faulty} faulty sites? needs {few + 1}.*there are {few}"
        ):
            combine(of, updates(6, few), equal(few))


@pytest.mark.parametrize(
    ("kind", "conditions"),
    [
        (GeometricMedian, {1: 3, 2: 5, 10: 21}),
        (TrimmedMean, {1: 3, 2: 5, 10: 21}),
        (Median, {1: 3, 2: 5, 10: 21}),
        (Krum, {1: 5, 2: 7, 10: 23}),
        (MultiKrum, {1: 5, 2: 7, 10: 23}),
        (Bulyan, {1: 7, 2: 11, 10: 43}),
    ],
)
def test_the_conditions_are_those_of_the_papers(kind: Any, conditions: dict[int, int]) -> None:
    rule = next(rule for rule in RULES if isinstance(rule, kind))
    for faulty, least in conditions.items():
        assert rule.model_copy(update={"faulty_sites": faulty}).least_updates == least


@every_rule
def test_f12_weights_count_where_the_rule_says_so_and_nowhere_else(rule: RobustRule) -> None:
    count = max(rule.least_updates, 7)
    sent = updates(7, count)
    same = combine(rule, sent, equal(count)).value
    other = combine(rule, sent, [3, *equal(count - 1)]).value
    assert np.array_equal(same, other) == (not rule.weighted)


def test_updates_that_alone_weigh_as_much_as_the_others_would_decide_alone_and_are_refused() -> None:
    rule = GeometricMedian(rule="geometric-median")
    combine(rule, updates(8, 5), [3, 1, 1, 1, 1])
    with pytest.raises(TooFewUpdates, match=r"the heaviest update weighs 4 of 8"):
        combine(rule, updates(8, 5), [4, 1, 1, 1, 1])
    two = GeometricMedian(rule="geometric-median", faulty_sites=2)
    with pytest.raises(TooFewUpdates, match=r"the heaviest 2 updates weigh 4 of 7"):
        combine(two, updates(8, 5), [2, 2, 1, 1, 1])


# Each rule against numpy.


def by_sorting(sent: Updates, trimmed: int) -> NDArray[np.float64]:
    ordered = np.sort(np.array(sent, np.float64), axis=0)
    return np.asarray(ordered[trimmed : len(sent) - trimmed].mean(axis=0))


def scores(sent: Updates, faulty: int) -> list[float]:
    found = []
    for place, one in enumerate(sent):
        others = sorted(
            float(np.sum((one.astype(np.float64) - other) ** 2)) for at, other in enumerate(sent) if at != place
        )
        found.append(sum(others[: max(len(sent) - faulty - 2, 1)]))
    return found


def by_krum(sent: Updates, faulty: int) -> NDArray[np.float64]:
    return sent[int(np.argmin(scores(sent, faulty)))].astype(np.float64)


def by_multi_krum(sent: Updates, faulty: int) -> NDArray[np.float64]:
    best = np.argsort(scores(sent, faulty))[: len(sent) - faulty - 2]
    return np.asarray(np.mean([sent[place].astype(np.float64) for place in best], axis=0))


def by_bulyan(sent: Updates, faulty: int) -> NDArray[np.float64]:
    left = list(sent)
    chosen: Updates = []
    while len(chosen) < len(sent) - 2 * faulty:
        chosen.append(left.pop(int(np.argmin(scores(left, faulty)))))
    stacked = np.array(chosen, np.float64)
    middle = np.median(stacked, axis=0)
    kept = len(chosen) - 2 * faulty
    return np.array(
        [
            np.mean(sorted(stacked[:, column], key=lambda value: (abs(value - middle[column]), value))[:kept])
            for column in range(stacked.shape[1])
        ]
    )


def by_minimising(sent: Updates, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    stacked = np.array(sent, np.float64)

    def total(point: NDArray[np.float64]) -> float:
        return float(np.sum(weights * np.linalg.norm(stacked - point, axis=1)))

    start = stacked.mean(axis=0)
    found = minimize(total, start, method="BFGS", options={"gtol": 1e-10})
    return np.asarray(found.x)


REFERENCES: dict[type[RobustRule], Callable[[Updates, int], NDArray[np.float64]]] = {
    TrimmedMean: by_sorting,
    Median: lambda sent, _: np.asarray(np.median(np.array(sent, np.float64), axis=0)),
    Krum: by_krum,
    MultiKrum: by_multi_krum,
    Bulyan: by_bulyan,
    GeometricMedian: lambda sent, _: by_minimising(sent, np.ones(len(sent))),
}


@every_rule
@pytest.mark.parametrize("faulty", [1, 2])
@pytest.mark.parametrize("extra", [0, 1, 3])
def test_it_is_what_numpy_says(rule: RobustRule, faulty: int, extra: int) -> None:
    of = rule.model_copy(update={"faulty_sites": faulty})
    sent = updates(10 + extra, of.least_updates + extra, size=6)
    expected = REFERENCES[type(rule)](sent, faulty)
    tolerance = 1e-5 if isinstance(rule, GeometricMedian) else 1e-6
    assert np.abs(combine(of, sent, equal(len(sent))).value - expected).max() <= tolerance


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(3, 9), data=st.data())
def test_the_geometric_median_has_the_least_sum_of_weighted_distances(
    seed: int, count: int, data: st.DataObject
) -> None:
    weights = data.draw(
        st.lists(st.integers(1, 9), min_size=count, max_size=count).filter(lambda w: 2 * max(w) < sum(w))
    )
    sent = updates(seed, count, size=4)
    stacked = np.array(sent, np.float64)

    def total(point: NDArray[np.float64]) -> float:
        return float(np.sum(np.array(weights) * np.linalg.norm(stacked - point, axis=1)))

    found = combine(GeometricMedian(rule="geometric-median"), sent, weights).value
    best = by_minimising(sent, np.array(weights, np.float64))
    assert total(found) <= total(best) * (1 + 1e-6)


def test_the_geometric_median_may_be_one_of_the_updates() -> None:
    """Where Weiszfeld's own algorithm divides by 0."""
    corners = [np.array(corner, np.float32) for corner in ([0, 0], [1, 0], [0, 1], [-1, 0], [0, -1])]
    found = combine(GeometricMedian(rule="geometric-median"), corners, equal(5))
    assert np.abs(found.value).max() <= 1e-6
    same = [np.ones(2, np.float32)] * 4 + [np.full(2, 9, np.float32)]
    assert combine(GeometricMedian(rule="geometric-median"), same, equal(5)).value == pytest.approx(1.0, abs=1e-6)


def test_rules_that_choose_say_whom_they_chose() -> None:
    sent = updates(9, 7)
    sent[3] = sent[3] + np.float32(100)
    for rule in RULES:
        shares = combine(rule, sent, equal(7)).shares
        if rule.rule in SELECTING | {"bulyan"}:
            assert shares[3] == 0
        else:
            assert shares[3] < 0.05


def test_updates_longer_than_a_piece_are_put_together_again() -> None:
    generator = np.random.default_rng(11)
    sent = [generator.normal(size=100_003).astype(np.float32) for _ in range(7)]
    assert len(list(pieces(sent, np.float32))) > 2
    for rule in RULES:
        if rule.rule not in SELECTING | {"bulyan", "geometric-median"}:
            assert np.allclose(combine(rule, sent, equal(7)).value, REFERENCES[type(rule)](sent, 1), atol=1e-7)
    chosen = combine(Krum(rule="krum"), sent, equal(7))
    assert np.array_equal(chosen.value, sent[chosen.shares.index(1.0)].astype(np.float64))


@pytest.mark.parametrize(
    ("what", "reason"),
    [("other name", "names"), ("other shape", "shape"), ("weight of 0", "weight"), ("too much weight", "weight")],
)
def test_f12_what_does_not_fit_is_refused_and_not_held(what: str, reason: str) -> None:
    held = HeldUpdates(ArraySpec.of({"w": np.zeros(3, np.float32)}), total_weight=3)
    arrays: dict[str, NDArray[np.generic]] = {"w": np.ones(3, np.float32)}
    weight = {"weight of 0": 0, "too much weight": 4}.get(what, 1)
    if what == "other name":
        arrays = {"v": np.ones(3, np.float32)}
    if what == "other shape":
        arrays = {"w": np.ones(1, np.float32)}
    with pytest.raises(UpdateRefused) as refused:
        held.add(arrays, weight)
    assert refused.value.fields["reason"] == reason
    assert held.weight == 0


def test_a_step_moves_the_model_at_the_servers_rate_in_its_own_types() -> None:
    model: dict[str, NDArray[np.generic]] = {"w": np.full((2, 2), 5, np.float32), "v": np.full(3, 7, np.float64)}
    held = HeldUpdates(ArraySpec.of(model), total_weight=3)
    for value in (1.0, 2.0, 4.0):
        held.add({"w": np.full((2, 2), value, np.float32), "v": np.full(3, value, np.float64)})
    moved, _ = held.moved(model, Median(rule="median"), 0.5)
    assert moved["w"].dtype == np.float32
    assert moved["v"].dtype == np.float64
    assert np.array_equal(moved["w"], np.full((2, 2), 6.0))
    assert np.array_equal(moved["v"], np.full(3, 8.0))
