"""Evaluations that can be and those that cannot; and estimates of everything that a journal may hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloop_clients.evaluation import exact_scores, noised_scores
from fedloop_core.errors import UpdateRefused
from fedloop_core.noise import SeededNoise
from fedloop_core.schema import ClassLabel, Label, NumericFeature, RegressionLabel, SurvivalLabel
from fedloop_core.task.document import LogisticModel, Privacy, Task
from fedloop_proto.coordination.v1.coordination_pb2 import Evaluation, PairSums
from fedloop_server.runs.answers import measured_in
from fedloop_server.runs.estimates import estimate
from fedloop_server.runs.events import AnswersMeasured, ErrorsMeasured, Measured, Member, PairsMeasured
from fedloop_server.runs.plausible import check_measured, scale_of_evaluations

CLASSES = ClassLabel(kind="classes", name="y", classes=("no", "yes"))
NUMBER = RegressionLabel(kind="regression", name="y", range=(0.0, 100.0))
SURVIVAL = SurvivalLabel(kind="survival", time="t", event="e", time_range=(0.0, 9.0))
MEMBER = Member(site="odd", weight=1, rows=50, rows_noised=False, data_fingerprint="00")


def task(label: Label, epsilon: float = math.inf) -> Task:
    return Task(
        format=1,
        name="measured",
        features=(NumericFeature(kind="numeric", name="x", range=(0.0, 4.0)),),
        label=label,
        model=LogisticModel(kind="logistic"),
        privacy=Privacy(epsilon=epsilon),
    )


def check(chosen: Task, evaluation: Evaluation) -> None:
    for measured in measured_in("odd", chosen.label, evaluation):
        check_measured(measured, MEMBER, chosen)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 900),
    label=st.sampled_from([CLASSES, NUMBER, SURVIVAL]),
    epsilon=st.sampled_from([math.inf, 0.01, 1.0, 8.0]),
    spread=st.sampled_from([0.0, 1e-3, 1.0, 1e3]),
)
def test_what_a_site_finds_is_always_believed(seed: int, rows: int, label: Any, epsilon: float, spread: float) -> None:
    chosen = task(label, math.inf if label is SURVIVAL else epsilon)
    generator = np.random.default_rng(seed)
    outputs = (spread * generator.normal(size=(rows, 2 if label is CLASSES else 1))).astype(np.float32)
    outcomes: Any = generator.integers(0, 2, rows)
    if label is NUMBER:
        outcomes = (outputs[:, 0] + generator.normal(0, 10, rows)).astype(np.float32)
    if label is SURVIVAL:
        outcomes = np.stack([generator.uniform(0, 9, rows), outcomes], axis=1).astype(np.float32)
    if chosen.privacy.private:
        scores = noised_scores(label, outputs, outcomes, 1 / scale_of_evaluations(chosen), SeededNoise(seed, "odd"))
    else:
        scores = exact_scores(label, outputs, outcomes)
    check(chosen, scores.message())


PRIVATE = task(CLASSES, 1.0)
SCALE = scale_of_evaluations(PRIVATE)
PAIRS = {"rows": 10, "concordant_squared": 50, "concordant_comparable": 60, "comparable_squared": 80}
CANNOT_BE = {
    "noise without privacy": (task(CLASSES), {"correct": 5, "total": 9, "noise_scale": 1.0}, "noise has scale 1;"),
    "no noise": (PRIVATE, {"correct": 5, "total": 9}, f"the task fixes {SCALE:g}"),
    "more noise": (PRIVATE, {"correct": 5, "total": 9, "noise_scale": 1e17}, "noise has scale 1e"),
    "as many rows as the gate wants": (task(CLASSES), {"correct": 1e9, "total": 1e9}, "it counts 1e"),
    "rows beyond their noise": (PRIVATE, {"correct": 9999, "total": 9999, "noise_scale": SCALE}, "it counts 9999"),
    "more right than rows": (task(CLASSES), {"correct": 6, "total": 5}, "it counts 6, -1"),
    "less than nothing right": (task(CLASSES), {"correct": -1e6, "total": 5}, "it counts -1e"),
    "errors beyond the range": (task(NUMBER), {"total": 9, "absolute_error_sum": 901}, "it counts"),
    "squares beyond errors": (
        task(NUMBER),
        {"total": 9, "absolute_error_sum": 10, "squared_error_sum": 1100},
        "it counts",
    ),
    "errors below nothing": (task(NUMBER), {"total": 9, "absolute_error_sum": -1e200}, "it counts"),
    "rows of pairs": (task(SURVIVAL), {"total": 9, "pairs": PairSums(rows=1e12)}, "it counts"),
    "more pairs than rows have": (task(SURVIVAL), {"total": 46, "pairs": PairSums(**PAIRS)}, "46 pairs of 10 rows"),
    "more concordant than there are": (
        task(SURVIVAL),
        {"correct": 9, "total": 8, "pairs": PairSums(**PAIRS)},
        "8 pairs of 10 rows",
    ),
    "squares beyond pairs": (
        task(SURVIVAL),
        {"total": 9, "pairs": PairSums(**{**PAIRS, "comparable_squared": 1e200})},
        "9 pairs of 10 rows",
    ),
}


@pytest.mark.parametrize(("chosen", "found", "says"), CANNOT_BE.values(), ids=list(CANNOT_BE))
def test_what_no_evaluation_finds_is_refused(chosen: Task, found: dict[str, Any], says: str) -> None:
    with pytest.raises(UpdateRefused, match="the evaluation of odd is not possible") as refused:
        check(chosen, Evaluation(present=True, **found))
    assert says in refused.value.message
    assert refused.value.fields["reason"] == "evaluation"


FINITE = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, 1.0, 1e17, 1e154, 1.7e308, -1e300])
POSITIVE = FINITE.map(abs)
ANSWERS = st.builds(AnswersMeasured, site=st.just("a"), right=FINITE, wrong=FINITE, noise_scale=POSITIVE)
ERRORS = st.builds(
    ErrorsMeasured,
    site=st.just("a"),
    rows=FINITE,
    absolute=FINITE,
    squared=FINITE,
    width=st.just(100.0),
    noise_scale=POSITIVE,
)
PAIRS_FOUND = st.builds(
    PairsMeasured,
    site=st.just("a"),
    rows=POSITIVE,
    concordant=POSITIVE,
    comparable=POSITIVE,
    concordant_squared=POSITIVE,
    concordant_comparable=POSITIVE,
    comparable_squared=POSITIVE,
)


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from([(CLASSES, ANSWERS, 1.0), (NUMBER, ERRORS, 100.0), (SURVIVAL, PAIRS_FOUND, 1.0)]),
    data=st.data(),
)
def test_whatever_a_journal_holds_has_an_estimate(kind: Any, data: st.DataObject) -> None:
    label, measured, worst = kind
    found: list[Measured] = data.draw(st.lists(measured, max_size=3))
    told = estimate(label, found, 0.95)
    assert all(math.isfinite(value) for value in (told.value, told.low, told.high, told.total))
    assert 0 <= told.low <= told.value + 1e-9 * worst
    assert told.value <= told.high + 1e-9 * worst
    assert told.high <= worst


def test_noise_of_every_scale_has_a_variance() -> None:
    for scale, deviation in ((1e-300, 0.0), (0.5, None), (1e6, 1e6 * math.sqrt(2)), (1e20, None)):
        told = estimate(CLASSES, [AnswersMeasured(site="a", right=5e8, wrong=5e8, noise_scale=scale)], 0.95)
        assert 0.0 <= told.low <= 0.5 <= told.high <= 1.0
        if deviation:
            assert told.half_width == pytest.approx(1.96 * deviation * math.sqrt(0.5) / 1e9, rel=0.01)
