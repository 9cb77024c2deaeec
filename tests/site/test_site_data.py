"""Rows by block, the gate, and the fingerprint."""

from __future__ import annotations

import numpy as np
import pytest

from fedloop_clients.data.fingerprint import fingerprint
from fedloop_clients.data.gate import NoisedCount, check_count, check_rows, stricter
from fedloop_clients.data.site_data import RowChoice, SiteData
from fedloop_core.dataset import Dataset
from fedloop_core.errors import DataError, DataGateFailed, UsageError
from fedloop_core.noise import SeededNoise
from fedloop_core.schema import ClassLabel, FeatureSchema, NumericFeature, RegressionLabel
from fedloop_core.task.document import DataGate

SECRET = b"s" * 32
SCHEMA = FeatureSchema(
    features=(NumericFeature(kind="numeric", name="x", range=(0.0, 1.0)),),
    label=ClassLabel(kind="classes", name="y", classes=("no", "yes")),
)


def some_rows(units: list[str], start: float = 0.0) -> Dataset:
    values = (np.arange(len(units), dtype=np.float32) + start)[:, None]
    return Dataset({"numeric": values}, np.arange(len(units)) % 2, tuple(units))


@pytest.fixture
def data() -> SiteData:
    return SiteData(some_rows([f"t{at}" for at in range(20)]), some_rows([f"e{at}" for at in range(8)]), secret=SECRET)


def test_feedback_of_new_units_becomes_two_blocks(data: SiteData) -> None:
    added = data.add_feedback(some_rows([f"n{at}" for at in range(12)], 100), 0.25, SeededNoise(1))
    assert (added.training_rows, added.evaluation_rows, added.returned_rows) == (9, 3, 0)
    assert data.training_blocks == ("original", "feedback-1")
    assert data.evaluation_blocks() == ("evaluation", "feedback-evaluation-1")
    assert data.evaluation_blocks(RowChoice.FEEDBACK) == ("feedback-evaluation-1",)
    assert len(data.training()) == 29
    assert [len(data.evaluation(choice)) for choice in RowChoice] == [11, 8, 3]


def test_a_unit_that_returns_joins_its_home_block(data: SiteData) -> None:
    added = data.add_feedback(some_rows(["t3", "e2", "t3", "n0", "n0"], 100), 0.5, SeededNoise(1))
    assert added.returned_rows == 3
    assert added.training_rows + added.evaluation_rows == 2  # both rows of n0 on the same side
    assert 0 in {added.training_rows, added.evaluation_rows}
    assert data.training(("original",)).units.count("t3") == 3
    assert data.evaluation(RowChoice.ORIGINAL).units.count("e2") == 2
    data.add_feedback(some_rows(["n0"], 200), 0.5, SeededNoise(2))
    assert data.admissions == 1
    home = added.training_block or added.evaluation_block
    assert home.endswith("-1")


def test_rows_without_unit_are_units_of_their_own(data: SiteData) -> None:
    data.add_feedback(some_rows([""] * 8), 0.25, SeededNoise(1))
    data.add_feedback(some_rows([""] * 4), 0.25, SeededNoise(1))
    assert data.training_blocks == ("original", "feedback-1", "feedback-2")


def test_blocks_partition_the_units(data: SiteData) -> None:
    for seed in range(3):
        data.add_feedback(some_rows([f"n{seed * 5 + at}" for at in range(10)], 50), 0.3, SeededNoise(seed))
    seen = [set(data.training((block,)).units) for block in data.training_blocks]
    seen += [set(data.evaluation().units)]
    assert sum(map(len, seen)) == len(set().union(*seen))


def test_no_feedback_rows_open_nothing(data: SiteData) -> None:
    data.add_feedback(some_rows([]), 0.25, SeededNoise(1))
    assert data.admissions == 0
    assert data.training_blocks == ("original",)
    assert data.evaluation(RowChoice.FEEDBACK).units == ()


def test_a_unit_on_both_sides_is_refused() -> None:
    with pytest.raises(DataError, match="1 evaluation rows belong to units that are trained on"):
        SiteData(some_rows(["a", "b"]), some_rows(["b"]), secret=SECRET)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(UsageError):
        SiteData(some_rows(["a"]), some_rows(["b"]), secret=b"short")


def test_the_fingerprint_knows_rows_but_not_their_order() -> None:
    rows = some_rows([f"u{at}" for at in range(10)])
    known = fingerprint(rows, SECRET)
    assert fingerprint(rows.take(np.random.default_rng(0).permutation(10)), SECRET) == known
    assert fingerprint(rows, b"t" * 32) != known
    assert fingerprint(rows.take(range(9)), SECRET) != known
    assert fingerprint(rows.concatenate(rows.take([0])), SECRET) != known


GATES = {
    "all well": (20, 0, DataGate(), ()),
    "too few rows": (9, 0, DataGate(), ("minimum-rows",)),
    "too many rows": (20, 0, DataGate(maximum_rows=19), ("maximum-rows",)),
    "too many skipped": (20, 0.1, DataGate(), ("maximum-skipped",)),
    "one class": (1, 0, DataGate(minimum_rows=1), ("all-classes",)),
    "one class, allowed": (1, 0, DataGate(minimum_rows=1, all_classes=False), ()),
    "no rows at all": (0, 0, DataGate(), ("minimum-rows", "all-classes")),
}


@pytest.mark.parametrize(("count", "skipped", "gate", "failed"), GATES.values(), ids=GATES.keys())
def test_the_gate(count: int, skipped: float, gate: DataGate, failed: tuple[str, ...]) -> None:
    verdict = check_rows(some_rows([f"u{at}" for at in range(count)]), skipped, SCHEMA, gate)
    assert verdict.failed == failed
    assert verdict.admitted == (not failed)


NOISED = {
    "all well": (NoisedCount(20, 1), DataGate(), ()),
    "too few units": (NoisedCount(9, 0), DataGate(), ("minimum-rows",)),
    "less than none": (NoisedCount(-40, None), DataGate(minimum_rows=1), ("minimum-rows",)),
    "too many units": (NoisedCount(20, 0), DataGate(maximum_rows=19), ("maximum-rows",)),
    "skipped, as noise may be": (NoisedCount(20, 56), DataGate(maximum_skipped=0.0), ()),
    "skipped, more than noise": (NoisedCount(20, 57), DataGate(maximum_skipped=0.0), ("maximum-skipped",)),
    "skipped, within the share": (NoisedCount(200, 150), DataGate(maximum_skipped=0.5), ()),
    "nothing was counted of skipped rows": (NoisedCount(20, None), DataGate(maximum_skipped=0.0), ()),
    "classes are not judged": (NoisedCount(20, 0), DataGate(all_classes=True), ()),
}


@pytest.mark.parametrize(("counted", "gate", "failed"), NOISED.values(), ids=NOISED.keys())
def test_the_gate_of_a_private_run(counted: NoisedCount, gate: DataGate, failed: tuple[str, ...]) -> None:
    assert check_count(counted, 10.0, gate).failed == failed  # four deviations are 56.6


def test_a_verdict_names_its_rule_on_the_wire() -> None:
    with pytest.raises(DataGateFailed) as caught:
        check_rows(some_rows(["a"]), 0, SCHEMA, DataGate()).require("north")
    assert caught.value.wire().fields == {"rule": "minimum-rows"}


def test_targets_that_are_not_finite_are_refused() -> None:
    schema = SCHEMA.model_copy(update={"label": RegressionLabel(kind="regression", name="y", range=(0.0, 1.0))})
    rows = Dataset({"numeric": np.zeros((20, 1), np.float32)}, np.full(20, np.nan, np.float32), ("",) * 20)
    assert check_rows(rows, 0, schema, DataGate()).failed == ("finite-labels",)


def test_a_site_is_stricter_never_looser() -> None:
    task = DataGate(minimum_rows=10, maximum_skipped=0.05, all_classes=True)
    assert stricter(task, None) == task
    assert stricter(task, DataGate(minimum_rows=1, maximum_skipped=0.5, all_classes=False)) == task
    site = DataGate(minimum_rows=50, maximum_rows=99, maximum_skipped=0.0)
    assert stricter(task, site) == site
