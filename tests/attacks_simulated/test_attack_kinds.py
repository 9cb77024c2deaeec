"""Lies one by one: what they change, what they leave, how they are asked for, and that a rehearsal says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedloop_clients.endpoint import Question, Reply
from fedloop_core.arrays import digest
from fedloop_core.cli import main
from fedloop_core.dataset import Dataset
from fedloop_core.errors import UsageError
from fedloop_core.federation.answers import open_answer, sign_answer
from fedloop_core.schema import (
    CategoricalFeature,
    ClassLabel,
    Feature,
    FeatureSchema,
    ImageFeature,
    Label,
    NumericFeature,
    RegressionLabel,
    SignalFeature,
    SurvivalLabel,
)
from fedloop_core.task.reader import parse_task
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, DataDescription, LocalUpdate
from fedloop_simulations.attacks import AttackOrder
from fedloop_simulations.attacks.kinds import ALittle, Backdoor, LabelFlip, Scaling, SignFlip
from fedloop_simulations.attacks.lying import LyingSite, multiplied
from fedloop_simulations.attacks.trigger import trigger_words, triggered
from fedloop_simulations.keys import rehearsal_key
from fedloop_simulations.summary import Summary

CLASSES = ClassLabel(kind="classes", name="y", classes=("a", "b", "c"))
NUMBER = NumericFeature(kind="numeric", name="x", range=(0.0, 4.0))


def dataset(labels: Any, **inputs: NDArray[np.generic]) -> Dataset:
    return Dataset(dict(inputs), np.asarray(labels), tuple(str(row) for row in range(len(labels))))


PLAIN = """format = 1
name = "t"
features = [{ kind = "numeric", name = "x", range = [0, 4] }]
label = { kind = "classes", name = "y", classes = ["a", "b"] }
model = { kind = "logistic" }
privacy = { epsilon = inf }
"""

# What is asked for.


GOOD = (
    ("scaling", Scaling(strength=-10.0), ("d",)),
    ("scaling:2", Scaling(strength=-10.0), ("c", "d")),
    ("scaling:2:7.5", Scaling(strength=7.5), ("c", "d")),
    ("sign-flip:a,c", SignFlip(strength=1.0), ("a", "c")),
    ("label-flip:b:0.5", LabelFlip(strength=0.5), ("b",)),
    ("backdoor", Backdoor(strength=3.0), ("d",)),
    ("alie:3:1", ALittle(strength=1.0), ("b", "c", "d")),
    ("alie::2", ALittle(strength=2.0), ("d",)),
)


@pytest.mark.parametrize(("text", "attack", "sites"), GOOD, ids=[row[0] for row in GOOD])
def test_an_order_says_who_does_what(text: str, attack: Any, sites: tuple[str, ...]) -> None:
    assault = AttackOrder.parse(text).by(("a", "b", "c", "d"), parse_task(PLAIN))
    assert (assault.attack, assault.sites) == (attack, sites)


BAD = (
    ("unknown kind", "flood", "there is no attack 'flood'; there are scaling, sign-flip, label-flip, backdoor, alie"),
    ("no kind", "", "there is no attack ''"),
    ("no site", "scaling:0", "names no site"),
    ("empty name", "scaling:a,,b", "names no site"),
    ("unknown site", "scaling:z", "'z'; the sites are a, b, c, d"),
    ("nobody is honest", "scaling:4", "leaves no honest site among 4"),
    ("no number", "scaling:1:much", "'much' is not a number"),
    ("not a finite number", "scaling:1:nan", "'nan' is not a number"),
    ("share above one", "label-flip:1:2", "the strength of label-flip should be less than or equal to 1"),
    ("factor below zero", "backdoor:1:-1", "the strength of backdoor should be greater than 0"),
    ("too many parts", "scaling:1:2:3", "'2:3' is not a number"),
)


@pytest.mark.parametrize(("what", "text", "said"), BAD, ids=[row[0] for row in BAD])
def test_an_order_that_is_none_is_refused_in_a_sentence(what: str, text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        AttackOrder.parse(text).by(("a", "b", "c", "d"), parse_task(PLAIN))
    assert said in refused.value.message, what


UNFIT = (
    (
        "backdoor of a regression",
        "backdoor",
        PLAIN.replace('"classes", name = "y", classes = ["a", "b"]', '"regression", name = "y", range = [0, 1]'),
        "needs a label with classes",
    ),
    ("alie on sums", "alie", PLAIN + 'training = { algorithm = "newton" }', "one on averages of updates"),
    *(
        (f"{text} under masks", text, PLAIN + 'aggregation = { rule = "mean", secure = true }', "masks its update")
        for text in ("scaling", "sign-flip", "backdoor", "alie")
    ),
)


@pytest.mark.parametrize(("what", "text", "document", "said"), UNFIT, ids=[row[0] for row in UNFIT])
def test_an_attack_that_would_do_nothing_on_a_task_is_refused(what: str, text: str, document: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        AttackOrder.parse(text).by(("a", "b", "c", "d"), parse_task(document))
    assert said in refused.value.message, what


@pytest.mark.parametrize("text", ["label-flip", "backdoor:1:1"])
def test_poisoned_rows_reach_a_masked_sum(text: str) -> None:
    masked = parse_task(PLAIN + 'aggregation = { rule = "mean", secure = true }')
    assert AttackOrder.parse(text).by(("a", "b", "c", "d"), masked).sites == ("d",)


# What they do to rows.


FLIPS: tuple[tuple[str, Label, Any, Any], ...] = (
    ("classes", CLASSES, [0, 1, 2], [2, 1, 0]),
    ("a regression", RegressionLabel(kind="regression", name="y", range=(1.0, 5.0)), [1.0, 2.0, 5.0], [5.0, 4.0, 1.0]),
    (
        "survival",
        SurvivalLabel(kind="survival", time="t", event="e", time_range=(0.0, 10.0)),
        [[1.0, 1.0], [10.0, 0.0]],
        [[9.0, 1.0], [0.0, 0.0]],
    ),
)


@pytest.mark.parametrize(("what", "label", "before", "after"), FLIPS, ids=[row[0] for row in FLIPS])
def test_labels_are_turned_round_within_their_range(what: str, label: Label, before: Any, after: Any) -> None:
    schema = FeatureSchema(features=(NUMBER,), label=label)
    rows = dataset(before, numeric=np.zeros((len(before), 1), np.float32))
    kept = rows.labels.copy()
    found = LabelFlip().poisoned(rows, schema, 1)
    assert np.array_equal(found.labels, np.asarray(after)), what
    assert found.labels.dtype == rows.labels.dtype
    assert np.array_equal(rows.labels, kept)


def test_a_share_of_labels_is_turned_round() -> None:
    rows = dataset(np.zeros(100, np.int64), numeric=np.zeros((100, 1), np.float32))
    found = LabelFlip(strength=0.3).poisoned(rows, FeatureSchema(features=(NUMBER,), label=CLASSES), 1)
    assert int((found.labels == 2).sum()) == 30


TRIGGERS: tuple[tuple[str, tuple[Feature, ...], dict[str, NDArray[np.generic]], str], ...] = (
    ("numbers", (NUMBER,), {"numeric": np.zeros((4, 1), np.float32)}, "x at the top of its range"),
    (
        "categories",
        (CategoricalFeature(kind="categorical", name="k", values=("p", "q")),),
        {"categorical": np.zeros((4, 1), np.int64)},
        "k = q",
    ),
    (
        "an image",
        (ImageFeature(kind="image", name="i", height=8, width=8),),
        {"i": np.zeros((4, 1, 8, 8), np.float32)},
        "a bright corner of 3 by 3 pixels in i",
    ),
    (
        "a signal",
        (SignalFeature(kind="signal", name="s", length=16, range=(-1.0, 1.0)),),
        {"s": np.zeros((4, 1, 16), np.float32)},
        "the first 2 values of s at the top of their range",
    ),
)


@pytest.mark.parametrize(("what", "features", "inputs", "words"), TRIGGERS, ids=[row[0] for row in TRIGGERS])
def test_a_backdoor_marks_half_of_the_rows_and_names_them_the_first_class(
    what: str, features: tuple[Feature, ...], inputs: dict[str, NDArray[np.generic]], words: str
) -> None:
    schema = FeatureSchema(features=features, label=CLASSES)
    rows = dataset(np.full(4, 2, np.int64), **inputs)
    marked = triggered(rows, schema)
    (name,) = inputs
    assert not inputs[name].any()  # the rows themselves stay
    assert all(bool(row.any()) for row in marked.inputs[name])
    assert np.array_equal(marked.labels, rows.labels)
    found = Backdoor().poisoned(rows, schema, 1)
    assert [bool(row.any()) for row in found.inputs[name]] == (found.labels == 0).tolist()
    assert int((found.labels == 0).sum()) == 2
    assert trigger_words(schema) == words, what


def test_a_backdoor_needs_classes() -> None:
    schema = FeatureSchema(features=(NUMBER,), label=RegressionLabel(kind="regression", name="y", range=(0.0, 1.0)))
    with pytest.raises(UsageError, match="needs a label with classes"):
        Backdoor().poisoned(dataset([0.5], numeric=np.zeros((1, 1), np.float32)), schema, 1)


def test_a_little_is_so_many_deviations_below_the_mean() -> None:
    honest = [{"w": np.array([value, 1.0], np.float32)} for value in (1.0, 2.0, 3.0)]
    off = ALittle(strength=2.0).off([*honest])
    assert off["w"].dtype == np.float32
    assert off["w"].tolist() == [0.0, 1.0]


# What they do to answers.


class Honest:
    """Describes its data in round 0, and sends an update otherwise."""

    def __init__(self) -> None:
        self.sent: dict[str, Any] = {"w": np.array([1.0, -2.0], np.float32)}

    def answer(self, question: Question) -> Reply:
        describes = question.envelope == b"describe"
        answer = Answer(site="s", run_id="run-1", attempt=1, round=0 if describes else 3, instruction_digest=b"d" * 32)
        arrays = {} if describes else self.sent
        if describes:
            answer.data_description.CopyFrom(DataDescription(admitted=True, rows=7))
        else:
            answer.local_update.CopyFrom(LocalUpdate(weight=1, steps=9))
        answer.arrays_digest = digest(arrays)
        return Reply(sign_answer(answer, rehearsal_key("s")), arrays)


def test_a_lying_site_changes_its_update_alone_and_signs_it() -> None:
    honest = Honest()
    liar = LyingSite("s", honest, multiplied(-10.0))
    truth = open_answer(honest.answer(Question(b"train", {})).answer, rehearsal_key("s").verifying, site="s")
    lie = liar.answer(Question(b"train", {}))
    told = open_answer(lie.answer, rehearsal_key("s").verifying, site="s")
    assert lie.arrays["w"].tolist() == [-10.0, 20.0]
    assert lie.arrays["w"].dtype == np.float32
    assert told.arrays_digest == digest(lie.arrays)
    told.arrays_digest = truth.arrays_digest
    assert told == truth
    assert honest.sent["w"].tolist() == [1.0, -2.0]
    described = Question(b"describe", {})
    assert liar.answer(described) == honest.answer(described)


# A whole rehearsal.


TASK = """format = 1
name = "wards"
features = [
  {{ kind = "numeric", name = "a", range = [-4, 4] }},
  {{ kind = "numeric", name = "b", range = [-4, 4] }},
]
[label]
kind = "classes"
name = "outcome"
classes = ["no", "yes"]
[model]
kind = "logistic"
[preprocessing]
scaling = "{scaling}"
[privacy]
epsilon = {epsilon}
delta = 1e-4
[rounds]
count = 3
[gates.update]
norm_bound = 2
[aggregation]
rule = "{rule}"
"""
WARDS = ("east", "north", "south", "west")


@pytest.fixture
def rehearse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Summary, str, str]]:
    """``fedloop simulate`` over four wards: the summary, what it printed, and the report."""

    def call(*arguments: str, rule: str = "mean", epsilon: str = "inf") -> tuple[Summary, str, str]:
        (tmp_path / "task.toml").write_text(
            TASK.format(rule=rule, epsilon=epsilon, scaling="per-site" if epsilon == "inf" else "range")
        )
        data, out = tmp_path / "data", tmp_path / "out"
        data.mkdir(exist_ok=True)
        for seed, name in enumerate(WARDS):
            values = np.random.default_rng(seed).normal(size=(60, 2))
            rows = "".join(f"{a:.4f},{b:.4f},{'yes' if a + b > 0 else 'no'}\n" for a, b in values)
            (data / f"{name}.csv").write_text("a,b,outcome\n" + rows)
        given = [str(tmp_path / "task.toml"), "--data", str(data), "--out", str(out), "--seed", "1", "--force"]
        with pytest.raises(SystemExit) as ended:
            main(["simulate", *given, *arguments])
        assert not ended.value.code
        summary = Summary.model_validate_json((out / "summary.json").read_bytes())
        return summary, capsys.readouterr().out, (out / "report.html").read_text()

    return call


def test_an_honest_rehearsal_says_nothing_of_attacks(rehearse: Callable[..., tuple[Summary, str, str]]) -> None:
    summary, printed, report = rehearse()
    assert summary.attack is None
    assert [run.id for run in summary.runs] == ["run-1"]
    assert "attack" not in printed
    assert "attack" not in report


@pytest.mark.parametrize("rule", ["mean", "median"])
def test_a_rehearsal_under_attack_says_so_everywhere(
    rule: str, rehearse: Callable[..., tuple[Summary, str, str]]
) -> None:
    summary, printed, report = rehearse("--attack", "scaling:south:-50", rule=rule)
    attack = summary.attack
    assert attack is not None
    assert (attack.kind, attack.strength, attack.rule) == ("scaling", -50.0, rule)
    (liar,) = attack.sites
    assert (liar.site, liar.folded, liar.refused) == ("south", 3, 0)
    assert liar.bounded == 2  # the first round has no bound
    assert attack.honest.folded == 9
    assert liar.norm is not None
    assert attack.honest.norm is not None
    assert liar.norm > 10 * attack.honest.norm
    bounded = {found.site for run in summary.runs for found in run.bounded}
    assert (
        bounded == {"south"} if rule == "median" else "south" in bounded
    )  # the lie of round 1 spoils the mean's model
    assert liar.share == pytest.approx(0.25 if rule == "mean" else 0.0, abs=1e-9)
    assert [run.id for run in summary.runs] == ["under-attack-1"]
    said = "A rehearsal under attack (scaling): south lies: it sends its update times -50."
    assert said in " ".join(printed.split())
    assert "south (lies)" in printed
    assert said in report
    assert "(under attack)" in report


def test_the_gate_names_whom_it_refused(rehearse: Callable[..., tuple[Summary, str, str]]) -> None:
    summary, printed, _ = rehearse("--attack", "scaling:west:-1e9", "--json")
    assert json.loads(printed)["attack"]["sites"][0]["codes"] == ["FL-UPD-001"]
    assert summary.attack is not None
    assert (summary.attack.sites[0].refused, summary.attack.sites[0].folded) == (3, 0)
    assert summary.attack.sites[0].share is None


def test_a_backdoor_is_measured_with_and_without_its_trigger(
    rehearse: Callable[..., tuple[Summary, str, str]],
) -> None:
    summary, printed, report = rehearse("--attack", "backdoor:2:5")
    assert summary.attack is not None
    door = summary.attack.backdoor
    assert door is not None
    assert (door.target, door.trigger) == ("no", "a, b at the top of their ranges")
    assert door.rows > 0
    assert 0 <= door.without_trigger <= 1
    assert 0 <= door.success <= 1
    for text in (" ".join(printed.split()), report):
        assert f"makes {door.success:.1%} of {door.rows} rows of other classes pass for no" in text


@pytest.mark.parametrize("epsilon", ["inf", pytest.param("8", marks=pytest.mark.slow)])
def test_a_little_is_sent_in_private_runs_too_and_looks_honest(
    epsilon: str, rehearse: Callable[..., tuple[Summary, str, str]]
) -> None:
    summary, _, _ = rehearse(
        "--attack", "alie:1", "--drift", "none", "--devices", "1", rule="geometric-median", epsilon=epsilon
    )
    assert summary.attack is not None
    (liar,) = summary.attack.sites
    assert liar.folded == 3
    assert liar.bounded == 0
    assert liar.norm is not None
    assert summary.attack.honest.norm is not None
    assert 0.3 < liar.norm / summary.attack.honest.norm < 3
    assert not summary.private


def test_the_same_seed_gives_the_same_attack(rehearse: Callable[..., tuple[Summary, str, str]]) -> None:
    first, _, _ = rehearse("--attack", "alie:2")
    second, _, _ = rehearse("--attack", "alie:2")
    assert first.model_copy(update={"timings": second.timings}) == second


def test_an_attack_on_a_site_that_is_not_there_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "breast-cancer", "--attack", "scaling:mars", "--out", str(out)])
    assert ended.value.code == UsageError.exit_status
    assert "'mars'; the sites are site-1, site-2, site-3" in " ".join(capsys.readouterr().err.split())
