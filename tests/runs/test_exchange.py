"""The exchange over a grid as Flower's: who is asked at which node, what is asked again, and what ends a question at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from fedloop_core.audit import AuditAction, AuditEntry, AuditHead
from fedloop_core.errors import RunCancelled
from fedloop_core.federation.answers import sign_answer
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.federation.records import array_record, pack, unpack
from fedloop_core.keys import SigningKey, VerifyingKey, unseal
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, CollectMoments, Instruction, LogHead, Moments
from fedloop_server.runs.asked import Patience
from fedloop_server.runs.exchange import Exchange
from fedloop_server.runs.heads import LedgerHead, MemoryHeads
from fedloop_server.runs.replies import SiteAnswer, SiteFailure
from fedloop_server.runs.surroundings import RefusedRequest, SiteKey, Surroundings
from fedloop_simulations.flower_internals import Run, as_server, set_message_id
from fedloop_simulations.keys import rehearsal_key

KEY = SigningKey.generate()
DEADLINE = 60.0
LEDGER = LogHead(sequence=5, digest=b"l" * 32)


class Time:
    """Every look at the clock takes ten milliseconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.01
        return self.now


@dataclass
class Office:
    """A directory that changes."""

    sites: dict[int, str]
    others: set[str] = field(default_factory=set)  # active, without a node

    def nodes(self) -> dict[int, SiteKey]:
        return {node: SiteKey(site, rehearsal_key(site).verifying) for node, site in self.sites.items()}

    def active(self) -> frozenset[str]:
        return frozenset({*self.sites.values(), *self.others})


class FarGrid(Grid):
    """Nodes that answer, unless there are errors left that they give first; ``silent`` ones never do."""

    def __init__(self, office: Office) -> None:
        as_server(1)
        self.office = office
        self.there = list(office.sites)
        self.errors: dict[int, list[int]] = {}
        self.silent: set[int] = set()
        self.lost: set[str] = set()  # messages without a reply
        self.refuses_messages = 0
        self.pushed: list[tuple[int, bytes]] = []
        self.pulled: list[str] = []
        self.on_push: Callable[[], None] = lambda: None
        self._waiting: dict[str, Message] = {}
        self._run = Run.create_empty(1)

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return self.there

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        if self.refuses_messages:
            self.refuses_messages -= 1
            return []
        identifiers = []
        for message in messages:
            identifier = f"m{len(self.pushed)}"
            set_message_id(message, identifier)
            self.pushed.append((message.metadata.dst_node_id, unpack(message.content)[0]))
            self._waiting[identifier] = message
            identifiers.append(identifier)
        self.on_push()
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        for identifier in message_ids:
            self.pulled.append(identifier)
            message = self._waiting.get(identifier)
            if message is None or identifier in self.lost or message.metadata.dst_node_id in self.silent:
                continue
            del self._waiting[identifier]
            errors = self.errors.get(message.metadata.dst_node_id, [])
            yield Message(Error(errors.pop(0)), reply_to=message) if errors else self._answered(message)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    def _answered(self, message: Message) -> Message:
        site = self.office.sites[message.metadata.dst_node_id]
        instruction, sealed = unseal(unpack(message.content)[0], KEY.verifying, site=site, now_unix=0)
        answer = Answer(
            run_id=instruction.run_id,
            attempt=instruction.attempt,
            round=instruction.round,
            site=site,
            instruction_digest=sealed,
            protocol=PROTOCOL,
            ledger=LEDGER,
            moments=Moments(),
            arrays_digest=instruction.arrays_digest,
        )
        if instruction.HasField("audit"):
            answer.audit.CopyFrom(instruction.audit)
        return Message(pack(sign_answer(answer, rehearsal_key(site)), array_record({})), reply_to=message)

    def instruction(self, at: int) -> Instruction:
        """What was pushed."""
        node, envelope = self.pushed[at]
        return unseal(envelope, KEY.verifying, site=self.office.sites[node], now_unix=0)[0]


@dataclass
class Stage:
    """An exchange with everything around it."""

    office: Office = field(default_factory=lambda: Office({1: "east", 2: "north"}))
    patience: Patience = field(default_factory=lambda: Patience(0.1, 0.4, absence=30.0))
    rung: int = 0
    wish: bool = False
    told: list[RefusedRequest] = field(default_factory=list)
    idle: dict[str, float] = field(default_factory=dict)
    kept: dict[str, tuple[bytes, AuditHead]] = field(default_factory=dict)
    heads: MemoryHeads = field(default_factory=MemoryHeads)

    def __post_init__(self) -> None:
        self.grid = FarGrid(self.office)
        self.clock = Time()
        self.exchange = self.connect()

    def connect(self, *, audit: bool = False) -> Exchange:
        around = Surroundings(
            self.office,
            heads=self.heads,
            audit=Log() if audit else None,
            countersignatures=self,
            doorbell=self,
            refusals=self,
            idle=self,
            stop=self,
        )
        return Exchange(
            self.grid,
            KEY,
            around,
            run_id="run-1",
            attempt=2,
            task_digest=b"t",
            clock=self.clock,
            now_unix=lambda: 0.0,
            poll_seconds=0.0,
            patience=self.patience,
        )

    def ring(self) -> None:
        self.rung += 1

    def since(self, number: int) -> list[RefusedRequest]:
        return [refused for refused in self.told if refused.number > number]

    def seconds(self) -> dict[str, float]:
        return self.idle

    def wished(self) -> bool:
        return self.wish

    def keep(self, site: str, signed_answer: bytes, head: AuditHead, key: VerifyingKey | None = None) -> None:
        assert key is not None
        assert key.raw == rehearsal_key(site).verifying.raw
        self.kept[site] = (signed_answer, head)

    def ask(self, *sites: str) -> dict[str, SiteAnswer | SiteFailure]:
        work = {site: Instruction(collect_moments=CollectMoments()) for site in sites or ("east", "north")}
        return {reply.site: reply for reply in self.exchange.ask(3, work, {}, deadline_seconds=DEADLINE)}


class Log:
    """An audit log with one entry."""

    def record(self, actor: str, action: AuditAction, subject: str, **details: str | float) -> AuditEntry:
        raise NotImplementedError

    def head(self) -> AuditHead:
        return AuditHead(7, b"a" * 32)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def failed(reply: SiteAnswer | SiteFailure) -> tuple[str, str]:
    assert isinstance(reply, SiteFailure), reply
    return reply.code, reply.reason


def test_only_sites_of_the_directory_are_there_and_only_while_connected(stage: Stage) -> None:
    stage.grid.there = [1, 2, 77]
    assert stage.exchange.gather(2, 1.0) == ("east", "north")
    stage.grid.there = [2, 77]
    assert stage.exchange.gather(2, 1.0) == ("north",)
    assert stage.exchange.gather(1, 1.0, frozenset({"north"})) == ()


def test_nobody_waits_for_more_sites_than_are_active(stage: Stage) -> None:
    assert stage.exchange.gather(5, math.inf) == ("east", "north")
    assert stage.clock.now < 1


def test_questions_go_out_in_one_push_and_replies_come_in_one_a_pull(stage: Stage) -> None:
    replies = stage.ask()
    assert all(isinstance(reply, SiteAnswer) for reply in replies.values())
    assert sorted(node for node, _ in stage.grid.pushed) == [1, 2]
    assert sorted(stage.grid.pulled) == ["m0", "m1"]
    assert stage.rung == 1


def test_an_instruction_says_who_asks_for_what_and_what_was_seen(stage: Stage) -> None:
    stage.heads.advance({"east": LedgerHead(4, b"k" * 32)})
    stage.exchange = stage.connect(audit=True)
    stage.ask()
    first = stage.grid.instruction(0)
    assert (first.run_id, first.attempt, first.round, first.protocol) == ("run-1", 2, 3, PROTOCOL)
    assert (first.site, first.ledger_seen.sequence, first.ledger_seen.digest) == ("east", 4, b"k" * 32)
    assert (first.audit.sequence, first.audit.digest) == (7, b"a" * 32)
    assert not stage.grid.instruction(1).HasField("ledger_seen")
    stage.exchange.keep()
    assert stage.heads.seen("north") == LedgerHead(5, b"l" * 32)
    assert {site: head for site, (_, head) in stage.kept.items()} == dict.fromkeys(("east", "north"), Log().head())


def test_a_ledger_behind_the_one_that_was_seen_is_refused(stage: Stage) -> None:
    stage.heads.advance(
        {"east": LedgerHead(6, b"k" * 32), "north": LedgerHead(5, b"another entry of this number" + b"!" * 4)}
    )
    replies = stage.ask()
    for site, said in (("east", "at entry 5; it was at 6"), ("north", "another entry 5")):
        reply = replies[site]
        code, reason = failed(reply)
        assert code == "FL-PRIV-003"
        assert said in reason
        assert isinstance(reply, SiteFailure)
        assert reply.for_good


@pytest.mark.parametrize("code", [2, 3, 4, 5, 8])
def test_an_error_that_may_pass_is_asked_again_with_the_same_instruction(stage: Stage, code: int) -> None:
    stage.grid.errors[1] = [code, code, code]
    reply = stage.ask()["east"]
    assert isinstance(reply, SiteAnswer)
    sent = [envelope for node, envelope in stage.grid.pushed if node == 1]
    assert len(sent) == 4
    assert len(set(sent)) == 1
    assert stage.clock.now >= 0.1 + 0.2 + 0.4  # with pauses between
    assert stage.rung == 4
    assert reply.traffic.bytes_out == 4 * len(sent[0])


@pytest.mark.parametrize("code", [0, 1, 6, 7])
def test_an_error_that_does_not_pass_is_not_asked_again(stage: Stage, code: int) -> None:
    stage.grid.errors[1] = [code]
    assert failed(stage.ask()["east"]) == ("FL-RUN-011", f"its client app failed (Flower error {code})")
    assert [node for node, _ in stage.grid.pushed] == [1, 2]


def test_errors_until_the_deadline_are_told(stage: Stage) -> None:
    stage.grid.errors[1] = [8] * 10_000
    code, reason = failed(stage.ask()["east"])
    assert code == "FL-RUN-010"  # also when the last of them comes as the deadline passes
    assert reason.startswith("no answer within 60 s; its client app failed (Flower error 8), asked ")
    assert stage.clock.now >= DEADLINE


def test_an_error_that_comes_after_the_deadline_is_no_answer(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that was killed while it worked: its SuperNode, or Flower for it, may tell so at the very end."""
    stage.grid.errors[1] = [8]
    pull = stage.grid.pull_messages

    def late(message_ids: Iterable[str]) -> Iterator[Message]:
        stage.grid.silent = {1} if stage.clock.now < DEADLINE else set()
        yield from pull(message_ids)

    monkeypatch.setattr(stage.grid, "pull_messages", late)
    code, reason = failed(stage.ask()["east"])
    assert (code, reason) == (
        "FL-RUN-010",
        "no answer within 60 s; its client app failed (Flower error 8), asked 1 times",
    )


def test_a_message_that_flower_does_not_take_is_sent_again(stage: Stage) -> None:
    stage.grid.refuses_messages = 2
    assert all(isinstance(reply, SiteAnswer) for reply in stage.ask().values())


def test_a_silent_site_holds_the_others_not_and_is_told_after_the_deadline(stage: Stage) -> None:
    stage.grid.silent = {1}
    replies = stage.ask()
    assert isinstance(replies["north"], SiteAnswer)
    assert failed(replies["east"]) == ("FL-RUN-010", "no answer within 60 s")
    assert replies["north"].traffic.seconds < 1 < replies["east"].traffic.seconds


def test_a_site_that_waits_although_it_was_asked_is_asked_again(stage: Stage) -> None:
    stage.grid.lost = {"m0", "m2"}
    stage.idle = {"east": 6.0}
    reply = stage.ask("east", "north")["east"]
    assert isinstance(reply, SiteAnswer)
    sent = [envelope for node, envelope in stage.grid.pushed if node == 1]
    assert len(sent) == 3
    assert len(set(sent)) == 1
    idle = stage.patience.idle
    assert 3 * idle <= reply.traffic.seconds < 4 * idle  # after 5 s, and then after 10 s more


def test_the_answer_to_a_message_that_was_taken_for_lost_counts(stage: Stage) -> None:
    stage.grid.lost = {"m0"}
    stage.idle = {"east": 6.0}

    def late() -> None:
        if len(stage.grid.pushed) == 2:
            stage.grid.lost = {"m1"}

    stage.grid.on_push = late
    assert isinstance(stage.ask("east")["east"], SiteAnswer)
    assert len(stage.grid.pushed) == 2


@pytest.mark.parametrize(
    "idle", [{}, {"east": 4.0}, {"north": 60.0}], ids=["works", "just began to wait", "another waits"]
)
def test_a_site_that_may_be_at_work_is_not_asked_again(stage: Stage, idle: dict[str, float]) -> None:
    stage.grid.silent = {1}
    stage.idle = idle
    assert failed(stage.ask()["east"]) == ("FL-RUN-010", "no answer within 60 s")
    assert len(stage.grid.pushed) == 2


def test_a_site_that_is_revoked_meanwhile_fails_at_once(stage: Stage) -> None:
    stage.grid.silent = {1}

    def revoke() -> None:
        stage.office.sites.pop(1, None)

    stage.grid.on_push = revoke
    reply = stage.ask()["east"]
    assert failed(reply)[0] == "FL-TRUST-008"
    assert "it was revoked" in failed(reply)[1]
    assert isinstance(reply, SiteFailure)
    assert reply.for_good
    assert stage.clock.now < 5


def test_a_site_that_joins_anew_is_followed_to_its_new_node(stage: Stage) -> None:
    stage.grid.silent = {1}

    def join_anew() -> None:
        if 1 in stage.office.sites:
            stage.office.sites = {2: "north", 9: "east"}
            stage.grid.there = [1, 2, 9]

    stage.grid.on_push = join_anew
    assert isinstance(stage.ask()["east"], SiteAnswer)
    assert [node for node, _ in stage.grid.pushed] == [1, 2, 9]


def test_a_site_without_a_connection_is_waited_for_and_asked_when_it_is_back(stage: Stage) -> None:
    stage.exchange.gather(2, 1.0)
    stage.grid.there = [2]
    stage.grid.on_push = lambda: stage.grid.there.append(1) if 1 not in stage.grid.there else None
    assert isinstance(stage.ask()["east"], SiteAnswer)
    assert [node for node, _ in stage.grid.pushed] == [2, 1]


def test_a_site_that_stays_away_is_given_up_before_the_deadline(stage: Stage) -> None:
    stage.exchange.gather(2, 1.0)
    stage.grid.there = [2]
    assert failed(stage.ask()["east"]) == ("FL-RUN-010", "it is not connected")
    assert 30 <= stage.clock.now < DEADLINE
    before = stage.clock.now
    assert failed(stage.ask()["east"]) == ("FL-RUN-010", "it is not connected")  # and not waited for again
    assert stage.clock.now - before < 5


def test_a_site_that_was_never_active_comes_first_and_is_not_asked(stage: Stage) -> None:
    replies = stage.ask("west", "north")
    assert list(replies) == ["west", "north"]
    assert failed(replies["west"])[0] == "FL-TRUST-008"
    assert [node for node, _ in stage.grid.pushed] == [2]


def test_what_the_front_turned_away_is_a_failure_at_once_and_old_refusals_are_not(stage: Stage) -> None:
    stage.told = [RefusedRequest(3, "north", "FL-NET-002", "an earlier one")]
    stage.exchange = stage.connect()
    stage.grid.silent = {1}
    stage.grid.on_push = lambda: stage.told.append(RefusedRequest(4, "east", "FL-NET-002", "the reply is too large"))
    replies = stage.ask()
    assert failed(replies["east"]) == ("FL-NET-002", "the reply is too large")
    assert isinstance(replies["north"], SiteAnswer)
    assert stage.clock.now < 5
    stage.grid.silent = set()
    stage.grid.on_push = lambda: None
    assert isinstance(stage.ask()["east"], SiteAnswer)  # the refusal was of the question before


def test_a_site_that_its_clock_keeps_out_is_named_so_until_it_is_connected_again(stage: Stage) -> None:
    ahead = "its clock is 10 s ahead of the coordinator's"
    assert isinstance(stage.ask()["east"], SiteAnswer)
    stage.grid.there = [2]
    stage.clock.now += 1
    stage.told.append(RefusedRequest(1, "east", "FL-TRUST-010", ahead))
    assert failed(stage.ask()["east"]) == ("FL-TRUST-010", ahead)  # at once, and not when it has been away for long
    assert failed(stage.ask()["east"]) == ("FL-TRUST-010", ahead)
    assert stage.clock.now < 5
    stage.grid.there = [1, 2]
    assert isinstance(stage.ask()["east"], SiteAnswer)
    stage.grid.there = [2]
    stage.clock.now += 1
    assert failed(stage.ask()["east"]) == ("FL-RUN-010", "it is not connected")  # that was another time


def test_a_wish_to_stop_ends_the_wait(stage: Stage) -> None:
    stage.grid.silent = {1, 2}

    def wish() -> None:
        stage.wish = True

    stage.grid.on_push = wish
    with pytest.raises(RunCancelled):
        stage.ask()
    assert stage.clock.now < 5
    with pytest.raises(RunCancelled):
        stage.exchange.gather(2, 100.0)
