"""Noise that hides a whole site: calibration, clipping, sensitivity, noise, the norm that follows a quantile, and runs that go on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2
from tests.task.heads import ONE_NUMBER

from fedloop_core.central_privacy import (
    CentralPlan,
    central_plan,
    epsilon_of,
    noise_multiplier,
    update_multiplier,
)
from fedloop_core.errors import PrivacyParameterInvalid, TaskInvalid, TooFewUpdates, UpdateRefused
from fedloop_core.noise import SeededNoise, SystemNoise
from fedloop_core.privacy_statement import statement_page
from fedloop_core.task import Task
from fedloop_core.task.advice import advice_on
from fedloop_core.task.central import AdaptiveClipping, CentralPrivacy
from fedloop_core.task.reader import parse_task
from fedloop_core.update_gate import norm
from fedloop_server.aggregation.central import CentralAveraging, clipped, next_norm
from fedloop_server.runs.central import CentralNoise
from fedloop_server.runs.events import AttemptStarted, CentralRelease, RoundClosed, RoundLost, RoundOpened, ScalerFixed
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import RunState, apply
from fedloop_server.runs.statement import privacy_of

Arrays = dict[str, NDArray[Any]]
MODEL: Arrays = {"a": np.zeros((3, 4), np.float32), "b": np.zeros(5, np.float32)}
TASK = """
[privacy]
epsilon = inf
[rounds]
count = 4
{rounds}
[central_privacy]
epsilon = {epsilon}
{central}
"""


def document(epsilon: float, *, rounds: str = "", central: str = "") -> str:
    head = ONE_NUMBER.format(name="many", feature="x", range="[0, 4]")
    return head + TASK.format(epsilon=epsilon, rounds=rounds, central=central)


def task(epsilon: float = 8.0, *, rounds: str = "", central: str = "") -> Task:
    return parse_task(document(epsilon, rounds=rounds, central=central))


def plan_of(chosen: Task, *, private: bool = False) -> RunPlan:
    return RunPlan(run_id="run-1", task=chosen, seed=3, private=private, expected_sites=100)


def central(plan: RunPlan) -> CentralNoise:
    found = CentralNoise.of(plan, MODEL)
    assert found is not None
    return found


def averaging(multiplier: float = 1.0, **changed: Any) -> CentralAveraging:
    plan = CentralPlan(delta=1e-5, rounds=1, multiplier=multiplier, updates=multiplier, count_noise=None)
    return CentralAveraging(
        plan, changed.pop("noise", SeededNoise(1)), **{"rate": 1.0, "clipping_norm": 1.0, "most": 1000.0} | changed
    )


def updates(lengths: Sequence[float], seed: int = 0) -> list[Arrays]:
    generator = np.random.default_rng(seed)
    found = []
    for length in lengths:
        drawn = {name: generator.normal(size=array.shape) for name, array in MODEL.items()}
        scale = length / norm(drawn)
        found.append({name: (array * scale).astype(np.float32) for name, array in drawn.items()})
    return found


# --- calibration ---------------------------------------------------------------------------------------------------


def test_epsilon_is_that_of_the_oracle() -> None:
    assert epsilon_of(10.0, 100, 1e-5) == pytest.approx(4.728507, rel=1e-5)  # oracle K
    assert epsilon_of(1.0, 1, 1e-5) == pytest.approx(4.728507, rel=1e-5)  # oracle L
    assert epsilon_of(10.0, 0, 1e-5) == 0.0


@pytest.mark.parametrize(("epsilon", "rounds"), [(0.1, 10), (1.0, 50), (3.0, 50), (8.0, 200), (20.0, 1)])
def test_the_noise_is_the_least_that_keeps_all_rounds_within_epsilon(epsilon: float, rounds: int) -> None:
    found = noise_multiplier(epsilon, 1e-5, rounds)
    assert epsilon_of(found, rounds, 1e-5) <= epsilon < epsilon_of(found * 0.999, rounds, 1e-5)
    assert epsilon_of(found, rounds + 1, 1e-5) > epsilon


def test_a_count_beside_the_updates_costs_nothing_more() -> None:
    assert update_multiplier(1.0, 2.0) == pytest.approx(1.0328, abs=1e-4)  # arXiv 1905.03871
    plan = central_plan(CentralPrivacy(epsilon=3.0, adaptive=AdaptiveClipping()), 50)
    assert plan.count_noise is not None
    both = (plan.updates**-2 + (2 * plan.count_noise) ** -2) ** -0.5  # the count, shifted by a half, moves by a half
    assert both == pytest.approx(plan.multiplier)
    assert plan.updates / plan.multiplier == pytest.approx(1.0328, abs=1e-4)


def test_f2_too_little_noise_on_the_count_is_refused_in_a_sentence() -> None:
    with pytest.raises(PrivacyParameterInvalid, match="half the noise multiplier"):
        update_multiplier(1.0, 0.2)  # of Flower's n / 20 with four sites


# --- one round -----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.floats(0.0, 50.0), min_size=1, max_size=5),
    other=st.floats(0.0, 1000.0),
    clip=st.floats(1e-3, 20.0),
    weights=st.lists(st.integers(1, 3), min_size=6, max_size=6),
    seed=st.integers(0, 1000),
)
def test_one_site_moves_the_sum_by_no_more_than_the_noise_is_for(
    lengths: list[float], other: float, clip: float, weights: list[int], seed: int
) -> None:
    by = averaging(clipping_norm=clip, greatest_weight=3)
    without, with_it = by.begin(MODEL, 18), by.begin(MODEL, 18)
    *rest, one = updates([*lengths, other], seed)
    for update, weight in zip(rest, weights, strict=False):
        without.add(update, weight)
        with_it.add(update, weight)
    with_it.add(one, weights[5])
    moved = {name: with_it.sum()[name] - array for name, array in without.sum().items()}
    rounding = with_it.sensitivity / 3 - clip
    assert norm(moved) <= weights[5] * (clip + rounding) * (1 + 1e-12)
    assert with_it.sensitivity == pytest.approx(3 * clip, rel=1e-3)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_clipped_is_clipped_after_rounding_too(dtype: str) -> None:
    generator = np.random.default_rng(5)
    for _ in range(50):
        arrays: Arrays = {"a": generator.normal(size=100).astype(dtype)}
        found = clipped(arrays, norm(arrays), 1.0)
        assert 0.98 < norm(found) <= 1.0
    assert clipped(arrays, norm(arrays), 1000.0) is arrays


def test_noise_has_the_deviation_that_is_accounted() -> None:
    model: Arrays = {"a": np.zeros(20_000)}
    fold = averaging(2.5, clipping_norm=0.7, noise=SystemNoise()).begin(model, 4)
    for _ in range(4):
        fold.add({"a": np.zeros(20_000)})
    moved, shares = fold.move(model)
    assert fold.noised is not None
    assert fold.noised.deviation == pytest.approx(2.5 * 0.7, rel=1e-3)
    squares = float(np.sum((moved["a"].astype(np.float64) * 4 / fold.noised.deviation) ** 2))
    low, high = chi2.ppf([1e-6, 1 - 1e-6], 20_000)
    assert low < squares < high
    assert shares == (0.25,) * 4
    with pytest.raises(ValueError, match="already"):
        fold.move(model)


def test_the_order_of_updates_changes_no_bit() -> None:
    found = set()
    for order in itertools.permutations(updates([0.2, 3.0, 40.0])):
        fold = averaging().begin(MODEL, 3)
        for update in order:
            fold.add(update)
        found.add(b"".join(array.tobytes() for array in fold.move(MODEL)[0].values()))
    assert len(found) == 1


def test_f7_a_weight_that_the_noise_is_not_for_is_refused() -> None:
    fold = averaging().begin(MODEL, 100)
    (one,) = updates([1.0])
    with pytest.raises(UpdateRefused, match="for which the noise is"):
        fold.add(one, 97)
    assert averaging(greatest_weight=97).begin(MODEL, 100).sensitivity == pytest.approx(97, rel=1e-3)


def test_f8_noise_and_cost_stay_when_fewer_answer() -> None:
    deviations = []
    for came in (1, 10):
        fold = averaging(3.0).begin(MODEL, 10)
        for update in updates([1.0] * came):
            fold.add(update)
        fold.move(MODEL)
        assert fold.noised is not None
        deviations.append(fold.noised.deviation)
    assert deviations[0] == deviations[1]  # on the sum; the mean of one carries ten times as much


def test_f9_noise_lies_on_the_sum_before_the_server_moves_the_model() -> None:
    """What follows the noise is a multiplication: twice the rate moves twice as far, noise and all."""
    moves = []
    for rate in (1.0, 2.0):
        fold = averaging(rate=rate).begin(MODEL, 1)
        fold.add(updates([1.0])[0])
        moves.append(fold.move(MODEL)[0]["a"].astype(np.float64))
    np.testing.assert_allclose(2 * moves[0], moves[1], rtol=1e-6)


def test_a_sum_that_was_not_clipped_here_is_refused() -> None:
    with pytest.raises(UpdateRefused, match="not clipped here"):
        averaging().begin(MODEL, 3).add_whole(np.zeros(17, np.int64), (1, 1, 1))


# --- the norm that follows a quantile ------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0.1, 10.0])
def test_f1_the_norm_follows_the_quantile_from_below_and_above(start: float) -> None:
    """Norms uniform in [0.5, 1.5): the median is 1; Flower's rule shrinks to 0.00025 and grows to 4034."""
    adaptive = AdaptiveClipping(quantile=0.5, rate=0.2)
    generator, reached = np.random.default_rng(4), start
    for _ in range(60):
        reached = next_norm(reached, float(np.mean(generator.uniform(0.5, 1.5, 100) <= reached)), adaptive)
    assert reached == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize("start", [0.1, 10.0])
def test_the_norm_converges_under_noise_over_rounds_of_a_run(start: float) -> None:
    chosen = task(central=f"clipping_norm = {start}\n[central_privacy.adaptive]\ncount_noise = 5.0")
    noise, state, generator = central(plan_of(chosen)), RunState(), np.random.default_rng(2)
    for number in range(1, 61):
        fold = noise.algorithm(number, state).begin(MODEL, 100)
        for update in updates(list(generator.uniform(0.5, 1.5, 100)), number):
            fold.add(update)
        fold.move(MODEL)
        assert fold.noised is not None
        told = noise.told(fold.noised, state)
        state = state.model_copy(update={"rounds": (*state.rounds, closed(number, told))})
    reached = state.rounds[-1].central
    assert reached is not None
    assert reached.next_clipping_norm == pytest.approx(1.0, abs=0.1)


# --- a run ---------------------------------------------------------------------------------------------------------


def closed(number: int, told: CentralRelease | None) -> RoundClosed:
    return RoundClosed(round=number, folded=("a", "b"), checkpoint=f"r{number}", digest="", central=told, unix=0.0)


def run_round(noise: CentralNoise, state: RunState, number: int) -> RunState:
    state = apply(state, RoundOpened(round=number, asked=("a", "b"), unix=0.0))
    fold = noise.algorithm(number, state).begin(MODEL, 2)
    for update in updates([0.5, 2.0], number):
        fold.add(update)
    fold.move(MODEL)
    assert fold.noised is not None
    return apply(state, closed(number, noise.told(fold.noised, state)))


def begun() -> RunState:
    return apply(apply(RunState(), AttemptStarted(attempt=1, unix=0.0)), ScalerFixed(checkpoint="r0"))


def test_a_resumed_run_counts_on_and_has_the_same_norms() -> None:
    chosen = task(central="[central_privacy.adaptive]\n")
    noise, state = central(plan_of(chosen)), begun()
    for number in (1, 2, 3, 4):
        state = run_round(noise, state, number)
    resumed = begun()
    for number in (1, 2, 3, 4):
        resumed = RunState.model_validate_json(
            apply(resumed, AttemptStarted(attempt=number + 1, unix=0)).model_dump_json()
        )
        resumed = run_round(central(plan_of(chosen)), resumed, number)
    assert [found.central for found in resumed.rounds] == [found.central for found in state.rounds]
    last = state.rounds[-1].central
    assert last is not None
    assert (last.releases, noise.done(state)) == (4, True)
    assert last.epsilon <= 8.0
    norms = [found.central.clipping_norm for found in state.rounds if found.central is not None]
    assert len(set(norms)) == 4


def test_a_lost_round_is_another_release_only_if_its_model_was_sent() -> None:
    noise = central(plan_of(task()))
    state = run_round(noise, run_round(noise, begun(), 1), 2)
    kept = run_round(noise, apply(state, RoundLost(round=2, reason="damaged", unix=0.0)), 2)
    told = kept.rounds[-1].central
    assert told is not None
    assert told.releases == 2
    sent = apply(state, RoundOpened(round=3, asked=("a",), unix=0.0))
    sent = apply(sent, AttemptStarted(attempt=2, unix=0.0))
    again = run_round(noise, apply(sent, RoundLost(round=2, reason="damaged", unix=0.0)), 2)
    told = again.rounds[-1].central
    assert told is not None
    assert told.releases == 3
    assert not noise.done(again)
    assert noise.done(run_round(noise, again, 3))  # one of the four planned rounds was spent on the lost model


def test_noise_of_a_real_run_is_never_the_same_twice_and_that_of_a_rehearsal_is() -> None:
    for private in (True, False):
        noise = central(plan_of(task(), private=private))
        first, second = (noise.algorithm(1, RunState()).noise.derive("x").normal((4,), 1.0) for _ in range(2))
        assert bool(np.isclose(first, second).any()) is not private
        assert bool((first == second).all()) is not private


def test_a_run_begins_with_sites_enough_only(caplog: pytest.LogCaptureFixture) -> None:
    noise = central(plan_of(task(1.0)))
    enough = noise.plan.sites_for(17)
    with pytest.raises(TooFewUpdates, match=rf"nothing would be learnt\. {enough} sites make it as long as one"):
        noise.require(2)
    noise.require(enough // 2)
    assert f"{enough} sites make it as long as one" in caplog.text
    caplog.clear()
    noise.require(enough)
    assert caplog.text == ""
    assert noise.plan.loudness(17, enough) <= 1.0 < noise.plan.loudness(17, enough - 1)


def test_f2_a_count_that_drowns_in_its_noise_is_refused() -> None:
    noise = central(plan_of(task(8.0, central="[central_privacy.adaptive]\ncount_noise = 50.0")))
    with pytest.raises(TooFewUpdates, match="needs 100 sites"):
        noise.require(10)
    noise.require(100)


def test_the_table_of_loudness_is_that_of_the_research() -> None:
    for epsilon, rounds, sites, wanted in ((1, 50, 1000, 2.6), (3, 50, 100, 9.8), (8, 200, 20, 42)):
        plan = central_plan(CentralPrivacy(epsilon=epsilon), rounds)
        assert plan.loudness(10_000, sites) == pytest.approx(
            wanted, rel=0.12
        )  # that table is exact, and RDP is above it


def test_the_statement_names_the_site_as_a_unit() -> None:
    plan = plan_of(task(), private=True)
    noise = central(plan)
    statement = privacy_of(plan, run_round(noise, begun(), 1))
    assert statement.central is not None
    assert (statement.central.unit, statement.central.releases, statement.central.fewest_updates) == ("site", 1, 2)
    assert 0 < statement.central.epsilon < 8.0
    assert ("the model of each round", "whole sites") in [(made.what, made.charged_to) for made in statement.releases]
    page = statement_page(statement, task="many", version=1)
    assert "This rests on the coordinator" in page
    rehearsed = privacy_of(plan_of(task()), run_round(noise, begun(), 1))
    assert "the coordinator's noise can be repeated" in statement_page(rehearsed, task="many", version=1)


# --- the task ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("epsilon = 8", "epsilon = inf", "central_privacy.epsilon"),
        ("epsilon = 8", "epsilon = 0", "central_privacy.epsilon"),
        ("[privacy]", '[preprocessing]\nscaling = "federated"\n[privacy]', "does not cover"),
        ("[privacy]", '[training]\nalgorithm = "newton"\n[privacy]', "have no clip"),
        ("epsilon = 8", "epsilon = 8\nclipping_norm = 1001.0", "updates that are refused"),
        ("count = 4", 'count = 4\nweighting = "rows"', "weights by rows does not go together with client-level DP"),
        ("[privacy]", '[aggregation]\nrule = "median"\n[privacy]', "median does not go together with client-level DP"),
        (
            "[privacy]",
            '[aggregation]\nrule = "mean"\nsecure = true\n[privacy]',
            "secure aggregation does not go together with",
        ),
    ],
    ids=["infinite epsilon", "no epsilon", "shared scaling", "newton", "long clip", "weights", "F9 median", "secure"],
)
def test_a_task_whose_noise_would_not_hide_a_site_is_refused(old: str, new: str, said: str) -> None:
    with pytest.raises(TaskInvalid) as raised:
        parse_task(document(8).replace(old, new, 1))
    assert any(said in problem for problem in raised.value.problems), raised.value.problems


def test_the_check_of_a_task_says_how_many_sites_it_needs() -> None:
    (said,) = [sentence for sentence in advice_on(task(1.0)) if "sites in a round" in sentence]
    needed = central_plan(CentralPrivacy(epsilon=1.0), 4).sites_for(4)
    assert f"needs {needed} sites" in said or f"needs {needed:,} sites" in said
    enough = task(1.0, rounds="sites_per_round = 1000")
    assert not [sentence for sentence in advice_on(enough) if "sites in a round" in sentence]
