"""Rounds that are aggregated by robust rules or with a bound on norms, driven over the real in-process grid."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runs.scripted_sites import Site, driver, honest, run, task

from fedloop_core.arrays import NamedArrays
from fedloop_core.errors import QuorumNotReached, TooFewUpdates
from fedloop_core.task.aggregation import Bulyan, GeometricMedian, Krum, Mean, Median, MultiKrum, TrimmedMean
from fedloop_core.task.central import AdaptiveClipping, CentralPrivacy
from fedloop_server.aggregation.bounding import bound_from, shortened
from fedloop_server.runs.journal import RunJournal
from fedloop_server.runs.model import model_of

ROBUST = (
    GeometricMedian(rule="geometric-median"),
    TrimmedMean(rule="trimmed-mean"),
    Median(rule="median"),
    Krum(rule="krum"),
    MultiKrum(rule="multi-krum"),
    Bulyan(rule="bulyan"),
)


# Rules.


@pytest.mark.parametrize("rule", [Mean(), *ROBUST], ids=lambda rule: rule.rule)
def test_the_order_of_arrival_changes_no_bit_and_shares_are_journalled(rule: Any, tmp_path: Path) -> None:
    """With a bound on norms that shortens about half of the updates."""
    chosen = task(rule, norm_bound=1.0)
    one, state = run(tmp_path / "one", chosen, honest(7))
    two, other = run(tmp_path / "two", chosen, honest(7), late=(6, 3, 5, 0, 2, 4, 1))
    assert one == two
    for closed, again in zip(state.rounds, other.rounds, strict=True):
        assert closed.updates == again.updates
        assert [update.site for update in closed.updates] == [f"site-{n}" for n in range(7)]
        assert sum(update.share for update in closed.updates) == pytest.approx(1.0)
        assert all(update.norm == pytest.approx(1.0, abs=1e-6) for update in closed.updates)


def test_by_the_mean_shares_are_those_of_the_agreed_weights(tmp_path: Path) -> None:
    sites = [Site("a", rows=10), Site("b", rows=30)]
    _, state = run(tmp_path, task(Mean(), weighting="rows"), sites)
    assert [update.share for update in state.rounds[0].updates] == [0.25, 0.75]


def test_more_faulty_sites_than_sites_can_bear_are_told_before_anybody_is_asked(tmp_path: Path) -> None:
    sites = honest(4)
    with pytest.raises(
        TooFewUpdates, match=r"krum with 1 faulty site needs 5 updates \(n >= 2f \+ 3\); 4 sites are expected"
    ):
        driver(tmp_path, task(Krum(rule="krum")), sites).train()
    assert [site.trained for site in sites] == [0] * 4


def test_a_round_that_too_few_answer_moves_nothing(tmp_path: Path) -> None:
    sites = [*honest(4), Site("site-4", silent=True)]
    with pytest.raises(
        TooFewUpdates, match=r"round 1: 4 of 5 sites answered; 5 are needed: krum with 1 faulty .* site-4"
    ):
        driver(tmp_path, task(Krum(rule="krum")), sites).train()
    assert RunJournal(tmp_path).state.completed_rounds == 0


def test_a_quorum_above_the_rules_need_is_still_a_quorum(tmp_path: Path) -> None:
    sites = [*honest(4), Site("site-4", silent=True)]
    with pytest.raises(QuorumNotReached, match=r"round 1: 4 of 5 sites answered; 5 are needed\. ") as raised:
        driver(tmp_path, task(Median(rule="median"), quorum=1.0), sites).train()
    assert not isinstance(raised.value, TooFewUpdates)


def test_a_site_that_claims_most_rows_does_not_decide_alone_and_nobody_is_asked(tmp_path: Path) -> None:
    sites = [*honest(4), Site("site-4", rows=40)]
    chosen = task(GeometricMedian(rule="geometric-median"), weighting="rows")
    with pytest.raises(TooFewUpdates, match=r"the heaviest update weighs 40 of 80"):
        driver(tmp_path, chosen, sites).train()
    assert [site.trained for site in sites] == [0] * 5


@pytest.mark.parametrize("rule", ROBUST, ids=lambda rule: rule.rule)
def test_f12_f13_a_reply_that_is_not_finite_is_refused_by_name_and_changes_nothing(rule: Any, tmp_path: Path) -> None:
    alone, _ = run(tmp_path / "alone", task(rule), honest(7))
    weights, state = run(tmp_path / "with", task(rule), [*honest(7), Site("z", math.nan)])
    assert weights == alone
    assert {(out.site, out.code) for out in state.left_out} == {("z", "FL-UPD-001")}


# Norms.


def test_an_update_longer_than_earlier_rounds_allow_is_shortened_and_told(tmp_path: Path) -> None:
    sites = [*honest(3), Site("z", 1.0, 50.0)]
    _, state = run(tmp_path, task(Mean(), norm_bound=2.0), sites)
    first, *later = state.rounds
    assert [update.bounded_to for update in first.updates] == [None] * 4
    for closed in later:
        told = {update.site: update for update in closed.updates}
        assert told["z"].norm == pytest.approx(50.0, rel=1e-6)
        assert told["z"].bounded_to == pytest.approx(2.0, rel=1e-5)
        assert all(told[site.name].bounded_to is None for site in sites[:3])


def test_nobody_above_the_bound_costs_no_bit(tmp_path: Path) -> None:
    bounded, _ = run(tmp_path / "bounded", task(Mean(), norm_bound=10.0), honest(4, 1.0, 3.0, 0.1, 2.0))
    unbounded, _ = run(tmp_path / "unbounded", task(Mean(), norm_bound=math.inf), honest(4, 1.0, 3.0, 0.1, 2.0))
    assert bounded == unbounded


def test_a_shortened_update_weighs_what_it_would_at_the_bound(tmp_path: Path) -> None:
    _, state = run(tmp_path / "at", task(Mean(), norm_bound=2.0), [*honest(3), Site("z", 1.0, 50.0)])
    bounds = [update.bounded_to for closed in state.rounds for update in closed.updates if update.bounded_to]
    run(tmp_path / "told", task(Mean()), [*honest(3), Site("z", 1.0, *bounds)])
    one, two = (RunJournal(tmp_path / name) for name in ("at", "told"))
    names = model_of(task(Mean()), 3).names
    for name in names:
        ours = one.load_checkpoint("round-4.safetensors", names)[name]
        theirs = two.load_checkpoint("round-4.safetensors", names)[name]
        assert np.allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=0, atol=1e-6)


def test_a_liar_cannot_raise_the_bound_step_by_step(tmp_path: Path) -> None:
    """It always sends as much as it is allowed, and the median of honest norms stays where it was."""
    sites = [*honest(3), Site("z", 900.0)]
    _, state = run(tmp_path, task(Mean(), norm_bound=3.0, count=12), sites)
    bounds = [update.bounded_to for closed in state.rounds[1:] for update in closed.updates if update.site == "z"]
    assert all(bound == pytest.approx(3.0, rel=1e-5) for bound in bounds)


def test_even_most_sites_together_raise_it_by_no_more_than_the_factor_each_time_they_fill_the_window(
    tmp_path: Path,
) -> None:
    sites = [Site("honest"), *(Site(f"liar-{n}", 1.0, 900.0) for n in range(3))]
    _, state = run(tmp_path, task(Mean(), norm_bound=2.0, count=12), sites)
    bounds = [max(u.folded_norm for u in closed.updates) for closed in state.rounds]
    assert bounds[1] == pytest.approx(2.0, rel=1e-5)
    assert all(later <= 2.0 * earlier * (1 + 1e-6) for earlier, later in itertools.pairwise(bounds))


WINDOWS: tuple[tuple[str, list[dict[str, float]], float, float | None], ...] = (
    ("no round yet", [], 10.0, None),
    ("two sites", [{"a": 1.0, "b": 2.0}] * 5, 10.0, None),
    ("three sites", [{"a": 1.0, "b": 2.0, "c": 90.0}], 10.0, 20.0),
    ("three sites in turn", [{"a": 1.0}, {"b": 2.0}, {"c": 3.0}], 10.0, 20.0),
    ("all zero", [{"a": 0.0, "b": 0.0, "c": 0.0}], 10.0, None),
    ("no factor", [{"a": 1.0, "b": 2.0, "c": 3.0}], math.inf, None),
    (
        "the last five rounds count",
        [{"a": 99.0, "b": 99.0, "c": 99.0}] * 9 + [{"a": 1.0, "b": 1.0, "c": 1.0}] * 5,
        2.0,
        2.0,
    ),
)


@pytest.mark.parametrize(("what", "recent", "factor", "bound"), WINDOWS, ids=[row[0] for row in WINDOWS])
def test_the_bound(what: str, recent: list[dict[str, float]], factor: float, bound: float | None) -> None:
    assert bound_from(recent, factor) == bound, what


def test_f5_shortening_keeps_direction_shapes_and_types_also_of_whole_numbers() -> None:
    """Flower's clipping raises on an int64 buffer, and makes noise of one without a dimension."""
    arrays: dict[str, Any] = {
        "a": np.array([30.0], np.float32),
        "b": np.array([[40.0]], np.float64),
        "batches": np.array(-120, np.int64),
    }
    short = shortened(arrays, 130.0, 13.0)
    assert [array.dtype for array in short.values()] == [np.dtype("float32"), np.dtype("float64"), np.dtype("int64")]
    assert [array.shape for array in short.values()] == [(1,), (1, 1), ()]
    assert [float(np.ravel(array)[0]) for array in short.values()] == pytest.approx([3.0, 4.0, -12.0])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_f4_what_is_not_finite_does_not_slip_past_the_bound(value: float, tmp_path: Path) -> None:
    """``min(1, nan)`` is 1: Flower's clipping lets such an update through with any norm."""
    sites = [*honest(3), Site("z", 1.0, value)]
    _, state = run(tmp_path, task(Mean(), norm_bound=2.0), sites)
    assert [len(closed.folded) for closed in state.rounds] == [4, 3, 3, 3]
    assert {(out.site, out.code, out.round) for out in state.left_out} == {("z", "FL-UPD-001", n) for n in (2, 3, 4)}


class Reordering(Site):
    """Sends its arrays in another order."""

    def update(self, number: int, received: NamedArrays) -> dict[str, Any]:
        return dict(reversed(super().update(number, received).items()))


def test_f6_arrays_in_another_order_are_refused_before_a_norm_is_taken(tmp_path: Path) -> None:
    _, state = run(tmp_path, task(Mean(), norm_bound=2.0), [*honest(3), Reordering("z", 50.0)])
    assert {(out.site, out.code) for out in state.left_out} == {("z", "FL-UPD-001")}
    assert all("z" not in {update.site for update in closed.updates} for closed in state.rounds)


def test_f3_an_update_of_zeros_is_neither_lengthened_nor_divided_by(tmp_path: Path) -> None:
    _, state = run(tmp_path, task(Mean(), norm_bound=2.0), [*honest(3), Site("z", 1.0, 0.0)])
    told = [update for closed in state.rounds[1:] for update in closed.updates if update.site == "z"]
    assert [(update.norm, update.bounded_to) for update in told] == [(0.0, None)] * 3


# Noise that hides a whole site.


def test_many_sites_train_under_noise_and_a_run_that_died_has_the_same_noise_norms_and_cost(tmp_path: Path) -> None:
    hidden = CentralPrivacy(epsilon=8.0, clipping_norm=0.5, adaptive=AdaptiveClipping())
    chosen = task(Mean(), norm_bound=2.0).model_copy(update={"central_privacy": hidden})
    sites = honest(40, 1.0, 3.0, 1.0, 0.2)
    whole, state = run(tmp_path / "whole", chosen, sites)
    first = driver(tmp_path / "died", chosen, sites)
    first._check_expected()  # the steps of train, up to a round in the middle
    first._gather()
    first._joining.describe_all()
    first._fix_scaler()
    for _ in range(2):
        first._round()
    again, resumed = run(tmp_path / "died", chosen, sites)
    assert again == whole
    assert [found.central for found in resumed.rounds] == [found.central for found in state.rounds]
    last = state.rounds[-1].central
    assert last is not None
    assert (last.releases, resumed.attempt) == (4, 2)
    assert 7.9 < last.epsilon <= 8.0
    (told,) = {update.bounded_to for update in state.rounds[1].updates}
    assert (
        told == (state.rounds[0].central or last).next_clipping_norm
    )  # by its own norm, not by the bound of earlier rounds


def test_sites_too_few_for_the_noise_are_not_asked(tmp_path: Path) -> None:
    chosen = task(Mean()).model_copy(update={"central_privacy": CentralPrivacy(epsilon=0.5)})
    with pytest.raises(TooFewUpdates, match="nothing would be learnt"):
        run(tmp_path, chosen, honest(3))
    assert RunJournal(tmp_path).state.members == ()
