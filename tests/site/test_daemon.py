"""The site daemon end to end: real envelopes, real ledger, real outbox, real training."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.data.site_data import SiteData
from fedloop_clients.endpoint import Question, Reply
from fedloop_clients.outbox import KeptResult, Outbox
from fedloop_clients.policy import Budget, SiteConfig, SitePolicy
from fedloop_clients.privacy.ledger import Ledger
from fedloop_clients.training.devices import Choice, DevicePool
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.arrays import digest
from fedloop_core.dataset import Dataset
from fedloop_core.errors import EnvelopeRefused, SettingsInvalid
from fedloop_core.federation.answers import open_answer
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.keys import SigningKey, seal
from fedloop_core.models import initial_arrays
from fedloop_core.newton import Standardisation
from fedloop_core.noise import NoiseSource, SeededNoise, SystemNoise
from fedloop_core.privacy.charges import Charge, PureCharge
from fedloop_core.scaling import Scaler
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task.document import (
    DataGate,
    FederatedAveraging,
    Gates,
    LogisticModel,
    NewtonRaphson,
    Preprocessing,
    Privacy,
    Rounds,
    Task,
)
from fedloop_proto.coordination.v1.coordination_pb2 import (
    Answer,
    CollectMoments,
    DescribeData,
    Envelope,
    EvaluateArtifact,
    Instruction,
    LocalUpdate,
    SumDerivatives,
    TrainLocally,
)

Arrays = Mapping[str, NDArray[Any]]
Parts = Any  # fields of an instruction
KEY, STRANGER, SITE_KEY = SigningKey.generate(), SigningKey.generate(), SigningKey.generate()
NOW = 1_800_000_000
FREE = Budget(epsilon=math.inf)


def make_task(epsilon: float = math.inf, *, rounds: int = 4, scaling: str = "range", delta: float = 1e-4) -> Task:
    return Task(
        format=1,
        name="tabular",
        features=tuple(NumericFeature(kind="numeric", name=f"x{at}", range=(-4.0, 4.0)) for at in range(3)),
        label=ClassLabel(kind="classes", name="y", classes=("no", "yes")),
        model=LogisticModel(kind="logistic"),
        preprocessing=Preprocessing.model_validate({"scaling": scaling}),
        training=FederatedAveraging(algorithm="fedavg", local_steps=5, batch_size=20),
        privacy=Privacy(epsilon=epsilon, delta=delta),
        rounds=Rounds(count=rounds, evaluate_every=2),
    )


def some_rows(count: int, prefix: str, seed: int = 0) -> Dataset:
    values = np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)
    labels = (values[:, 0] + values[:, 1] > 0).astype(np.int64)
    return Dataset({"numeric": values}, labels, tuple(f"{prefix}{at}" for at in range(count)))


def arrays_of(task: Task) -> dict[str, NDArray[Any]]:
    return {**initial_arrays(task, 1), **Scaler.from_ranges(task.feature_schema).arrays()}


def opened(reply: Reply) -> Answer:
    return open_answer(reply.answer, SITE_KEY.verifying, site="north")


@dataclass
class Site:
    """A site and the coordinator's side of the talk with it."""

    task: Task
    budget: Budget = FREE
    evaluation_budget: Budget = FREE
    policy: SitePolicy = field(default_factory=SitePolicy)
    noise: NoiseSource = field(default_factory=lambda: SeededNoise(1))
    folder: Path | None = None
    rows: int = 200
    now: int = NOW
    devices: DevicePool | None = None

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.ledger = Ledger(self.folder / "ledger" if self.folder else ":memory:", lambda: self.now)
        self.outbox = Outbox(self.folder / "outbox" if self.folder else ":memory:")
        self.daemon = SiteDaemon(
            SiteConfig(
                site="north",
                policy=self.policy,
                training_budget=self.budget,
                evaluation_budget=self.evaluation_budget,
            ),
            SiteData(some_rows(self.rows, "t"), some_rows(60, "e", 1), secret=b"s" * 32),
            self.ledger,
            self.outbox,
            self.noise,
            KEY.verifying,
            lambda: self.now,
            signing_key=SITE_KEY,
            devices=self.devices,
        )

    def instruction(self, arrays: Arrays, **parts: Parts) -> Instruction:
        base: dict[str, Parts] = {
            "run_id": "run-1",
            "attempt": 1,
            "round": 0,
            "site": "north",
            "task_digest": self.task.digest,
            "arrays_digest": digest(arrays),
            "expires_unix": NOW + 1000,
            "protocol": PROTOCOL,
        }
        return Instruction(**(base | parts))

    def ask(self, arrays: Arrays | None = None, **parts: Parts) -> tuple[Answer, Reply]:
        beside: Arrays = {} if arrays is None else arrays
        reply = self.daemon.answer(Question(seal(self.instruction(beside, **parts), KEY), beside))
        return opened(reply), reply

    def describe(self, **parts: Parts) -> Answer:
        return self.ask(describe_data=DescribeData(task_document=self.task.canonical()), **parts)[0]

    def train(self, number: int, *, evaluate: bool = False, **parts: Parts) -> tuple[Answer, Reply]:
        work = TrainLocally(rounds_planned=self.task.rounds.count, evaluate=evaluate)
        return self.ask(arrays_of(self.task), round=number, train_locally=work, **parts)


@pytest.fixture
def plain() -> Site:
    site = Site(make_task())
    site.describe()
    return site


@pytest.fixture
def private() -> Site:
    site = Site(
        make_task(2.0), budget=Budget(epsilon=6.0, delta=1e-5), evaluation_budget=Budget(epsilon=6.0, delta=1e-5)
    )
    site.describe()
    return site


def refused(answer: Answer) -> tuple[str, dict[str, str]]:
    assert answer.WhichOneof("result") == "refusal", answer
    return answer.refusal.code, dict(answer.refusal.fields)


# --- without privacy -----------------------------------------------------------------------------------------------


def test_a_description_is_exact_without_privacy(plain: Site) -> None:
    answer = plain.describe(round=9)
    said = answer.data_description
    assert (said.admitted, said.rows, said.rows_noised) == (True, 200, False)
    assert len(said.data_fingerprint) == 32
    assert said.spend.unlimited
    assert answer.instruction_digest
    assert answer.ledger.sequence == plain.ledger.head().sequence


def test_a_round_gives_an_update_and_an_evaluation(plain: Site) -> None:
    answer, reply = plain.train(1, evaluate=True)
    update = answer.local_update
    assert (update.steps, update.private, update.weight) == (5, False, 1)
    assert update.evaluation.present
    assert not update.evaluation.noised
    assert update.evaluation.total == 60
    assert answer.arrays_digest == digest(reply.arrays)
    assert list(reply.arrays) == list(initial_arrays(plain.task, 1))


def test_a_round_is_the_same_at_a_site_that_was_made_again() -> None:
    first, second = Site(make_task()), Site(make_task())
    for site in (first, second):
        site.describe()
    second.train(1)
    second.train(3)
    one, two = first.train(2)[1], second.train(2)[1]
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, two.arrays[name])


def test_exact_moments_travel_as_arrays() -> None:
    site = Site(make_task(scaling="federated"))
    site.describe()
    answer, reply = site.ask(collect_moments=CollectMoments())
    assert not answer.moments.noised
    assert list(reply.arrays) == ["sum", "sum_of_squares", "count"]
    assert reply.arrays["count"].tolist() == [200, 200, 200]


def test_weight_by_rows_is_the_number_told() -> None:
    task = make_task()
    site = Site(task.model_copy(update={"rounds": task.rounds.model_copy(update={"weighting": "rows"})}))
    site.describe()
    assert site.train(1)[0].local_update.weight == 200


def test_newton_sends_exact_sums_and_an_evaluation() -> None:
    task = make_task(rounds=9, scaling="federated").model_copy(update={"training": NewtonRaphson(algorithm="newton")})
    site = Site(task)
    site.describe()
    _, moments = site.ask(collect_moments=CollectMoments())
    scaler = Standardisation.from_moments(
        *(moments.arrays[name].astype(np.float64) for name in ("sum", "sum_of_squares", "count"))
    )
    theta = np.zeros(4)
    for number in range(1, 6):
        arrays = {"theta": theta, **scaler.arrays()}
        answer, reply = site.ask(arrays, round=number, sum_derivatives=SumDerivatives(evaluate=True))
        hessian = reply.arrays["hessian"].astype(np.float64) + np.eye(4)
        theta = theta + np.linalg.solve(hessian, reply.arrays["gradient"].astype(np.float64))
    assert answer.derivatives.evaluation.correct >= 55
    bad = site.ask({"theta": np.zeros(3), **scaler.arrays()}, round=9, sum_derivatives=SumDerivatives())[0]
    assert refused(bad) == ("FL-UPD-001", {"reason": "shape"})


# --- with privacy --------------------------------------------------------------------------------------------------


def test_a_private_run_stays_within_its_epsilon_and_is_charged_step_by_step(private: Site) -> None:
    spent = [private.ledger.spend("original").epsilon]
    for number in range(1, 5):
        answer, reply = private.train(number, evaluate=number == 3)
        assert answer.local_update.steps == 5
        assert not answer.local_update.private  # the noise is seeded: a rehearsal
        assert all(np.isfinite(array).all() for array in reply.arrays.values())
        spent.append(answer.local_update.spend.epsilon)
        assert answer.local_update.run_epsilon <= 2.0 * (1 + 1e-6)
    assert spent == sorted(spent)
    assert answer.local_update.run_epsilon >= 1.9
    assert private.ledger.spend("original").epsilon <= 6.0
    assert private.ledger.verify().head == private.ledger.head()


def test_a_round_more_than_planned_is_refused(private: Site) -> None:
    for number in range(1, 5):
        private.train(number)
    assert refused(private.train(5)[0]) == ("FL-TRUST-006", {"rule": "maximum-rounds"})
    moved = {name: array + np.float32(1) for name, array in arrays_of(private.task).items()}
    again = private.ask(moved, round=4, train_locally=TrainLocally(rounds_planned=4))[0]
    assert refused(again)[0] == "FL-PRIV-002"


def test_planning_fewer_rounds_than_are_asked_cannot_loosen_the_run(private: Site) -> None:
    head = private.ledger.head()
    first = private.ask(arrays_of(private.task), round=1, train_locally=TrainLocally(rounds_planned=1))[0]
    assert refused(first) == ("FL-TRUST-006", {"rule": "planned"})
    assert private.ledger.head() == head


def test_a_private_description_is_noised_and_charged(private: Site) -> None:
    answer = private.describe(run_id="run-2")
    said = answer.data_description
    assert said.rows_noised
    assert abs(said.rows - 200) < 400
    assert private.ledger.charges("original", "run-2") == (PureCharge(epsilon=0.05 * 2.0),)


def test_the_number_of_units_is_told_and_charged_once_a_run(private: Site) -> None:
    first = private.describe().data_description
    head = private.ledger.head()
    again = private.describe(round=9).data_description
    assert again.rows == first.rows
    assert private.ledger.head() == head


def test_no_number_of_units_is_told_outside_what_the_gate_lets_in() -> None:
    gates = Gates(data=DataGate(minimum_rows=10, maximum_rows=90))
    site = Site(make_task(0.1).model_copy(update={"gates": gates}), budget=Budget(epsilon=60.0), rows=10)
    said = [site.describe(run_id=f"run-{at}").data_description for at in range(40)]
    told = [one.rows for one in said if one.admitted]
    assert told  # noise of scale 200 around 10
    assert all(10 <= rows <= 90 for rows in told)
    assert {one.rows for one in said if not one.admitted} == {0}
    assert {tuple(one.reasons) for one in said if not one.admitted} == {("minimum-rows",), ("maximum-rows",)}


@dataclass
class Shaping:
    """What shaped the releases of a run: charges, and what the trainer was given."""

    charges: tuple[Charge, ...] = ()
    trained: list[tuple[Any, ...]] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)


def shaping(rows: int, patch: pytest.MonkeyPatch) -> Shaping:
    """A private run of a site with so many units that tells 203 of them; it restarts in between."""
    seen = Shaping()
    trains = LocalTrainer.train_privately

    def watched(self: LocalTrainer, arrays: Any, rows: Any, sigma: float, rate: float, *rest: Any, **named: Any) -> Any:
        seen.trained.append((sigma, rate, named["expected_batch_size"]))
        return trains(self, arrays, rows, sigma, rate, *rest, **named)

    site = Site(make_task(2.0, scaling="federated"), budget=Budget(epsilon=6.0), rows=rows)
    with patch.context() as patched:
        patched.setattr("fedloop_clients.counting.noised_counts", lambda *_: (203, 0))
        patched.setattr(LocalTrainer, "train_privately", watched)
        assert site.describe().data_description.rows == 203
        site.ask(collect_moments=CollectMoments())
        for number in range(1, 5):
            if number == 3:
                site.daemon._runs.clear()  # as after a restart: the number told comes back from the outbox
            seen.weights.append(site.train(number)[0].local_update.weight)
    seen.charges = site.ledger.charges("original")
    return seen


def test_neighbours_that_tell_the_same_number_shape_their_updates_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise, rate and divisor of a release must say nothing of the exact number of units."""
    with_unit, without = shaping(201, monkeypatch), shaping(200, monkeypatch)
    assert with_unit == without
    assert len(without.trained) == 4
    assert without.trained == [(without.trained[0][0], 20 / 203, 20 / 203 * 203)] * 4


def test_a_private_site_that_told_no_number_does_not_train(private: Site) -> None:
    private.daemon._remember(private.daemon._runs["run-1"], replace(private.daemon._runs["run-1"].known, rows_said=0))
    head = private.ledger.head()
    assert refused(private.train(1)[0]) == ("FL-TRUST-001", {"reason": "undescribed"})
    assert private.ledger.head() == head


def test_how_many_gradients_were_not_finite_stays_at_the_site(
    private: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator chooses the weights: an exact count would tell which rows overflow under them."""
    monkeypatch.setattr("fedloop_clients.training.bounding.LARGEST_WEIGHT", math.inf)  # such weights are refused
    huge = {name: np.full_like(array, 3e38) for name, array in initial_arrays(private.task, 1).items()}
    scaler = Scaler.from_ranges(private.task.feature_schema).arrays()
    with caplog.at_level("WARNING"):
        answer = private.ask({**huge, **scaler}, round=1, train_locally=TrainLocally(rounds_planned=4))[0]
    assert "that were not finite" in caplog.text
    told = {description.name for description in LocalUpdate.DESCRIPTOR.fields}
    assert told == {"weight", "steps", "private", "spend", "run_epsilon", "evaluation"}
    assert answer.WhichOneof("result") in {"local_update", "refusal"}


def test_private_evaluations_are_noised_and_end_when_their_share_is_spent(private: Site) -> None:
    present = []
    for number in range(1, 5):
        evaluation = private.train(number, evaluate=True)[0].local_update.evaluation
        present.append(evaluation.present)
        assert evaluation.noised
        assert evaluation.noise_scale == pytest.approx(7 / 2.0)
        assert evaluation.loss_sum == 0
        assert 0 < evaluation.spend.epsilon <= 6.0
    assert all(present)


def test_an_exhausted_evaluation_budget_does_not_stop_training() -> None:
    site = Site(make_task(2.0), budget=Budget(epsilon=6.0), evaluation_budget=Budget(epsilon=0.5, delta=1e-3))
    site.describe()
    present = [site.train(number, evaluate=True)[0].local_update.evaluation.present for number in range(1, 5)]
    assert present[0]
    assert not present[-1]


def test_an_evaluation_budget_that_others_spend_meanwhile_does_not_stop_training(private: Site) -> None:
    assert private.train(1, evaluate=True)[0].local_update.evaluation.present
    little = PureCharge(epsilon=0.1)
    while private.ledger.runs_left("evaluation", little) > 1:
        private.ledger.reserve(little, ("evaluation",), "run-2", "evaluation")
    present = [private.train(number, evaluate=True)[0].local_update.evaluation.present for number in range(2, 5)]
    assert not present[-1]


def test_system_noise_makes_a_run_private() -> None:
    site = Site(make_task(2.0), noise=SystemNoise())
    site.describe()
    assert site.train(1)[0].local_update.private


def test_private_moments_are_noised_and_charged() -> None:
    site = Site(make_task(2.0, scaling="federated"), budget=Budget(epsilon=6.0))
    site.describe()
    before = site.ledger.spend("original").epsilon
    answer, reply = site.ask(collect_moments=CollectMoments())
    assert answer.moments.noised
    assert all(np.isfinite(array).all() for array in reply.arrays.values())
    assert site.ledger.spend("original").epsilon > before
    for number in range(1, 5):
        answer = site.train(number)[0]
    assert 1.9 <= answer.local_update.run_epsilon <= 2.0 * (1 + 1e-6)


def test_moments_that_nothing_pays_for_are_refused(private: Site) -> None:
    assert refused(private.ask(collect_moments=CollectMoments())[0])[0] == "FL-USE-001"


def test_a_run_that_is_exactly_the_budget_for_life_fits_whole() -> None:
    site = Site(make_task(2.0, delta=1e-5), budget=Budget(epsilon=2.0, delta=1e-5))
    site.describe()
    for number in range(1, 5):
        answer = site.train(number)[0]
        assert answer.WhichOneof("result") == "local_update", answer
    assert refused(site.describe(run_id="run-2"))[0] == "FL-PRIV-002"


@dataclass(frozen=True)
class Purse:
    """A budget for life that an earlier run has used in part, and the run that comes next."""

    name: str
    budget: Budget
    evaluation_budget: Budget = FREE
    rounds_before: int = 0
    scaling: str = "range"
    refused_by: str = ""
    told: bool = True  # the number of units was charged before the refusal


PURSES = (
    Purse("just one run", Budget(epsilon=10.0, delta=1e-6)),
    Purse("a run that was stopped in the middle", Budget(epsilon=10.0, delta=1e-6), FREE, 7, refused_by="original"),
    Purse("a run that was stopped at once", Budget(epsilon=10.0, delta=1e-6), FREE, 1),
    Purse("room for two runs", Budget(epsilon=25.0, delta=1e-6), FREE, 12),
    Purse("statistics, too", Budget(epsilon=14.0, delta=1e-6), FREE, 2, "federated"),
    Purse("statistics that are too much", Budget(epsilon=10.0, delta=1e-6), FREE, 5, "federated", "original"),
    Purse("less than the statistics alone", Budget(epsilon=0.5, delta=1e-6), FREE, 0, "federated", "original", False),
)


@pytest.mark.parametrize("purse", PURSES, ids=lambda purse: purse.name)
def test_a_run_is_refused_when_it_is_described_or_goes_to_its_end(purse: Purse, tmp_path: Path) -> None:
    """Nothing but the number of units is charged for a run that the blocks do not hold."""
    task = make_task(8.0, rounds=12, scaling=purse.scaling)
    site = Site(task, purse.budget, purse.evaluation_budget, noise=SystemNoise(), folder=tmp_path)

    def begin(run_id: str) -> Answer:
        answer = site.describe(run_id=run_id)
        if answer.WhichOneof("result") == "data_description" and purse.scaling == "federated":
            assert site.ask(collect_moments=CollectMoments(), run_id=run_id)[0].WhichOneof("result") == "moments"
        return answer

    if purse.rounds_before:
        begin("first")
        for number in range(1, purse.rounds_before + 1):
            assert site.train(number, run_id="first")[0].WhichOneof("result") == "local_update"
    answer = begin("nightly")
    if purse.refused_by:
        code, _ = refused(answer)
        assert code == "FL-PRIV-002"
        assert len(site.ledger.charges("original", "nightly")) == purse.told
        spent = site.ledger.head()
        assert refused(site.describe(run_id="nightly"))[0] == code
        assert site.ledger.head() == spent  # asked again it is not even charged for the number
        return
    for number in range(1, task.rounds.count + 1):
        if number == 5:
            site.restart()
        update = site.train(number, evaluate=number % 4 == 0, run_id="nightly")[0]
        assert update.WhichOneof("result") == "local_update", update
        assert update.local_update.evaluation.present is (number % 4 == 0)
    assert 0 < site.ledger.spend("original").epsilon <= purse.budget.epsilon


def test_a_refused_run_says_what_it_needs_and_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    site = Site(make_task(8.0, rounds=12), Budget(epsilon=10.0, delta=1e-6))
    site.describe(run_id="first")
    for number in range(1, 8):
        site.train(number, run_id="first")
    left = 10.0 - site.ledger.spend("original").epsilon
    assert refused(site.describe(run_id="nightly"))[0] == "FL-PRIV-002"
    told = re.search(
        r"block 'original' does not hold run nightly .* need epsilon ([\d.]+) .* ([\d.]+) of 10 for", caplog.text
    )
    assert told is not None, caplog.text
    assert left - 0.5 < float(told[2]) < left < float(told[1])  # the number of units is paid for


def test_delta_not_below_one_over_the_units_is_refused() -> None:
    site = Site(make_task(2.0, delta=0.01), budget=Budget(epsilon=6.0))
    assert refused(site.describe()) == ("FL-PRIV-001", {"parameter": "delta"})


def test_a_budget_that_was_changed_is_refused_by_its_own_name(tmp_path: Path) -> None:
    site = Site(make_task(2.0), budget=Budget(epsilon=6.0), folder=tmp_path)
    site.describe()
    site.budget = Budget(epsilon=100.0)
    site.restart()
    assert refused(site.describe(run_id="run-2"))[0] == "FL-PRIV-004"


def test_an_exact_run_on_a_budget_is_refused() -> None:
    site = Site(make_task(), budget=Budget(epsilon=6.0))
    assert refused(site.describe())[0] == "FL-PRIV-002"


# --- outbox and restarts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [math.inf, 2.0], ids=["exact", "private"])
def test_a_repeated_question_gets_the_same_result_under_its_own_instruction_and_no_second_charge(
    tmp_path: Path, epsilon: float
) -> None:
    budget = FREE if math.isinf(epsilon) else Budget(epsilon=6.0)
    site = Site(make_task(epsilon), budget=budget, noise=SystemNoise(), folder=tmp_path)
    site.describe()
    first, reply = site.train(1)
    head = site.ledger.head()
    again = [site.train(1), site.train(1, expires_unix=NOW + 60), site.train(1, attempt=2)]
    site.restart()
    again.append(site.train(1, attempt=3))
    for answer, repeated in again:
        assert answer.local_update == first.local_update
        assert answer.arrays_digest == first.arrays_digest == digest(repeated.arrays)
        assert list(repeated.arrays) == list(reply.arrays)
        for name, array in reply.arrays.items():
            np.testing.assert_array_equal(repeated.arrays[name], array)
    assert [answer.attempt for answer, _ in again] == [1, 1, 2, 3]
    assert again[0][0] == first  # the same instruction to the bit
    assert len({answer.instruction_digest for answer, _ in again}) == 4
    assert site.ledger.head() == head


def test_other_arrays_are_another_question(plain: Site) -> None:
    moved = {name: array + np.float32(1) for name, array in arrays_of(plain.task).items()}
    first, _ = plain.train(1)
    second, _ = plain.ask(moved, round=1, train_locally=TrainLocally(rounds_planned=4))
    assert first.arrays_digest != second.arrays_digest


def test_a_run_goes_on_after_a_restart_without_a_description(tmp_path: Path) -> None:
    site = Site(make_task(2.0), budget=Budget(epsilon=6.0), folder=tmp_path)
    site.describe()
    site.train(1)
    site.restart()
    answer = site.train(2)[0]
    assert answer.local_update.steps == 5
    assert answer.local_update.run_epsilon <= 2.0


def test_a_lower_attempt_is_refused_after_a_restart_too(tmp_path: Path) -> None:
    site = Site(make_task(), folder=tmp_path)
    site.describe(attempt=3)
    site.restart()
    assert refused(site.train(1, attempt=2)[0]) == ("FL-TRUST-001", {"reason": "attempt", "attempt": "3"})


def test_refusals_are_not_kept(plain: Site) -> None:
    plain.now = NOW + 100
    assert refused(plain.train(1, expires_unix=NOW)[0])[0] == "FL-TRUST-001"
    plain.now = NOW
    assert plain.train(1, expires_unix=NOW)[0].WhichOneof("result") == "local_update"


def test_old_answers_are_dropped_and_their_replay_refused() -> None:
    site = Site(make_task())
    site.outbox = Outbox(":memory:", keep_answers=2)
    site.daemon._outbox = site.outbox
    site.describe()
    for number in range(1, 5):
        site.train(number)
    assert refused(site.train(1)[0]) == ("FL-TRUST-001", {"reason": "replayed"})
    assert site.train(4)[0].WhichOneof("result") == "local_update"


def test_the_outbox_is_bounded_in_bytes_too() -> None:
    outbox = Outbox(":memory:", keep_bytes=5000)
    for at in range(10):
        outbox.store(bytes([at]), KeptResult(b"x" * 1000, {"a": np.zeros(100)}))
    kept = [at for at in range(10) if not _is_replay(outbox, bytes([at]))]
    assert kept[-1] == 9
    assert 1 <= len(kept) <= 3


def _is_replay(outbox: Outbox, key: bytes) -> bool:
    try:
        return outbox.find(key) is None
    except EnvelopeRefused:
        return True


@pytest.mark.slow
def test_a_round_that_loses_its_device_is_repeated_and_charged_once(private: Site) -> None:
    """The process of the device ends before it trains; the CPU takes over with the same sampling and noise."""
    budget, pool = (
        Budget(epsilon=6.0, delta=1e-5),
        DevicePool(lambda: Choice(("cuda:0",), cpu_after=True, why="a test"), command=(sys.executable, "-c", "")),
    )
    site = Site(private.task, budget=budget, evaluation_budget=budget, devices=pool)
    site.describe()
    before = len(site.ledger.charges("original"))
    answer, reply = site.train(1)
    assert pool.left() == ()
    assert answer.local_update.steps == 5
    assert len(site.ledger.charges("original")) == before + 1
    assert site.daemon.end(60)
    for name, array in private.train(1)[1].arrays.items():
        np.testing.assert_array_equal(array, reply.arrays[name])


def test_a_device_that_is_not_there_is_refused_before_anything_is_charged(private: Site) -> None:
    def lacking() -> Choice:
        raise SettingsInvalid("site.toml: compute.devices names cuda:0, and torch was built without CUDA.")

    site = Site(private.task, budget=private.budget, evaluation_budget=private.budget, devices=DevicePool(lacking))
    site.describe()
    before = len(site.ledger.charges("original"))
    assert refused(site.train(1)[0]) == ("FL-SET-001", {})
    assert len(site.ledger.charges("original")) == before


def test_a_round_that_broke_stays_charged_and_is_charged_again_when_it_is_repeated(
    private: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise MemoryError

    before = len(private.ledger.charges("original"))
    with monkeypatch.context() as patch:
        patch.setattr(LocalTrainer, "train_privately", breaks)
        assert refused(private.train(1)[0]) == ("FL-ANY-000", {})
    assert len(private.ledger.charges("original")) == before + 1
    assert private.train(1)[0].local_update.steps == 5
    assert len(private.ledger.charges("original")) == before + 2
    for number in (2, 3):
        assert private.train(number)[0].WhichOneof("result") == "local_update"
    assert refused(private.train(4)[0])[0] == "FL-PRIV-002"


# --- attacks -------------------------------------------------------------------------------------------------------


def _flip(envelope: bytes, where: str) -> bytes:
    parsed = Envelope.FromString(envelope)
    content = bytearray(getattr(parsed, where))
    content[len(content) // 2] ^= 1
    setattr(parsed, where, bytes(content))
    return parsed.SerializeToString()


def _train(talk: Site, arrays: Arrays, **parts: Parts) -> Instruction:
    return talk.instruction(arrays, round=1, train_locally=TrainLocally(rounds_planned=4), **parts)


def _renamed_key(site: Site, arrays: Arrays) -> bytes:
    parsed = Envelope.FromString(seal(_train(site, arrays), STRANGER))
    parsed.key_id = KEY.verifying.key_id
    return parsed.SerializeToString()


ENVELOPES: dict[str, tuple[Callable[[Site, Arrays], bytes], str]] = {
    "another key": (lambda s, a: seal(_train(s, a), STRANGER), "signature"),
    "another key under the pinned key's name": (_renamed_key, "signature"),
    "a byte of the instruction flipped": (lambda s, a: _flip(seal(_train(s, a), KEY), "instruction"), "signature"),
    "a byte of the signature flipped": (lambda s, a: _flip(seal(_train(s, a), KEY), "signature"), "signature"),
    "another site's": (lambda s, a: seal(_train(s, a, site="south"), KEY), "site"),
    "expired": (lambda s, a: seal(_train(s, a, expires_unix=NOW - 1), KEY), "expired"),
    "without an expiry": (lambda s, a: seal(_train(s, a, expires_unix=0), KEY), "expiry"),
    "expired before 1970": (lambda s, a: seal(_train(s, a, expires_unix=-1), KEY), "expiry"),
    "a lower attempt": (lambda s, a: seal(_train(s, a, attempt=0), KEY), "attempt"),
    "arrays altered on the way": (lambda s, a: seal(_train(s, a, arrays_digest=b"0" * 32), KEY), "altered"),
    "another task under a known run": (lambda s, a: seal(_train(s, a, task_digest=b"0" * 32), KEY), "task"),
    "a run never described": (lambda s, a: seal(_train(s, a, run_id="run-7"), KEY), "undescribed"),
    "no work": (lambda s, a: seal(s.instruction(a), KEY), "work"),
    "not an envelope": (lambda s, a: b"\xff" * 40, "format"),
    "an empty envelope": (lambda s, a: b"", "signature"),
}


@pytest.mark.parametrize(("make", "reason"), ENVELOPES.values(), ids=ENVELOPES.keys())
def test_attacks_on_envelopes(plain: Site, make: Callable[[Site, Arrays], bytes], reason: str) -> None:
    arrays = arrays_of(plain.task)
    head = plain.ledger.head()
    reply = plain.daemon.answer(Question(make(plain, arrays), arrays))
    code, fields = refused(opened(reply))
    assert (code, fields["reason"]) == ("FL-TRUST-001", reason)
    assert reply.arrays == {}
    assert plain.ledger.head() == head


BAD_WORK: dict[str, tuple[dict[str, Parts], str]] = {
    "a document that is no task": ({"run_id": "x", "describe_data": DescribeData(task_document=b"{}")}, "FL-TASK-002"),
    "Newton on another task": ({"sum_derivatives": SumDerivatives()}, "FL-USE-001"),
    "no artifact": ({"evaluate_artifact": EvaluateArtifact(description=b"{}")}, "FL-EDGE-002"),
    "no arrays to train from": ({"round": 1, "train_locally": TrainLocally(rounds_planned=4)}, "FL-UPD-001"),
}


@pytest.mark.parametrize(("parts", "code"), BAD_WORK.values(), ids=BAD_WORK.keys())
def test_signed_nonsense_is_refused(plain: Site, parts: dict[str, Parts], code: str) -> None:
    assert refused(plain.ask(**parts)[0])[0] == code


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200), sign=st.booleans(), numbers=st.lists(st.floats(width=32), max_size=4))
def test_the_endpoint_never_raises(plain: Site, content: bytes, sign: bool, numbers: list[float]) -> None:
    arrays = {"a": np.array(numbers, np.float32)}
    envelope = content
    if sign:
        envelope = Envelope(
            instruction=content, signature=KEY.sign(content), key_id=KEY.verifying.key_id
        ).SerializeToString()
    answer = opened(plain.daemon.answer(Question(envelope, arrays)))
    assert answer.WhichOneof("result") == "refusal"
    assert answer.site == "north"


def test_an_unexpected_error_leaves_as_a_code_alone(plain: Site, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("ERROR"):
        answer = opened(plain.daemon.answer(Question(seal(_train(plain, {}), KEY), None)))  # type: ignore[arg-type]
    assert refused(answer) == ("FL-ANY-000", {})
    assert "unexpected error" in caplog.text


# --- gate and policy -----------------------------------------------------------------------------------------------


def test_data_that_the_gate_refuses_are_not_trained_on() -> None:
    site = Site(make_task(), rows=6)
    said = site.describe().data_description
    assert (said.admitted, list(said.reasons)) == (False, ["minimum-rows"])
    assert said.rows == 0
    assert refused(site.train(1)[0]) == ("FL-DATA-006", {"rule": "minimum-rows"})


POLICIES: dict[str, tuple[SitePolicy, float, str]] = {
    "paused": (SitePolicy(paused=True), math.inf, "paused"),
    "another task": (SitePolicy(tasks=("elsewhere",)), math.inf, "tasks"),
    "no run without privacy": (SitePolicy(maximum_epsilon=3.0), math.inf, "maximum-epsilon"),
    "too much epsilon": (SitePolicy(maximum_epsilon=3.0), 3.5, "maximum-epsilon"),
}


@pytest.mark.parametrize(("policy", "epsilon", "rule"), POLICIES.values(), ids=POLICIES.keys())
def test_policy_refuses(policy: SitePolicy, epsilon: float, rule: str) -> None:
    assert refused(Site(make_task(epsilon), policy=policy).describe()) == ("FL-TRUST-006", {"rule": rule})


def test_a_sites_own_gate_is_stricter() -> None:
    site = Site(make_task(), policy=SitePolicy(data_gate=DataGate(minimum_rows=201)))
    assert list(site.describe().data_description.reasons) == ["minimum-rows"]


# --- feedback ------------------------------------------------------------------------------------------------------


def test_feedback_waits_for_the_next_run_and_has_its_own_budget(private: Site) -> None:
    added = private.daemon.add_feedback(some_rows(40, "n", 3), 0.25)
    assert (added.training_block, added.evaluation_block) == ("feedback-1", "feedback-evaluation-1")
    assert private.ledger.spend("feedback-1").epsilon == 0
    private.train(1)
    assert private.ledger.charges("feedback-1") == ()
    private.describe(run_id="run-2")
    private.train(1, run_id="run-2")
    assert len(private.ledger.charges("feedback-1", "run-2")) == 2
