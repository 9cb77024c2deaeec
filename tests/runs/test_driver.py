"""The driver over the real in-process grid and real Flower messages, with scripted sites at the far end."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runs.scripted_sites import answer_begun

from fedloop_clients.app import SITE_KEY, relay
from fedloop_clients.endpoint import Question, Reply
from fedloop_core.arrays import arrays_from_bytes, arrays_to_bytes, digest
from fedloop_core.errors import ContentDamaged, QuorumNotReached
from fedloop_core.federation.answers import sign_answer
from fedloop_core.keys import SigningKey
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task import Task
from fedloop_core.task.document import FederatedAveraging, LogisticModel, Preprocessing, Privacy, Rounds
from fedloop_proto.coordination.v1.coordination_pb2 import (
    Answer,
    DataDescription,
    Evaluation,
    LocalUpdate,
    Moments,
    Refusal,
)
from fedloop_server.runs.driver import RunDriver
from fedloop_server.runs.events import (
    AnswersMeasured,
    Event,
    RoundClosed,
    RoundOpened,
    RunFailed,
    RunReopened,
    VersionRegistered,
)
from fedloop_server.runs.exchange import Exchange
from fedloop_server.runs.journal import RunJournal
from fedloop_server.runs.model import model_of
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import RunState
from fedloop_server.runs.surroundings import Surroundings
from fedloop_simulations.federation import rehearsal_directory
from fedloop_simulations.grid import InProcessGrid, Node
from fedloop_simulations.keys import rehearsal_key

KEY = SigningKey.generate()
Arrays = dict[str, Any]
Misdeed = Callable[[Answer, Arrays], Arrays]


def task(**rounds: Any) -> Task:
    return Task(
        format=1,
        name="scripted",
        features=(NumericFeature(kind="numeric", name="x", range=(0.0, 4.0)),),
        label=ClassLabel(kind="classes", name="y", classes=("no", "yes")),
        model=LogisticModel(kind="logistic"),
        preprocessing=Preprocessing(scaling="federated"),
        training=FederatedAveraging(algorithm="fedavg"),
        privacy=Privacy(epsilon=math.inf),
        rounds=Rounds(**{"count": 3, "quorum": 0.6, "deadline_seconds": 5.0, "weighting": "rows", **rounds}),
    )


def by_rule(rule: str, *, faulty: int | None = None, norm_bound: float = math.inf, **rounds: Any) -> Task:
    """The task with a rule of aggregation; by rows where the rule takes weights."""
    weighting = "rows" if rule in {"mean", "geometric-median"} else "equal"
    section = {"rule": rule} if faulty is None else {"rule": rule, "faulty_sites": faulty}
    document = task(weighting=weighting, **rounds).model_dump()
    document |= {"aggregation": section}
    document["gates"]["update"]["norm_bound"] = norm_bound
    return Task.model_validate(document)


@dataclass
class ScriptedSite:
    """Answers as a site would, with an update that depends only on its name and the round; may misbehave."""

    name: str
    rows: int = 10
    misdeed: Misdeed | None = None
    raises: bool = False
    asked: list[tuple[int, str]] = field(default_factory=list)

    def answer(self, question: Question) -> Reply:
        instruction, answer = answer_begun(question, self.name, KEY)
        kind = str(instruction.WhichOneof("work"))
        self.asked.append((instruction.round, kind))
        if self.raises:
            raise RuntimeError("this text must not cross the wire")
        assert instruction.arrays_digest == digest(question.arrays)
        arrays: Arrays = {}
        if kind == "describe_data":
            answer.data_description.CopyFrom(DataDescription(admitted=True, rows=self.rows, data_fingerprint=b"f" * 32))
        elif kind == "collect_moments":
            answer.moments.CopyFrom(Moments())
            arrays = {
                "sum": np.array([20.0]),
                "sum_of_squares": np.array([50.0]),
                "count": np.array([float(self.rows)]),
            }
        else:
            arrays = self.update(instruction.round, dict(question.arrays))
            answer.local_update.CopyFrom(LocalUpdate(weight=self.rows, steps=1))
            if instruction.train_locally.evaluate:
                answer.local_update.evaluation.CopyFrom(Evaluation(present=True, correct=7, total=9))
            if self.misdeed is not None:
                arrays = self.misdeed(answer, arrays)
        if not answer.arrays_digest:
            answer.arrays_digest = digest(arrays)
        return Reply(sign_answer(answer, rehearsal_key(self.name)), arrays)

    def update(self, round_number: int, received: Arrays) -> Arrays:
        seed = int.from_bytes(hashlib.sha256(f"{self.name} {round_number}".encode()).digest()[:4], "little")
        generator = np.random.default_rng(seed)
        return {
            name: generator.normal(size=array.shape).astype(np.float32)
            for name, array in received.items()
            if not name.startswith("scaler.")
        }


def around(names: Sequence[str]) -> Surroundings:
    return Surroundings(rehearsal_directory(dict(enumerate(names, 100))))


def driver(
    folder: Path,
    chosen: Task,
    sites: Sequence[ScriptedSite],
    surroundings: Surroundings | None = None,
    journal: RunJournal | None = None,
) -> RunDriver:
    grid = InProcessGrid({n: Node(relay(site), {SITE_KEY: site.name}) for n, site in enumerate(sites, 100)})
    surroundings = surroundings or around([site.name for site in sites])
    plan = RunPlan(run_id="run-1", task=chosen, seed=3, private=False, expected_sites=len(sites))
    return RunDriver(
        plan,
        journal or RunJournal(folder),
        model_of(chosen, plan.seed),
        lambda attempt: Exchange(
            grid, KEY, surroundings, run_id="run-1", attempt=attempt, task_digest=chosen.digest, now_unix=lambda: 0.0
        ),
    )


def sites(count: int) -> list[ScriptedSite]:
    return [ScriptedSite(f"site-{n}", rows=10 + n) for n in range(count)]


def test_three_rounds_equal_a_hand_written_weighted_average(tmp_path: Path) -> None:
    members = sites(4)
    chosen = task()
    trained = driver(tmp_path, chosen, members).train()
    expected = {name: array.astype(np.float64) for name, array in model_of(chosen, 3).trained.items()}
    for round_number in (1, 2, 3):
        updates = [site.update(round_number, dict(expected)) for site in members]
        weights = [site.rows for site in members]
        for name in expected:
            mean = np.average([u[name].astype(np.float64) for u in updates], axis=0, weights=weights)
            expected[name] = (expected[name] + mean).astype(np.float32).astype(np.float64)
    for name, array in expected.items():
        assert np.abs(trained[name].astype(np.float64) - array).max() <= 1e-6
    assert trained["scaler.mean"] == pytest.approx(20.0 * 4 / sum(s.rows for s in members), abs=1e-6)


def test_the_order_of_sites_changes_no_bit(tmp_path: Path) -> None:
    one = driver(tmp_path / "one", task(), sites(5)).train()
    two = driver(tmp_path / "two", task(), sites(5)[::-1]).train()
    assert digest(one) == digest(two)


def nan(answer: Answer, arrays: Arrays) -> Arrays:
    return {name: np.full_like(array, math.nan) for name, array in arrays.items()}


def wrong_shape(answer: Answer, arrays: Arrays) -> Arrays:
    return {name: array[:1] for name, array in arrays.items()}


def huge(answer: Answer, arrays: Arrays) -> Arrays:
    return {name: array * np.float32(1e9) for name, array in arrays.items()}


def reordered(answer: Answer, arrays: Arrays) -> Arrays:
    return dict(reversed(arrays.items()))


def other_digest(answer: Answer, arrays: Arrays) -> Arrays:
    answer.arrays_digest = b"x" * 32
    return arrays


def other_round(answer: Answer, arrays: Arrays) -> Arrays:
    answer.round = 7
    return arrays


def other_site(answer: Answer, arrays: Arrays) -> Arrays:
    answer.site = "site-0"
    return arrays


def later_attempt(answer: Answer, arrays: Arrays) -> Arrays:
    answer.attempt = 9
    return arrays


def refusing(answer: Answer, arrays: Arrays) -> Arrays:
    answer.refusal.CopyFrom(Refusal(code="FL-PRIV-002"))
    return {}


@pytest.mark.parametrize(
    ("misdeed", "code"),
    [
        (nan, "FL-UPD-001"),
        (wrong_shape, "FL-UPD-001"),
        (huge, "FL-UPD-001"),
        (reordered, "FL-UPD-001"),
        (other_digest, "FL-UPD-001"),
        (other_round, "FL-UPD-001"),
        (other_site, "FL-TRUST-011"),
        (later_attempt, "FL-UPD-001"),
        (refusing, "FL-PRIV-002"),
    ],
)
def test_a_bad_site_is_left_out_by_name_and_changes_nothing(tmp_path: Path, misdeed: Misdeed, code: str) -> None:
    good = sites(4)
    bad = ScriptedSite("bad", misdeed=misdeed)
    run = driver(tmp_path / "with", task(), [*good, bad])
    with_bad = run.train()
    state = RunJournal(tmp_path / "with").state
    assert {(out.site, out.round, out.code) for out in state.left_out} == {("bad", n, code) for n in (1, 2, 3)}
    assert all("bad" not in closed.folded for closed in state.rounds)
    # The scaler knew five sites, so only the parameters are compared.
    without = driver(tmp_path / "without", task(), good).train()
    for name in without:
        if not name.startswith("scaler."):
            assert with_bad[name].tobytes() == without[name].tobytes()


def test_a_site_whose_app_raises_says_no_word_of_it(tmp_path: Path) -> None:
    run = driver(tmp_path, task(), [*sites(3), ScriptedSite("broken", raises=True)])
    run.train()
    out = RunJournal(tmp_path).state.left_out
    assert {o.site for o in out} == {"broken"}
    assert not any("must not cross" in o.reason for o in out)


def test_without_a_quorum_the_round_fails_and_names_the_sites(tmp_path: Path) -> None:
    run = driver(tmp_path, task(), [*sites(2), ScriptedSite("b1", misdeed=nan), ScriptedSite("b2", misdeed=nan)])
    with pytest.raises(QuorumNotReached, match=r"round 1: 2 of 4 .* 3 are needed.*b1.*b2"):
        run.train()


def waiting(answer: Answer, arrays: Arrays) -> Arrays:
    answer.refusal.CopyFrom(Refusal(code="FL-TRUST-006", fields={"rule": "approval"}))
    return {}


def failing(folder: Path, members: Sequence[ScriptedSite], names: Sequence[str] = ()) -> str:
    """The sentence with which an attempt ends for want of a quorum."""
    run = driver(folder, task(quorum=1.0), members, around([*(member.name for member in members), *names]))
    with pytest.raises(QuorumNotReached) as ended:
        run.train()
    return ended.value.message


def test_a_resumed_attempt_names_each_site_once_with_its_newest_reason(tmp_path: Path) -> None:
    members = [ScriptedSite("a", misdeed=refusing), *sites(2)]
    assert failing(tmp_path, members).count("FL-PRIV-002") == 1
    members[0].misdeed = nan
    said = failing(tmp_path, members)
    assert said.count("a (FL-UPD-001: ") == 1
    assert "FL-PRIV-002" not in said
    members[0].misdeed, members[1].misdeed = None, refusing
    said = failing(tmp_path, members)
    assert said.partition("Left out: ")[2] == "site-0 (FL-PRIV-002: it refused)."


def test_sites_that_wait_for_a_person_are_named_with_what_is_to_be_done(tmp_path: Path) -> None:
    said = failing(tmp_path, [ScriptedSite(name, misdeed=waiting) for name in ("north", "south", "west")])
    out = [name for name in ("north", "south", "west") if f"{name} (FL-TRUST-006: nobody there has approved" in said]
    wait = " and ".join(out) if len(out) < 3 else "north, south and west"
    many = "waits" if len(out) == 1 else "wait"
    assert f" {wait} {many} for a person there; when they have approved, `fedloop run resume run-1`." in said
    rest = [name for name in ("north", "south", "west") if name not in out]
    assert not rest or f"Not waited for: {' and '.join(rest)}." in said
    assert "refused" not in said


def undescribed(name: str, code: str, **fields: str) -> ScriptedSite:
    """A site that refuses to describe its data."""

    class Undescribed(ScriptedSite):
        def answer(self, question: Question) -> Reply:
            _, answer = answer_begun(question, self.name, KEY)
            answer.refusal.CopyFrom(Refusal(code=code, fields=fields))
            answer.arrays_digest = digest({})
            return Reply(sign_answer(answer, rehearsal_key(self.name)), {})

    return Undescribed(name)


def test_a_run_that_gathers_too_few_names_every_site_that_is_not_there(tmp_path: Path) -> None:
    approval = [undescribed(name, "FL-TRUST-006", rule="approval") for name in ("north", "south")]
    members = [*approval, undescribed("west", "FL-TRUST-006", rule="tasks"), *sites(1)]
    for _ in range(2):
        said = failing(tmp_path, members, ("away",))
        assert "north and south wait for a person there; when they have approved, `fedloop run resume run-1`." in said
        assert said.partition("Left out: ")[2] == (
            "north (FL-TRUST-006: nobody there has approved it yet); "
            "south (FL-TRUST-006: nobody there has approved it yet); "
            "west (FL-TRUST-006: it refused: rule tasks); away (it is not connected)."
        )
        journal = RunJournal(tmp_path)
        journal.record(RunFailed(code=QuorumNotReached.code, reason=said, unix=0.0))
        journal.record(RunReopened(unix=0.0))


def test_a_run_that_too_few_sites_come_to_names_those_that_are_missing(tmp_path: Path) -> None:
    dead = [undescribed("west", "FL-TRUST-006", rule="tasks"), *sites(1)]
    failing(tmp_path, dead)
    said = failing(tmp_path, dead, ("away",))  # the attempt after one that died: nobody has opened the run again
    assert said == (
        "1 of 2 sites are connected and may take part; 2 are needed. "
        "Left out: west (FL-TRUST-006: it refused: rule tasks); away (it is not connected)."
    )


class Killed(BaseException):
    """Stands for a process that dies: nothing catches it."""


@pytest.mark.parametrize("rule", ["mean", "geometric-median", "median"])
@pytest.mark.parametrize("dies_at", range(1, 15))
def test_a_run_that_dies_anywhere_goes_on_to_the_same_weights(tmp_path: Path, dies_at: int, rule: str) -> None:
    """Also where updates are shortened to a bound that follows from rounds before the death."""
    chosen = by_rule(rule, norm_bound=1.0, evaluate_every=1)
    uninterrupted = driver(tmp_path / "whole", chosen, sites(3)).train()
    events = 0

    class DyingJournal(RunJournal):
        def record(self, event: object) -> object:  # type: ignore[override]
            nonlocal events
            events += 1
            if events == dies_at:
                raise Killed
            return super().record(event)  # type: ignore[arg-type]

    folder = tmp_path / "killed"
    members = sites(3)
    grid = InProcessGrid({n: Node(relay(s), {SITE_KEY: s.name}) for n, s in enumerate(members, 100)})
    plan = RunPlan(run_id="run-1", task=chosen, seed=3, private=False, expected_sites=3)

    def attempt(journal: RunJournal) -> dict[str, np.ndarray]:
        return dict(
            RunDriver(
                plan,
                journal,
                model_of(chosen, plan.seed),
                lambda number: Exchange(
                    grid,
                    KEY,
                    around([member.name for member in members]),
                    run_id="run-1",
                    attempt=number,
                    task_digest=chosen.digest,
                    now_unix=lambda: 0.0,
                ),
            ).train()
        )

    try:
        resumed = attempt(DyingJournal(folder))
    except Killed:
        resumed = attempt(RunJournal(folder))
    assert digest(resumed) == digest(uninterrupted)
    state = RunJournal(folder).state
    assert state.completed_rounds == 3
    assert [m.right for m in state.rounds[1].measured if isinstance(m, AnswersMeasured)] == [7.0, 7.0, 7.0]
    assert all(update.bounded_to is None for update in state.rounds[0].updates)
    assert any(update.bounded_to is not None for closed in state.rounds[1:] for update in closed.updates)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def other_arrays(path: Path) -> None:
    arrays = arrays_from_bytes(path.read_bytes())
    path.write_bytes(arrays_to_bytes({name: array + 1 for name, array in arrays.items()}))


def one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut off": cut_off,
    "other arrays": other_arrays,
    "one bit": one_bit,
    "empty": lambda path: path.write_bytes(b""),
    "not there": Path.unlink,
}


def dies_after(folder: Path, members: Sequence[ScriptedSite], number: int) -> None:
    """A run whose process dies when a round has closed."""

    class Dying(RunJournal):
        def record(self, event: Event) -> RunState:
            if isinstance(event, RoundOpened) and event.round == number + 1:
                raise Killed
            return super().record(event)

    with pytest.raises(Killed):
        driver(folder, task(), members, journal=Dying(folder)).train()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("closed", [1, 2])
def test_a_damaged_checkpoint_costs_one_round_and_no_bit(
    tmp_path: Path, damage: str, closed: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole = driver(tmp_path / "whole", task(), sites(3)).train()
    folder, members = tmp_path / "damaged", sites(3)
    dies_after(folder, members, closed)
    first = RunJournal(folder).state.rounds
    DAMAGES[damage](folder / f"round-{closed}.safetensors")
    assert digest(driver(folder, task(), members).train()) == digest(whole)
    state = RunJournal(folder).state
    assert (state.completed_rounds, state.attempt, state.lost) == (3, 2, None)
    assert state.rounds[closed - 1].digest == first[-1].digest
    asked = [number for number, kind in members[0].asked if kind == "train_locally"]
    assert asked == [*range(1, closed + 1), *range(closed, 4)]
    told = [line for line in (folder / "journal.jsonl").read_text().splitlines() if "round-lost" in line]
    assert len(told) == 1
    assert f"round-{closed}.safetensors" in told[0]
    assert f"Round {closed} is trained again" in caplog.text
    assert "another model" not in caplog.text


def test_a_round_that_is_trained_again_without_one_of_its_sites_says_that_its_model_is_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    members = sites(4)
    dies_after(tmp_path, members, 2)
    (tmp_path / "round-2.safetensors").unlink()
    driver(tmp_path, task(), members[:3], around([member.name for member in members])).train()
    assert [len(closed.folded) for closed in RunJournal(tmp_path).state.rounds] == [4, 3, 3]
    assert "round 2 has another model than when it closed first" in caplog.text


def test_two_damaged_checkpoints_end_in_one_sentence_that_names_both(tmp_path: Path) -> None:
    members = sites(3)
    dies_after(tmp_path, members, 2)
    for number in (1, 2):
        cut_off(tmp_path / f"round-{number}.safetensors")
    with pytest.raises(ContentDamaged, match=r"round-2\.safetensors.*round-1\.safetensors") as error:
        driver(tmp_path, task(), members).train()
    assert f"Put {tmp_path / 'round-2.safetensors'} back from a backup" in str(error.value)
    assert RunJournal(tmp_path).state.completed_rounds == 2


def test_weights_of_a_registered_version_are_never_those_of_another_round(tmp_path: Path) -> None:
    members = sites(3)
    driver(tmp_path, task(), members).train()
    RunJournal(tmp_path).record(VersionRegistered(version=1))
    cut_off(tmp_path / "round-3.safetensors")
    with pytest.raises(ContentDamaged, match=r"round-3\.safetensors .* is damaged"):
        driver(tmp_path, task(), members).train()
    assert RunJournal(tmp_path).state.completed_rounds == 3


@pytest.mark.parametrize(("closed", "kept"), [(1, {"round-0", "round-1"}), (2, {"round-1", "round-2"})])
def test_the_last_two_checkpoints_are_kept(tmp_path: Path, closed: int, kept: set[str]) -> None:
    dies_after(tmp_path, sites(3), closed)
    assert {path.stem for path in tmp_path.glob("*.safetensors")} == kept


def test_a_resumed_run_goes_on_without_a_member_that_has_not_come_back(tmp_path: Path) -> None:
    class Dying(RunJournal):
        def record(self, event: Event) -> RunState:
            if isinstance(event, RoundClosed) and event.round == 2:
                raise Killed
            return super().record(event)

    members = sites(4)
    run = driver(tmp_path, task(), members, journal=Dying(tmp_path))
    with pytest.raises(Killed):
        run.train()
    driver(tmp_path, task(), members[:3], around([member.name for member in members])).train()
    state = RunJournal(tmp_path).state
    assert [len(closed.folded) for closed in state.rounds] == [4, 3, 3]
    assert [(out.site, out.round, out.code, out.reason) for out in state.left_out] == [
        ("site-3", number, "FL-RUN-010", "it is not connected") for number in (2, 3)
    ]


def test_a_round_that_cannot_reach_its_quorum_without_the_missing_asks_nobody(tmp_path: Path) -> None:
    members = sites(4)
    driver(tmp_path, task(count=1), members).train()
    few = members[:1]
    asked = len(few[0].asked)
    with pytest.raises(QuorumNotReached, match=r"round 2: 0 of 4 .* 3 are needed.*site-1 .*not connected"):
        driver(tmp_path, task(count=2), few, around([member.name for member in members])).train()
    assert len(few[0].asked) == asked


def test_only_some_sites_are_asked_each_round_when_the_task_says_so(tmp_path: Path) -> None:
    members = sites(6)
    driver(tmp_path, task(sites_per_round=2), members).train()
    asked = [closed.folded for closed in RunJournal(tmp_path).state.rounds]
    assert all(len(names) == 2 for names in asked)
    assert len(set(asked)) > 1
