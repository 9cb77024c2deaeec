"""What comes back from devices is kept once, counted for the version that it belongs to, and paid for before it is told."""

from __future__ import annotations

import math
import stat
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedloop_clients.data.site_data import EVALUATION, ORIGINAL, SiteData
from fedloop_clients.evaluation import newest_rows
from fedloop_clients.feedback.charging import (
    charge_late_verdicts,
    charge_verdicts,
    find_payers,
    released_label_count,
)
from fedloop_clients.feedback.store import FeedbackStore
from fedloop_clients.feedback.watch import KnownUnits, SiteWatch, reference_of
from fedloop_clients.monitoring.monitor import DriftKind, ErrorCount, MonitorPlan, Reference
from fedloop_clients.monitoring.verdict import VerdictPlan
from fedloop_clients.policy import Budget, SiteConfig
from fedloop_clients.privacy.affording import affords_run
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core.dataset import Dataset
from fedloop_core.encoding import NUMERIC
from fedloop_core.errors import BudgetExhausted, FeedbackRefused, SketchRefused, StorageError
from fedloop_core.noise import SeededNoise
from fedloop_core.privacy.charges import NonPrivateCharge, PureCharge
from fedloop_core.scaling import Scaler
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.sketch import Profile, Sketch
from fedloop_core.task.document import FederatedAveraging, LogisticModel, Privacy, Rounds, Task
from fedloop_edge.hub import ReceivedExample, ReceivedSketch, ReceivedStatus
from fedloop_proto.fleet.v1 import fleet_pb2

TASK = Task(
    format=1,
    name="wards",
    features=tuple(NumericFeature(kind="numeric", name=name, range=(-4.0, 4.0)) for name in ("a", "b")),
    label=ClassLabel(kind="classes", name="outcome", classes=("no", "yes")),
    model=LogisticModel(kind="logistic"),
    training=FederatedAveraging(algorithm="fedavg", local_steps=5, batch_size=32),
    privacy=Privacy(epsilon=8.0, delta=1e-4),
    rounds=Rounds(count=4),
)
PATIENTS = TASK.model_copy(update={"privacy": Privacy(epsilon=8.0, delta=1e-4, unit_column="patient")})
SCHEMA = TASK.feature_schema
PROFILE = Profile.for_schema(SCHEMA, Scaler.from_ranges(SCHEMA))
WINDOW = 40


def some_rows(count: int, prefix: str = "u", seed: int = 0, shift: float = 0.0) -> Dataset:
    values = np.random.default_rng(seed).normal(shift, 1, (count, 2)).clip(-4, 4).astype(np.float32)
    labels = (values.sum(axis=1) > 0).astype(np.int64)
    return Dataset({NUMERIC: values}, labels, tuple(f"{prefix}{at}" for at in range(count)))


def example(sequence: int, *, queue: str = "q1", version: int = 1, predicted: str = "no", label: str = "yes") -> Any:
    return ReceivedExample(
        queue_id=queue,
        sequence=sequence,
        task="wards",
        version=version,
        prediction_id=f"{queue}-{sequence}",
        inputs={NUMERIC: np.array([[sequence / 10, -1.0]], dtype=np.float32)},
        predicted=predicted,
        label=label,
        unit=f"patient-{sequence}",
        observed_unix=1_800_000_000,
    )


class Sums:
    """A runtime that says "yes" where the features add up to more than 0, for lack of a device."""

    description = SimpleNamespace(features=SCHEMA)

    def run(self, inputs: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
        total = inputs[NUMERIC].sum(axis=1)
        return np.stack([np.zeros_like(total), total], axis=1).astype(np.float32)


RUNTIME: Any = Sums()


# The store.


def test_an_example_is_kept_once_and_waits_until_it_is_admitted(tmp_path: Path) -> None:
    path = tmp_path / "site" / "feedback.db"
    store = FeedbackStore(path, SCHEMA)
    assert [store.add("d1", example(n)) for n in (1, 2, 1)] == [True, True, False]
    assert store.add("d1", example(1, queue="q2"))  # another queue numbers its own
    assert not store.add("d1", replace(example(2), label="no"))  # what came first stays
    store.close()
    store = FeedbackStore(path, SCHEMA)
    waiting = store.waiting()
    assert store.count_waiting() == 3
    assert waiting.rows.units == ("patient-1", "patient-2", "patient-1")
    assert waiting.rows.labels.tolist() == [1, 1, 1]
    assert waiting.rows.inputs[NUMERIC][:, 0].tolist() == pytest.approx([0.1, 0.2, 0.1])
    store.add("d1", example(3))
    store.mark_admitted(waiting)  # the one that came in between goes on waiting
    store.close()
    store = FeedbackStore(path, SCHEMA)
    assert store.waiting().rows.units == ("patient-3",)
    assert not store.add("d1", example(1))  # admitted, and not taken again
    assert store.count_waiting() == 1
    store.mark_admitted(store.waiting())
    assert len(store.waiting().rows) == 0
    store.close()


def test_what_is_too_old_is_erased_and_not_taken_again(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path / "feedback.db", SCHEMA)
    old, new = replace(example(1), observed_unix=1_000), replace(example(2), observed_unix=2_000)
    for one in (old, new):
        store.add("d1", one)
    assert store.forget(1_500) == 1
    assert store.waiting().rows.units == ("patient-2",)
    assert not store.add("d1", old)
    assert store.forget(1_500) == 0
    store.mark_admitted(store.waiting())
    assert store.forget(2_500) == 0  # admitted: nothing is lost, and the copy here is gone
    store.close()
    assert b"patient-2" not in (tmp_path / "feedback.db").read_bytes()


def test_the_store_is_its_owners_alone_and_says_when_it_cannot_keep(tmp_path: Path) -> None:
    path = tmp_path / "feedback.db"
    store = FeedbackStore(path, SCHEMA)
    store.add("d1", example(1))
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}
    store.close()
    with pytest.raises(StorageError, match=r"feedback\.db"):
        store.add("d1", example(2))


def test_hubs_may_deliver_from_several_threads(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path / "feedback.db", SCHEMA)
    kept: list[bool] = []
    threads = [
        threading.Thread(target=lambda: kept.extend(store.add("d1", example(n)) for n in range(30))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sum(kept), len(kept), store.count_waiting()) == (30, 120, 30)
    store.close()


# The watch.


class Watched:
    """A watch over version 1 with exact verdicts, unless told otherwise, and a reference of 200 rows."""

    def __init__(self, epsilon: float = math.inf) -> None:
        self.store = FeedbackStore(":memory:", SCHEMA)
        self.reports: list[tuple[str, ReceivedStatus]] = []
        self.watch = SiteWatch(
            TASK, self.store, SeededNoise(1), lambda device, report: self.reports.append((device, report))
        )
        self.epsilon = epsilon
        self._sequence = 0

    def begin(self, version: int, units: KnownUnits | None = None) -> None:
        rows = some_rows(200)
        plan = MonitorPlan.for_task(TASK, sites=1, window_rows=WINDOW, reference_rows=len(rows))
        reference = reference_of(PROFILE, RUNTIME, rows, rows.take(range(100)))
        self.watch.begin(version, reference, plan, VerdictPlan.for_profile(plan, PROFILE, self.epsilon), units)

    def send(self, rows: int, *, version: int = 1, task: str = "wards", shift: float = 0.0) -> None:
        self.deliver(self.message(rows, version=version, task=task, shift=shift))

    def message(self, rows: int, *, version: int = 1, task: str = "wards", shift: float = 0.0) -> Any:
        self._sequence += 1
        seen = some_rows(rows, seed=100 + self._sequence, shift=shift)
        logits = RUNTIME.run(seen.inputs)
        sketch = Sketch.empty(PROFILE).add(seen.inputs, logits.argmax(axis=1), np.full(rows, 0.9))
        return sketch.to_message(task=task, version=version, window=self._sequence)

    def deliver(self, message: Any) -> None:
        self.watch.sketch("d1", ReceivedSketch(queue_id="q1", sequence=self._sequence, message=message))


def test_a_window_closes_with_enough_rows_and_the_next_is_empty() -> None:
    watched = Watched()
    assert watched.watch.close_window(least_rows=1) is None  # nothing is watched yet
    watched.begin(1)
    watched.send(25)
    assert watched.watch.close_window(least_rows=WINDOW) is None
    watched.send(25)
    window = watched.watch.close_window(least_rows=WINDOW)
    assert window is not None
    assert (window.finding.rows, window.finding.window, window.verdict.window) == (50, 1, 1)
    assert not window.verdict.drifted
    assert watched.watch.close_window(least_rows=1) is None
    watched.send(60, shift=3.0)
    window = watched.watch.close_window(least_rows=WINDOW)
    assert window is not None
    assert (window.finding.window, window.verdict.drifted, window.verdict.kind) == (2, True, DriftKind.COVARIATE)


def test_a_sketch_of_another_version_or_task_is_counted_and_dropped() -> None:
    watched = Watched()
    watched.send(30)
    assert watched.watch.stale_sketches == 1  # nothing is watched yet
    watched.begin(2)
    watched.send(30, version=1, shift=3.0)
    watched.send(30, version=3, shift=3.0)
    watched.send(30, version=2, task="others", shift=3.0)
    assert watched.watch.stale_sketches == 4
    assert watched.watch.close_window(least_rows=1) is None
    watched.send(30, version=2)
    window = watched.watch.close_window(least_rows=1)
    assert window is not None
    assert window.finding.rows == 30


def other_profile(message: Any) -> None:
    message.profile_digest = bytes(32)


def a_count_too_many(message: Any) -> None:
    message.columns[0].counts[0] += 1


def a_column_too_few(message: Any) -> None:
    del message.columns[-1]


def absurd_rows(message: Any) -> None:
    message.rows = 2**40


@pytest.mark.parametrize(
    ("change", "reason"),
    [(other_profile, "profile"), (a_count_too_many, "sum"), (a_column_too_few, "columns"), (absurd_rows, "rows")],
)
def test_a_sketch_that_no_rows_can_give_is_refused_and_changes_nothing(change: Any, reason: str) -> None:
    watched = Watched()
    watched.begin(1)
    watched.send(30)
    message = watched.message(30)
    change(message)
    with pytest.raises(SketchRefused) as caught:
        watched.deliver(message)
    assert caught.value.fields["reason"] == reason
    window = watched.watch.close_window(least_rows=1)
    assert window is not None
    assert window.finding.rows == 30


def test_labels_count_once_and_for_the_version_that_predicted() -> None:
    watched = Watched()
    watched.begin(2)
    for sequence in range(40):
        for _ in range(3):  # a device sends again what was not acknowledged
            watched.watch.labelled("d1", example(sequence, version=1, predicted="no", label="yes"))
    watched.send(50, version=2)
    window = watched.watch.close_window(least_rows=WINDOW)
    assert window is not None
    assert not window.verdict.drifted  # all of version 1's answers were wrong, and it is not watched
    for sequence in range(40, 80):
        for _ in range(3):
            watched.watch.labelled("d1", example(sequence, version=2, predicted="no", label="yes"))
    watched.send(50, version=2)
    window = watched.watch.close_window(least_rows=WINDOW)
    assert window is not None
    assert (window.verdict.drifted, window.verdict.kind) == (True, DriftKind.QUALITY)
    assert watched.store.count_waiting() == 80  # every example is kept, whatever its version


def test_a_private_verdict_tells_no_kind_and_repeats_itself() -> None:
    watched = Watched(epsilon=20.0)
    watched.begin(1)
    told = []
    for shift in (0.0, 3.5, 0.0):
        watched.send(WINDOW, shift=shift)
        window = watched.watch.close_window(least_rows=WINDOW)
        assert window is not None
        assert window.threshold > 0
        told.append(window.verdict)
    assert [(verdict.drifted, verdict.kind, verdict.private) for verdict in told] == [
        (False, None, False),  # the noise is seeded here, and says so
        (True, None, False),
        (True, None, False),
    ]


def test_reports_go_to_whoever_steers_the_rollout() -> None:
    watched = Watched()
    report = ReceivedStatus(
        queue_id="q1",
        sequence=1,
        state=fleet_pb2.DEVICE_STATE_SERVING,
        task="wards",
        version=1,
        serving_version=1,
        assignment_counter=1,
        code="",
        detail="",
        runtime="onnxruntime",
        predictions_served=0,
        latency_p50_us=0.0,
    )
    watched.watch.status("d1", report)
    assert watched.reports == [("d1", report)]


def test_a_reference_needs_rows_and_takes_its_errors_from_evaluation_rows() -> None:
    rows = some_rows(100)
    wrong = Dataset(rows.inputs, 1 - rows.labels, rows.units).take(range(30))
    reference: Reference = reference_of(PROFILE, RUNTIME, rows, wrong)
    assert (reference.sketch.rows, reference.quality) == (100, ErrorCount(rows=30, wrong=30))
    assert reference_of(PROFILE, RUNTIME, rows, rows.take([])).quality == ErrorCount()
    with pytest.raises(SketchRefused):
        reference_of(PROFILE, RUNTIME, rows.take([]), rows)


# Paying.


class Purse:
    """A site's rows, ledger and config with one budget for all blocks."""

    def __init__(self, budget: float) -> None:
        self.data = SiteData(some_rows(60), some_rows(30, "e", 1), secret=b"sixteen bytes at least")
        self.ledger = Ledger(":memory:", lambda: 0)
        same = Budget(epsilon=budget, delta=1e-4)
        self.config = SiteConfig(site="north", training_budget=same, evaluation_budget=same)
        for block in (ORIGINAL, EVALUATION):
            self.ledger.open_block(block, budget, 1e-4)

    def pay(self, charge: PureCharge | NonPrivateCharge, version: int = 1, task: Task = TASK) -> tuple[str, ...]:
        payers = find_payers(self.ledger, self.data, charge, task)
        charge_verdicts(self.ledger, self.data, self.config, charge, payers, task="wards", version=version)
        return payers.left_out

    def count(self, units: Sequence[str], epsilon: float, seed: int = 1, task: Task = TASK) -> int:
        noise = SeededNoise(seed)
        return released_label_count(self.ledger, self.data, self.config, units, epsilon, noise, task=task, version=1)

    def spend(self, *blocks: str) -> None:
        self.ledger.reserve(PureCharge(epsilon=9.0), blocks, "run-1", "an earlier run")

    def charges(self, block: str) -> tuple[Any, ...]:
        return self.ledger.charges(block)


FIRST = (ORIGINAL, EVALUATION, "feedback-1", "feedback-evaluation-1")


def test_verdicts_are_charged_to_the_reference_and_to_the_blocks_that_their_rows_will_join() -> None:
    purse = Purse(20.0)
    charge = PureCharge(epsilon=2.0)
    purse.pay(charge)
    assert [purse.charges(block) for block in FIRST] == [(charge,)] * 4
    added = purse.data.add_feedback(some_rows(40, "new", 2), 0.25, SeededNoise(1))
    assert (added.training_block, added.evaluation_block) == ("feedback-1", "feedback-evaluation-1")
    purse.pay(charge, version=2)  # rows that version 1 was watched on pay for the next version's reference too
    paid = [len(purse.charges(block)) for block in (*FIRST, "feedback-2", "feedback-evaluation-2")]
    assert paid == [1, 1, 2, 2, 1, 1]  # of the original rows none is looked at: no row comes a second time
    purse.ledger.verify()


def test_where_patients_return_every_block_pays_for_verdicts() -> None:
    purse = Purse(20.0)
    charge = PureCharge(epsilon=2.0)
    purse.pay(charge, task=PATIENTS)
    purse.data.add_feedback(some_rows(40, "new", 2), 0.25, SeededNoise(1))
    purse.pay(charge, version=2, task=PATIENTS)
    assert [len(purse.charges(block)) for block in FIRST] == [2] * 4


@pytest.mark.parametrize(
    ("spent", "task", "reference", "left_out"),
    [
        ((ORIGINAL,), TASK, ("feedback-1", "feedback-evaluation-1"), ()),
        ((ORIGINAL,), PATIENTS, ("feedback-1", "feedback-evaluation-1"), (ORIGINAL,)),
        (("feedback-evaluation-1",), TASK, ("feedback-1",), ()),
        (("feedback-evaluation-1",), PATIENTS, ("feedback-1",), ("feedback-evaluation-1",)),
        (("feedback-1",), TASK, (ORIGINAL, EVALUATION), ()),
        (("feedback-1", EVALUATION), PATIENTS, (ORIGINAL,), (EVALUATION, "feedback-1")),
    ],
    ids=["old rows", "old patients", "new evaluation", "patients of it", "new rows", "new patients and old evaluation"],
)
def test_blocks_that_cannot_pay_are_left_out_of_verdicts(
    spent: tuple[str, ...], task: Task, reference: tuple[str, ...], left_out: tuple[str, ...]
) -> None:
    purse = Purse(20.0)
    for block in FIRST[2:]:
        purse.ledger.open_block(block, 20.0, 1e-4)
    purse.data.add_feedback(some_rows(40, "new", 2), 0.25, SeededNoise(1))
    purse.spend(*spent)
    charge = PureCharge(epsilon=9.0)
    payers = find_payers(purse.ledger, purse.data, charge, task)
    assert payers.reference.blocks == reference
    assert set(payers.left_out) == set(left_out)
    units = set(payers.reference.training.units + payers.reference.evaluation.units)
    assert {purse.data.home_block(unit) for unit in units} == set(reference)
    purse.pay(charge, task=task)
    assert all(len(purse.charges(block)) == 1 for block in spent)  # nothing is charged to them
    assert all(charge in purse.charges(block) for block in (*reference, "feedback-2", "feedback-evaluation-2"))


def test_a_site_whose_training_rows_are_all_spent_says_so() -> None:
    purse = Purse(20.0)
    purse.spend(ORIGINAL)
    for task in (TASK, PATIENTS):
        with pytest.raises(BudgetExhausted, match="no block of training rows can pay for verdicts: block 'original'"):
            purse.pay(PureCharge(epsilon=9.0), task=task)
    assert purse.charges(EVALUATION) == ()


def test_a_window_without_patients_who_cannot_pay_is_the_same_whether_they_come_or_not() -> None:
    """Sketches count rows of anybody: they are passed over, and windows are made of rows whose patient is known."""
    told = []
    for also in (False, True):
        watched = Watched(epsilon=20.0)
        watched.begin(1, KnownUnits(lambda unit: not unit.startswith("spent"), most=1))
        if also:
            watched.send(80, shift=3.5)
            for at in range(60):
                spent = replace(
                    example(1000 + at), unit=f"spent-{at}", inputs={NUMERIC: np.full((1, 2), 3.9, np.float32)}
                )
                watched.watch.labelled("d1", spent)
            watched.watch.labelled("d1", replace(example(2000), unit=""))  # may be anybody's
        for at in range(WINDOW):
            for again in range(2):  # of each only one row
                watched.watch.labelled("d1", replace(example(2 * at + again), unit=f"patient-{at}"))
        window = watched.watch.close_window(least_rows=1)
        assert window is not None
        told.append((window.finding, window.verdict))
    assert told[0] == told[1]
    assert told[0][0].rows == WINDOW
    assert watched.watch.passed_over == 1
    assert watched.store.count_waiting() == 2 * WINDOW + 61  # all of them are kept


def test_rows_of_known_patients_are_counted_as_a_device_counts_them() -> None:
    rows = some_rows(WINDOW, seed=7)
    predicted = RUNTIME.run(rows.inputs).argmax(axis=1)
    watched = Watched()
    watched.begin(1, KnownUnits(lambda _unit: True, most=1))
    for at in range(WINDOW):
        name = ("no", "yes")[predicted[at]]
        one = {NUMERIC: rows.inputs[NUMERIC][at : at + 1]}
        watched.watch.labelled("d1", replace(example(at, predicted=name, label=name), inputs=one))
    window = watched.watch.close_window(least_rows=WINDOW)
    by_device = Watched()
    by_device.begin(1)
    sketch = Sketch.empty(PROFILE).add(rows.inputs, predicted, np.full(WINDOW, 0.9))
    by_device.deliver(sketch.to_message(task="wards", version=1, window=1))
    expected = by_device.watch.close_window(least_rows=WINDOW)
    assert window is not None
    assert expected is not None
    assert window.finding.distance == expected.finding.distance > 0
    with pytest.raises(FeedbackRefused):
        watched.watch.labelled("d1", replace(example(999), predicted="perhaps"))


def test_exact_verdicts_need_blocks_without_a_budget() -> None:
    with pytest.raises(BudgetExhausted):
        Purse(20.0).pay(NonPrivateCharge())
    free = Purse(math.inf)
    free.pay(NonPrivateCharge())
    assert free.ledger.spend(ORIGINAL).unlimited


@pytest.mark.parametrize(
    ("budget", "spent", "affordable"),
    [
        (20.0, {}, True),
        (4.0, {}, False),
        (20.0, {ORIGINAL: 13.0}, False),
        (20.0, {EVALUATION: 13.0}, False),  # a version could be trained, and nobody could judge it
        (20.0, {ORIGINAL: 1.0, EVALUATION: 1.0}, True),
    ],
    ids=["fresh", "too small", "training rows spent", "evaluation rows spent", "a little spent"],
)
def test_a_run_is_affordable_when_every_block_holds_it(
    budget: float, spent: dict[str, float], affordable: bool
) -> None:
    purse = Purse(budget)
    for block, epsilon in spent.items():
        purse.ledger.reserve(PureCharge(epsilon=epsilon), (block,), "run-0", "an earlier run")
    assert affords_run(TASK, purse.data, purse.ledger) is affordable


def test_a_run_without_privacy_needs_blocks_without_a_budget() -> None:
    exact = TASK.model_copy(update={"privacy": Privacy(epsilon=math.inf)})
    for budget, affordable in ((20.0, False), (math.inf, True)):
        purse = Purse(budget)
        assert affords_run(exact, purse.data, purse.ledger) is affordable


def test_the_number_of_labelled_units_is_noised_and_paid_by_the_blocks_that_they_will_join() -> None:
    purse = Purse(20.0)
    units = [f"new-{at // 2}" for at in range(100)]  # two rows of each of fifty units
    told = [purse.count(units, 0.5, seed) for seed in range(8)]
    assert len(set(told)) > 1
    assert all(abs(count - 50) < 40 for count in told)
    assert purse.charges("feedback-1") == purse.charges("feedback-evaluation-1") == (PureCharge(epsilon=0.5),) * 8
    assert purse.charges(ORIGINAL) == ()
    with pytest.raises(BudgetExhausted):
        purse.count(units, 30.0)


@pytest.mark.parametrize(
    "units", [[], ["u3"], ["u3", "e1", "new"], ["", ""]], ids=["nobody", "one", "three", "no name"]
)
def test_who_pays_for_a_number_of_patients_does_not_depend_on_who_came(units: list[str]) -> None:
    """The coordinator is told what is spent: were only the blocks charged that somebody came of, it would learn that."""
    purse = Purse(20.0)
    purse.count(units, 0.5, task=PATIENTS)
    assert [len(purse.charges(block)) for block in FIRST] == [1] * 4


def test_patients_whose_block_cannot_pay_are_not_counted() -> None:
    purse = Purse(20.0)
    purse.spend(ORIGINAL)
    spent, others = [f"u{at}" for at in range(60)], ["e1", "e2", "new", "new"]
    for seed in range(3):
        paid = purse.count([*spent, *others, ""], 8.0, seed, PATIENTS)
        assert paid == Purse(20.0).count(others, 8.0, seed, PATIENTS)
        purse = Purse(20.0)
        purse.spend(ORIGINAL)
    assert purse.charges(ORIGINAL) == (PureCharge(epsilon=9.0),)


def test_the_number_of_labelled_units_is_exact_without_privacy() -> None:
    assert Purse(math.inf).count(["a", "a", "b", "", ""], math.inf) == 4  # an empty unit is one of its own


def test_labels_that_come_late_pay_for_the_verdicts_that_were_told_while_their_rows_were_seen() -> None:
    purse = Purse(40.0)
    charge = PureCharge(epsilon=2.0)
    purse.pay(charge)
    purse.data.add_feedback(some_rows(40, "new", 2), 0.25, SeededNoise(1))
    purse.pay(charge, version=2)
    for _ in range(2):  # a second time costs nothing
        charge_late_verdicts(purse.ledger, purse.data, purse.config, charge, task="wards", versions=(1, 2))
    assert purse.charges("feedback-2") == (charge, charge)  # of version 2 before, of version 1 now
    assert purse.charges("feedback-1") == (charge, charge)


def test_a_sketch_that_is_passed_on_twice_counts_once() -> None:
    store = FeedbackStore(":memory:", SCHEMA)
    watch = SiteWatch(TASK, store, SeededNoise(1), lambda _device, _report: None)
    rows = some_rows(90)
    reference = reference_of(PROFILE, RUNTIME, rows, rows)
    plan = MonitorPlan.for_task(TASK, sites=1, window_rows=WINDOW, reference_rows=90)
    watch.begin(1, reference, plan, VerdictPlan.for_profile(plan, PROFILE, 8.0))
    seen = some_rows(WINDOW - 1, seed=5)
    predicted = np.zeros(len(seen), dtype=np.int64)
    sketch = Sketch.empty(PROFILE).add(seen.inputs, predicted, np.ones(len(seen)))
    received = ReceivedSketch("q1", 1, sketch.to_message(task="wards", version=1, window=1))
    for _ in range(2):
        watch.sketch("d1", received)
    assert watch.close_window(least_rows=WINDOW) is None


def test_of_a_unit_only_its_newest_rows_are_in_a_reference() -> None:
    rows = some_rows(4).concatenate(some_rows(4, seed=1)).concatenate(some_rows(2, seed=2))
    kept = newest_rows(rows, 2)
    assert kept.units == ("u2", "u3", "u0", "u1", "u2", "u3", "u0", "u1")
    assert newest_rows(kept, 2) is kept
