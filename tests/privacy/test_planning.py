"""The plan of a private run: everything it will charge stays within the task's epsilon."""

from __future__ import annotations

import pytest

from fedloop_clients.charging import epsilon_of_run
from fedloop_clients.privacy.planning import Ceiling, count_charge, plan_run
from fedloop_core.errors import PrivacyParameterInvalid
from fedloop_core.privacy.accounting import epsilon, epsilon_at, rdp_at, registered_order
from fedloop_core.privacy.charges import PureCharge
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task.document import FederatedAveraging, LogisticModel, Preprocessing, Privacy, Task
from fedloop_core.task.evaluations import planned_evaluations


def planned_task(scaling: str = "federated", budget: float = 3.0, delta: float = 1e-5) -> Task:
    return Task(
        format=1,
        name="tabular",
        features=(NumericFeature(kind="numeric", name="x", range=(0.0, 1.0)),),
        label=ClassLabel(kind="classes", name="y", classes=("no", "yes")),
        model=LogisticModel(kind="logistic"),
        preprocessing=Preprocessing.model_validate({"scaling": scaling}),
        training=FederatedAveraging(algorithm="fedavg", local_steps=10, batch_size=50),
        privacy=Privacy(epsilon=budget, delta=delta),
    )


def test_rounds_statistics_and_count_stay_within_epsilon_together() -> None:
    task = planned_task()
    plan = plan_run(task, 1000, 20)
    assert plan.moments is not None
    assert plan.round.sampling_rate == 0.05
    after_the_count = epsilon([plan.round] * 20 + [plan.moments], 1e-5)
    assert 2.99 <= plan.rows.epsilon + after_the_count <= 3.0 * (1 + 1e-9)
    assert epsilon([plan.round] * 20 + list(plan.others), 1e-5) <= 3.0
    assert epsilon([plan.moments], 1e-5) <= 0.3
    assert plan.rows == count_charge(task) == PureCharge(epsilon=0.05 * 3.0)


@pytest.mark.parametrize(("told", "rate", "divisor"), [(1000, 0.05, 50.0), (50, 1.0, 50.0), (30, 1.0, 30.0)])
def test_rate_and_divisor_follow_from_the_number_told(told: int, rate: float, divisor: float) -> None:
    plan = plan_run(planned_task(), told, 20)
    assert plan.round.sampling_rate == rate
    assert plan.expected_batch_size == pytest.approx(divisor)


@pytest.mark.parametrize("told", [10, 37, 400, 5000])
def test_whatever_number_is_told_the_run_stays_within_epsilon(told: int) -> None:
    plan = plan_run(planned_task("range"), told, 20)
    assert 2.99 <= plan.rows.epsilon + epsilon([plan.round] * 20, 1e-5) <= 3.0 * (1 + 1e-9)


@pytest.mark.parametrize("told", [37, 400, 5000])
def test_the_order_is_fixed_before_the_first_round_and_holds_all_of_them(told: int) -> None:
    plan = plan_run(planned_task(), told, 20)
    assert plan.moments is not None
    whole = [plan.round] * 20 + [plan.moments]
    at_order = epsilon_at(plan.order, sum(rdp_at(charge, plan.order) for charge in whole), 1e-5)
    assert plan.rows.epsilon + at_order == pytest.approx(3.0, rel=1e-4)
    assert plan.rows.epsilon + at_order <= 3.0 * (1 + 1e-6)
    loud = plan_run(
        planned_task(), told, 20, ceilings=(Ceiling(plan.order, sum(rdp_at(c, plan.order) for c in whole)),)
    )
    assert loud.order == plan.order  # what other runs have spent meanwhile decides noise, not the order


def test_a_runs_epsilon_is_told_at_its_order_and_not_at_the_best_one_so_far() -> None:
    plan = plan_run(planned_task(), 1000, 20)
    at_best, at_order = (epsilon_of_run([plan.rows, plan.round], 1e-5, order) for order in (None, plan.order))
    assert at_order > at_best


def test_evaluations_share_their_own_epsilon() -> None:
    task = planned_task()
    count = planned_evaluations(task)
    assert count == 10 // 5 + 3 + 2
    assert plan_run(task, 1000, 20).evaluation.epsilon * count == pytest.approx(3.0)


def test_no_statistics_cost_nothing() -> None:
    plan = plan_run(planned_task("range"), 1000, 20)
    assert plan.moments is None
    assert plan.round.noise_multiplier < plan_run(planned_task(), 1000, 20).round.noise_multiplier


def test_a_run_as_large_as_the_blocks_whole_budget_fits_its_registered_order() -> None:
    order = registered_order(3.0, 1e-5)
    without = plan_run(planned_task(), 1000, 20)
    cost = 20 * rdp_at(without.round, order) + sum(rdp_at(charge, order) for charge in without.others)
    fitted = plan_run(planned_task(), 1000, 20, ceilings=(Ceiling(order, cost * 0.97),))
    assert 20 * rdp_at(fitted.round, order) + sum(rdp_at(c, order) for c in fitted.others) <= cost * 0.97
    assert 1 < fitted.round.noise_multiplier / without.round.noise_multiplier < 1.1


def test_a_block_that_holds_far_less_does_not_drown_the_run_in_noise() -> None:
    without = plan_run(planned_task(), 1000, 20)
    assert plan_run(planned_task(), 1000, 20, ceilings=(Ceiling(5.0, 0.01),)) == without


@pytest.mark.parametrize(
    ("task", "units", "reason"),
    [
        (planned_task("per-site"), 1000, "per site reads every row"),
        (planned_task(budget=1e-4), 1000, "no noise keeps"),
    ],
    ids=["scaling per site", "epsilon too small"],
)
def test_parameters_that_guard_nothing_are_refused(task: Task, units: int, reason: str) -> None:
    with pytest.raises(PrivacyParameterInvalid, match=reason):
        plan_run(task, units, 20)
