"""Rounds in which sites die, dawdle, lie or break: they close on the quorum, the good updates count, and the state says why.

Sites are scripted at the far end of the real in-process grid and real Flower messages; time is the grid's own.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloop_clients.app import SITE_KEY, relay
from fedloop_clients.endpoint import Question, Reply
from fedloop_core.arrays import digest
from fedloop_core.federation.answers import sign_answer
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.keys import SigningKey, unseal
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task import Task
from fedloop_core.task.document import FederatedAveraging, LogisticModel, Preprocessing, Privacy, Rounds
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, DataDescription, LocalUpdate, LogHead, Refusal
from fedloop_server.runs.driver import RunDriver
from fedloop_server.runs.exchange import Exchange
from fedloop_server.runs.journal import RunJournal
from fedloop_server.runs.model import model_of
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import RunState
from fedloop_server.runs.surroundings import RefusedRequest, Surroundings
from fedloop_simulations.federation import rehearsal_directory
from fedloop_simulations.grid import InProcessGrid, Node
from fedloop_simulations.keys import rehearsal_key

KEY = SigningKey.generate()
Arrays = dict[str, Any]
Misdeed = Callable[[Answer, Arrays], Arrays]
GOOD = ("site-0", "site-1", "site-2", "site-3")
DEADLINE = 20.0


def task(rounds: int) -> Task:
    return Task(
        format=1,
        name="scripted",
        features=(NumericFeature(kind="numeric", name="x", range=(0.0, 4.0)),),
        label=ClassLabel(kind="classes", name="y", classes=("no", "yes")),
        model=LogisticModel(kind="logistic"),
        preprocessing=Preprocessing(scaling="range"),
        training=FederatedAveraging(algorithm="fedavg"),
        privacy=Privacy(epsilon=math.inf),
        rounds=Rounds(count=rounds, quorum=0.5, deadline_seconds=DEADLINE, weighting="rows"),
    )


class Time:
    """Seconds that pass when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedGrid(InProcessGrid):
    """Replies of some nodes come after so many seconds, infinity for never."""

    def __init__(self, nodes: Mapping[int, Node], seconds: Mapping[int, float], clock: Time) -> None:
        super().__init__(nodes)
        self._seconds = seconds
        self._clock = clock
        self._due: dict[str, float] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        identifiers = list(super().push_messages(messages))
        for identifier, message in zip(identifiers, messages, strict=True):
            late = (
                self._seconds.get(message.metadata.dst_node_id, 0.0)
                if message.metadata.message_type == "train"
                else 0.0
            )
            self._due[identifier] = self._clock.now + late
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return super().pull_messages([i for i in message_ids if self._clock.now >= self._due[i]])

    def wait(self, seconds: float) -> None:
        self._clock.now += seconds


@dataclass
class Scripted:
    """Trains to an update that depends only on its name and the round; may misbehave when it trains."""

    name: str
    misdeed: Misdeed | None = None
    key: SigningKey | None = None
    signs: bool = True
    asked: list[int] = field(default_factory=list)

    def answer(self, question: Question) -> Reply:
        instruction, sealed = unseal(question.envelope, KEY.verifying, site=self.name, now_unix=0)
        answer = Answer(
            run_id=instruction.run_id,
            attempt=instruction.attempt,
            round=instruction.round,
            site=self.name,
            instruction_digest=sealed,
            protocol=PROTOCOL,
        )
        arrays: Arrays = {}
        trains = instruction.HasField("train_locally")
        if trains:
            self.asked.append(instruction.round)
            arrays = update(self.name, instruction.round, question.arrays)
            answer.local_update.CopyFrom(LocalUpdate(weight=10, steps=1))
            if self.misdeed is not None:
                arrays = self.misdeed(answer, arrays)
        else:
            answer.data_description.CopyFrom(DataDescription(admitted=True, rows=10, data_fingerprint=b"f"))
        if not answer.arrays_digest:
            answer.arrays_digest = digest(arrays)
        if not self.signs and trains:
            return Reply(answer.SerializeToString(), arrays)
        key = self.key if self.key is not None and trains else rehearsal_key(self.name)
        return Reply(sign_answer(answer, key), arrays)


def update(site: str, number: int, received: Mapping[str, Any]) -> Arrays:
    seed = int.from_bytes(hashlib.sha256(f"{site} {number}".encode()).digest()[:4], "little")
    generator = np.random.default_rng(seed)
    return {
        name: generator.normal(size=array.shape).astype(np.float32)
        for name, array in received.items()
        if not name.startswith("scaler.")
    }


class NoRefusals:
    """A front that turned nothing away."""

    told: Sequence[RefusedRequest] = ()

    def since(self, number: int) -> Sequence[RefusedRequest]:
        return [refused for refused in self.told if refused.number > number]


class OneRefusal(NoRefusals):
    """Turns the reply of a site away when it has looked twice."""

    def __init__(self, site: str) -> None:
        self._site = site
        self._looked = 0

    def since(self, number: int) -> Sequence[RefusedRequest]:
        self._looked += 1
        self.told = [RefusedRequest(at, self._site, "FL-NET-002", "too large") for at in range(1, self._looked - 2)]
        return super().since(number)


def run(
    folder: Path,
    sites: Sequence[Scripted],
    late: Mapping[str, float] | None = None,
    *,
    rounds: int = 2,
    refused: str = "",
) -> tuple[Arrays, RunState]:
    """Trains with these sites; returns parameters and the state."""
    chosen, clock = task(rounds), Time()
    names = {node: site.name for node, site in enumerate(sites, 100)}
    seconds = {node: (late or {}).get(name, 0.0) for node, name in names.items()}
    grid = TimedGrid({n: Node(relay(s), {SITE_KEY: s.name}) for n, s in enumerate(sites, 100)}, seconds, clock)
    around = Surroundings(rehearsal_directory(names), refusals=OneRefusal(refused) if refused else NoRefusals())
    plan = RunPlan(run_id="run-1", task=chosen, seed=3, private=False, expected_sites=len(sites), durable=False)
    journal = RunJournal(folder, durable=False)

    def connect(attempt: int) -> Exchange:
        return Exchange(
            grid,
            KEY,
            around,
            run_id="run-1",
            attempt=attempt,
            task_digest=chosen.digest,
            clock=clock,
            now_unix=lambda: 0.0,
        )

    trained = RunDriver(plan, journal, model_of(chosen, 3), connect, clock=clock).train()
    return {name: array for name, array in trained.items() if not name.startswith("scaler.")}, journal.state


def nan(answer: Answer, arrays: Arrays) -> Arrays:
    return {name: np.full_like(array, math.nan) for name, array in arrays.items()}


def wrong_shape(answer: Answer, arrays: Arrays) -> Arrays:
    return {name: array[:1] for name, array in arrays.items()}


def norm_of_a_billion(answer: Answer, arrays: Arrays) -> Arrays:
    length = math.sqrt(sum(float(np.sum(array**2)) for array in arrays.values()))
    return {name: array * np.float32(1e9 / length) for name, array in arrays.items()}


def other_round(answer: Answer, arrays: Arrays) -> Arrays:
    answer.round += 1
    return arrays


def lower_attempt(answer: Answer, arrays: Arrays) -> Arrays:
    answer.attempt -= 1
    return arrays


def other_instruction(answer: Answer, arrays: Arrays) -> Arrays:
    answer.instruction_digest = bytes(32)
    return arrays


def two_generations_old(answer: Answer, arrays: Arrays) -> Arrays:
    answer.protocol = PROTOCOL + 2
    return arrays


def other_name(answer: Answer, arrays: Arrays) -> Arrays:
    answer.site = "site-0"
    return arrays


def refuses(answer: Answer, arrays: Arrays) -> Arrays:
    answer.refusal.CopyFrom(Refusal(code="FL-PRIV-002"))
    return {}


def refuses_blindly(answer: Answer, arrays: Arrays) -> Arrays:
    answer.refusal.CopyFrom(Refusal(code="FL-TRUST-001", fields={"reason": "expired"}))
    answer.run_id, answer.attempt, answer.round, answer.instruction_digest = "", 0, 0, b""
    return {}


def raises(answer: Answer, arrays: Arrays) -> Arrays:
    raise RuntimeError("this text must not cross the wire")


DEAD, SLOW = {"bad": math.inf}, {"bad": DEADLINE + 10}
Row = tuple[str, Scripted, Mapping[str, float], str, str]
ROWS: tuple[Row, ...] = (
    ("dead", Scripted("bad"), DEAD, "FL-RUN-010", "no answer within 20 s"),
    ("slow beyond the deadline", Scripted("bad"), SLOW, "FL-RUN-010", "no answer within 20 s"),
    ("NaN", Scripted("bad", nan), {}, "FL-UPD-001", "not finite"),
    ("a wrong shape", Scripted("bad", wrong_shape), {}, "FL-UPD-001", "has shape"),
    ("a norm of 1e9", Scripted("bad", norm_of_a_billion), {}, "FL-UPD-001", "norm 1e\\+09"),
    ("signed with another site's key", Scripted("bad", key=rehearsal_key("site-0")), {}, "FL-TRUST-011", "not signed"),
    ("unsigned", Scripted("bad", signs=False), {}, "FL-TRUST-011", "not signed|cannot be read"),
    ("of another site", Scripted("bad", other_name), {}, "FL-TRUST-011", "names site"),
    ("of another round", Scripted("bad", other_round), {}, "FL-UPD-001", "round"),
    ("of a lower attempt", Scripted("bad", lower_attempt), {}, "FL-UPD-001", "attempt 0"),
    ("of another instruction", Scripted("bad", other_instruction), {}, "FL-UPD-001", "another instruction"),
    ("two generations apart", Scripted("bad", two_generations_old), {}, "FL-TRUST-009", "generation"),
    ("refuses", Scripted("bad", refuses), {}, "FL-PRIV-002", "refused"),
    ("could not read the question", Scripted("bad", refuses_blindly), {}, "FL-TRUST-001", "expired"),
    ("its app raises", Scripted("bad", raises), {}, "FL-RUN-011", "Flower error 2"),
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    """What the good sites alone train."""
    return run(tmp_path_factory.mktemp("alone"), [Scripted(name) for name in GOOD])[0]


def same(one: Arrays, other: Arrays) -> bool:
    return all(one[name].tobytes() == array.tobytes() for name, array in other.items())


@pytest.mark.parametrize(("what", "bad", "late", "code", "reason"), ROWS, ids=[row[0] for row in ROWS])
def test_one_of_five_is_left_out_by_name_and_the_round_closes(
    what: str, bad: Scripted, late: Mapping[str, float], code: str, reason: str, alone: Arrays, tmp_path: Path
) -> None:
    trained, state = run(tmp_path, [*(Scripted(name) for name in GOOD), bad], late)
    assert same(trained, alone)
    assert [closed.folded for closed in state.rounds] == [GOOD, GOOD]
    for closed in state.rounds:
        assert closed.asked == ("bad", *GOOD)
        (out,) = closed.left_out
        assert (out.site, out.round, out.code, out.for_good) == ("bad", closed.round, code, False)
        assert re.search(reason, out.reason)
        assert "must not cross" not in out.reason
        assert out.bytes_out > 0
        assert {took.site for took in closed.took} == set(GOOD)
        assert all(took.bytes_in > 0 and took.bytes_out > 0 for took in closed.took)
        assert closed.waiting_seconds == pytest.approx(DEADLINE if late else 0.0, abs=0.1)


def test_a_reply_that_the_front_turned_away_is_named_at_once(alone: Arrays, tmp_path: Path) -> None:
    sites = [*(Scripted(name) for name in GOOD), Scripted("bad")]
    trained, state = run(tmp_path, sites, DEAD, refused="bad")
    assert same(trained, alone)
    for closed in state.rounds:
        assert [(out.site, out.code, out.reason) for out in closed.left_out] == [("bad", "FL-NET-002", "too large")]
        assert closed.waiting_seconds < DEADLINE / 2


def test_an_update_of_zeros_is_an_update(tmp_path: Path) -> None:
    def zeros(answer: Answer, arrays: Arrays) -> Arrays:
        return {name: np.zeros_like(array) for name, array in arrays.items()}

    _, state = run(tmp_path, [*(Scripted(name) for name in GOOD), Scripted("still", zeros)])
    assert all("still" in closed.folded and not closed.left_out for closed in state.rounds)


def test_a_ledger_that_went_back_is_left_out_for_good(alone: Arrays, tmp_path: Path) -> None:
    heads = {1: LogHead(sequence=9, digest=b"n" * 32), 2: LogHead(sequence=4, digest=b"f" * 32)}

    def goes_back(answer: Answer, arrays: Arrays) -> Arrays:
        answer.ledger.CopyFrom(heads[answer.round])
        return arrays

    bad = Scripted("bad", goes_back)
    _, state = run(tmp_path, [*(Scripted(name) for name in GOOD), bad], rounds=4)
    assert [closed.folded for closed in state.rounds] == [("bad", *GOOD), GOOD, GOOD, GOOD]
    assert [(out.site, out.round, out.code) for out in state.barred] == [("bad", 2, "FL-PRIV-003")]
    assert "is at entry 4; it was at 9" in state.barred[0].reason
    assert bad.asked == [1, 2]
    assert [closed.asked for closed in state.rounds[2:]] == [GOOD, GOOD]


BEHAVIOURS = {row[0]: row for row in ROWS}


@settings(max_examples=25, deadline=None)
@given(
    chosen=st.lists(st.sampled_from(sorted(BEHAVIOURS)), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_no_mix_of_misdeeds_moves_the_weights(chosen: list[str], order: Any, alone: Arrays) -> None:
    sites = [Scripted(name) for name in GOOD]
    late: dict[str, float] = {}
    for at, what in enumerate(chosen):
        _, row, delays, _, _ = BEHAVIOURS[what]
        name = f"bad-{at}"
        sites.append(Scripted(name, row.misdeed, row.key, row.signs))
        late |= dict.fromkeys([name] if delays else [], next(iter(delays.values()), 0.0))
    order.shuffle(sites)
    with TemporaryDirectory() as folder:
        trained, state = run(Path(folder), sites, late)
    assert same(trained, alone)
    for closed in state.rounds:
        assert closed.folded == GOOD
        assert {out.site for out in closed.left_out} == {f"bad-{at}" for at in range(len(chosen))}
