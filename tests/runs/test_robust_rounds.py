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
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata
from flwr.supercore.inflatable.inflatable_object import get_object_id
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, validate_object_content
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runs.scripted_sites import answer_begun

from fedloop_clients.app import SITE_KEY, relay
from fedloop_clients.endpoint import Question, Reply
from fedloop_core.arrays import digest
from fedloop_core.federation.answers import sign_answer
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.keys import SigningKey
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task import Task
from fedloop_core.task.document import FederatedAveraging, LogisticModel, Preprocessing, Privacy, Rounds
from fedloop_proto.coordination.v1.coordination_pb2 import (
    Answer,
    DataDescription,
    Evaluation,
    LocalUpdate,
    LogHead,
    PrivacySpend,
    Refusal,
)
from fedloop_server.runs.driver import RunDriver
from fedloop_server.runs.exchange import Exchange
from fedloop_server.runs.journal import RunJournal
from fedloop_server.runs.model import model_of
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import RunState
from fedloop_server.runs.statement import latest_spends
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


def flower_object(kind: str, body: bytes, *children: bytes) -> bytes:
    """An object as a SuperNode sends it; SuperLink looks at its head and its length, and passes it on."""
    identifiers = ",".join(get_object_id(child) for child in children)
    content = f"{kind} {identifiers} {len(body)}".encode() + b"\x00" + body
    validate_object_content(content)
    return content


class TimedGrid(InProcessGrid):
    """Replies of some nodes come after so many seconds, infinity for never; some are objects of the SuperNode's making."""

    def __init__(
        self,
        nodes: Mapping[int, Node],
        seconds: Mapping[int, float],
        clock: Time,
        made: Mapping[int, tuple[bytes, ...]] | None = None,
    ) -> None:
        super().__init__(nodes)
        self._seconds = seconds
        self._clock = clock
        self._due: dict[str, float] = {}
        self._made = made or {}
        self._replies: dict[str, tuple[bytes, ...]] = {}

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
            if message.metadata.message_type == "train" and self._made.get(message.metadata.dst_node_id):
                self._replies[identifier] = self._made[message.metadata.dst_node_id]
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        due = [i for i in message_ids if self._clock.now >= self._due[i]]
        replies = list(super().pull_messages(due))
        for identifier in due:
            objects = self._replies.pop(identifier, ())
            if objects:
                contents = {get_object_id(content): content for content in objects}
                message: Any = inflate_object_from_contents(get_object_id(objects[0]), contents)  # as HttpGrid does
                message.metadata.__dict__["_message_id"] = "m"
                replies = [message]
        return replies

    def wait(self, seconds: float) -> None:
        self._clock.now += seconds


@dataclass
class Scripted:
    """Trains to an update that depends only on its name and the round; may misbehave when it trains.

    ``made``: what its SuperNode sends instead of the answer; the first object is the reply itself.
    """

    name: str
    misdeed: Misdeed | None = None
    key: SigningKey | None = None
    signs: bool = True
    made: tuple[bytes, ...] = ()
    description: DataDescription = field(default_factory=lambda: described())
    asked: list[int] = field(default_factory=list)

    def answer(self, question: Question) -> Reply:
        instruction, answer = answer_begun(question, self.name, KEY)
        arrays: Arrays = {}
        trains = instruction.HasField("train_locally")
        if trains:
            self.asked.append(instruction.round)
            arrays = update(self.name, instruction.round, question.arrays)
            answer.local_update.CopyFrom(LocalUpdate(weight=10, steps=1))
            if self.misdeed is not None:
                arrays = self.misdeed(answer, arrays)
        else:
            answer.data_description.CopyFrom(self.description)
        if not answer.arrays_digest:
            answer.arrays_digest = digest(arrays)
        if not self.signs and trains:
            return Reply(answer.SerializeToString(), arrays)
        key = self.key if self.key is not None and trains else rehearsal_key(self.name)
        return Reply(sign_answer(answer, key), arrays)


def described(**said: Any) -> DataDescription:
    return DataDescription(**{"admitted": True, "rows": 10, "data_fingerprint": b"f" * 32, **said})


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
    made = {node: site.made for node, site in enumerate(sites, 100)}
    grid = TimedGrid({n: Node(relay(s), {SITE_KEY: s.name}) for n, s in enumerate(sites, 100)}, seconds, clock, made)
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


def says(code: str, **fields: str) -> Misdeed:
    """Refuses in its own words."""

    def misdeed(answer: Answer, arrays: Arrays) -> Arrays:
        answer.refusal.CopyFrom(Refusal(code=code, fields=fields))
        return {}

    return misdeed


def shows(name: str, sequence: int, head: bytes) -> Misdeed:
    """Names a head of a log."""

    def misdeed(answer: Answer, arrays: Arrays) -> Arrays:
        getattr(answer, name).CopyFrom(LogHead(sequence=sequence, digest=head))
        return arrays

    return misdeed


def measures(**found: Any) -> Misdeed:
    """Adds an evaluation."""

    def misdeed(answer: Answer, arrays: Arrays) -> Arrays:
        answer.local_update.evaluation.CopyFrom(Evaluation(present=True, **found))
        return arrays

    return misdeed


RECORDS = flower_object("RecordDict", b"not json")
ARRAYS = flower_object("ArrayRecord", b"{}")
MADE = {
    "no message": (flower_object("Message", b"not json"),),
    "a message of nothing": (flower_object("Message", b""),),
    "no records": (flower_object("Message", b"", RECORDS), RECORDS),
    "half of it": (flower_object("Message", b"", RECORDS),),
    "another kind of object": (ARRAYS,),
    "arrays for records": (
        flower_object("Message", ProtoMessage(metadata=Metadata(message_type="train")).SerializeToString(), ARRAYS),
        ARRAYS,
    ),
}


DEAD, SLOW = {"bad": math.inf}, {"bad": DEADLINE + 10}
HEAD = ("FL-UPD-001", "names a head of its (ledger|audit) log that is none")
NOT_POSSIBLE = ("FL-UPD-001", "the evaluation of bad is not possible")
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
    *((f"sends {what}", Scripted("bad", made=made), {}, "FL-RUN-011", "no message of") for what, made in MADE.items()),
    (
        "refuses with a flood",
        Scripted("bad", says("FL-TRUST-006", rule="A" * 100_000)),
        {},
        "FL-UPD-001",
        "its answer has 100... bytes beside the arrays",
    ),
    (
        "refuses with what a terminal obeys",
        Scripted("bad", says("FL-UPD-001", reason="\x1b]0;pwned\x07\n\u202e" + "A" * 50_000, more="B" * 10_000)),
        {},
        "FL-UPD-001",
        r"^it refused: reason \\x1b\]0;pwned\\x07\\n\\u202eA{70,80}…$",
    ),
    ("refuses with a code of its own", Scripted("bad", says("FL-\x1b", rule="x")), {}, "unknown", "^it refused$"),
    ("says that it was revoked", Scripted("bad", says("FL-TRUST-008")), {}, "FL-TRUST-008", "^it refused$"),
    ("refuses with our own code", Scripted("bad", says("FL-RUN-010")), {}, "unknown", "^it refused$"),
    (
        "a number of its ledger that no database keeps",
        Scripted("bad", shows("ledger", 2**64 - 1, bytes(32))),
        {},
        *HEAD,
    ),
    ("a short digest of its ledger", Scripted("bad", shows("ledger", 4, b"x")), {}, *HEAD),
    ("a short digest of the audit log", Scripted("bad", shows("audit", 4, b"x")), {}, *HEAD),
    ("noise of another scale", Scripted("bad", measures(correct=5, total=9, noise_scale=1e18)), {}, *NOT_POSSIBLE),
    ("more rows than anybody has", Scripted("bad", measures(correct=1e9, total=1e9)), {}, *NOT_POSSIBLE),
    ("counts whose squares are none", Scripted("bad", measures(correct=1e200, total=1e200)), {}, *NOT_POSSIBLE),
    ("more right than rows", Scripted("bad", measures(correct=9, total=5)), {}, *NOT_POSSIBLE),
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
        assert out.reason.isprintable()
        assert len(out.reason) < 200
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


DESCRIPTIONS = {
    "more rows than the task lets in": (described(rows=1_000_001), "FL-DATA-006", True, "maximum-rows .1000001 told"),
    "as many rows as a number holds": (described(rows=2**63 - 1), "FL-DATA-006", True, "maximum-rows"),
    "no fingerprint": (described(data_fingerprint=b""), "FL-UPD-001", False, "fingerprint of 0 bytes"),
    "a short fingerprint": (described(data_fingerprint=b"fff"), "FL-UPD-001", False, "fingerprint of 3 bytes"),
    "a flood for a fingerprint": (
        described(data_fingerprint=bytes(3_000_000)),
        "FL-UPD-001",
        False,
        "beside the arrays",
    ),
    "reasons that are none": (
        described(admitted=False, reasons=["all-classes", "\x1b[2J", "x" * 999, *["y"] * 99]),
        "FL-DATA-006",
        True,
        "^data gate: all-classes, another rule, y$",
    ),
    "no reason": (described(admitted=False), "FL-DATA-006", True, "^data gate: no rule named$"),
}


@pytest.mark.parametrize(("description", "code", "for_good", "reason"), DESCRIPTIONS.values(), ids=list(DESCRIPTIONS))
def test_who_describes_what_cannot_be_is_no_member(
    description: DataDescription, code: str, for_good: bool, reason: str, alone: Arrays, tmp_path: Path
) -> None:
    trained, state = run(tmp_path, [*(Scripted(name) for name in GOOD), Scripted("bad", description=description)])
    assert same(trained, alone)
    assert {member.site for member in state.members} == set(GOOD)
    (out,) = state.left_out
    assert (out.site, out.round, out.code, out.for_good) == ("bad", 0, code, for_good)
    assert re.search(reason, out.reason)


@pytest.mark.parametrize("claim", [math.nan, -5.0])
def test_a_claim_of_spending_that_cannot_be_is_not_kept_and_the_update_counts(claim: float, tmp_path: Path) -> None:
    def claims(answer: Answer, arrays: Arrays) -> Arrays:
        answer.local_update.run_epsilon = claim if answer.round == 1 else 0.5
        answer.local_update.spend.CopyFrom(PrivacySpend(epsilon=1.0, delta=1e-5, budget=2.0))
        return arrays

    _, state = run(tmp_path, [*(Scripted(name) for name in GOOD), Scripted("odd", claims)])
    assert all("odd" in closed.folded for closed in state.rounds)
    assert [[s.run_epsilon for s in closed.spends if s.site == "odd"] for closed in state.rounds] == [[], [0.5]]
    assert latest_spends(state)["odd"].run_epsilon == 0.5


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
        sites.append(Scripted(name, row.misdeed, row.key, row.signs, row.made))
        late |= dict.fromkeys([name] if delays else [], next(iter(delays.values()), 0.0))
    order.shuffle(sites)
    with TemporaryDirectory() as folder:
        trained, state = run(Path(folder), sites, late)
    assert same(trained, alone)
    for closed in state.rounds:
        assert closed.folded == GOOD
        assert {out.site for out in closed.left_out} == {f"bad-{at}" for at in range(len(chosen))}
