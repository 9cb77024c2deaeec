"""Which nodes are taken for which sites, over the in-process grid and real Flower messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedloop_core.federation.records import IDENTIFY, pack
from fedloop_core.keys import SigningKey
from fedloop_proto.coordination.v1.coordination_pb2 import DescribeData, Instruction
from fedloop_server.runs.exchange import Exchange, SiteFailure
from fedloop_simulations.grid import InProcessGrid, Node

Identify = Callable[[], RecordDict]


def says(name: bytes) -> Identify:
    return lambda: pack(name, ArrayRecord())


def raises() -> RecordDict:
    raise RuntimeError("broken")


def foreign() -> RecordDict:
    return RecordDict({"somebody-else": ConfigRecord({"name": "east"})})


def text() -> RecordDict:
    return RecordDict({"fedloop": ConfigRecord({"body": "east"})})


def node(identify: Identify) -> Node:
    app = ClientApp()

    @app.query(IDENTIFY.split(".")[1])
    def answer(message: Message, context: Context) -> Message:
        return Message(identify(), reply_to=message)

    return Node(app, {})


class ComingAndGoing(InProcessGrid):
    """A grid of which only some nodes are there at a time."""

    def __init__(self, nodes: Mapping[int, Node], there: Iterable[int]) -> None:
        super().__init__(nodes)
        self.there = list(there)

    def get_node_ids(self) -> Iterable[int]:
        return self.there


def exchange(grid: InProcessGrid) -> Exchange:
    return Exchange(grid, SigningKey.generate(), run_id="run-1", attempt=1, task_digest=b"t", poll_seconds=0.001)


@pytest.mark.parametrize(
    "identify",
    [
        raises,
        foreign,
        text,
        says(b""),
        says(b"North"),
        says(b"../east"),
        says(b"east\n"),
        says(b"\xff\xfe"),
        says("öst".encode()),
        says(b"e" * 64),
        says(b"e" * 1_000_000),
    ],
    ids=[
        "its app raises",
        "records of somebody else",
        "text for bytes",
        "no name",
        "a capital letter",
        "a path",
        "a line break",
        "no text",
        "a letter beyond ASCII",
        "64 letters",
        "a million letters",
    ],
)
def test_a_bad_node_is_left_out_and_stops_nobody(identify: Identify, caplog: pytest.LogCaptureFixture) -> None:
    grid = InProcessGrid({1: node(identify), 2: node(says(b"north")), 3: node(says(b"south"))})
    with caplog.at_level(logging.WARNING, "fedloop_server"):
        assert exchange(grid).gather(3, 0.02) == ("north", "south")
    assert caplog.messages == ["node 1 is left out: it does not say the name of a site"]


def test_nobody_takes_over_the_name_of_a_site_that_is_there(caplog: pytest.LogCaptureFixture) -> None:
    grid = ComingAndGoing({5: node(says(b"north")), 1: node(says(b"north")), 6: node(says(b"south"))}, [5])
    talk = exchange(grid)
    assert talk.gather(1, 0.02) == ("north",)
    grid.there = [1, 5, 6]
    with caplog.at_level(logging.WARNING, "fedloop_server"):
        assert talk.gather(3, 0.02) == ("north", "south")
    assert talk._nodes == {"north": 5, "south": 6}
    assert caplog.messages == ["node 1 is left out: site north is there already, as node 5"]


def test_a_site_that_comes_back_as_another_node_gets_its_name_when_the_old_one_is_gone() -> None:
    grid = ComingAndGoing({5: node(says(b"north")), 7: node(says(b"north"))}, [5])
    talk = exchange(grid)
    talk.gather(1, 0.02)
    grid.there = [5, 7]
    talk.gather(2, 0.02)
    grid.there = [7]
    assert talk.gather(1, 0.02) == ("north",)
    assert talk._nodes == {"north": 7}
    grid.there = []
    assert talk.gather(1, 0.02) == ()


def test_every_site_is_yielded_once_and_those_without_a_node_first() -> None:
    grid = InProcessGrid({1: node(says(b"north"))})
    talk = exchange(grid)
    talk.gather(1, 1.0)
    work = {site: Instruction(describe_data=DescribeData()) for site in ("east", "north", "west")}
    replies = list(talk.ask(0, work, {}, deadline_seconds=1.0))
    assert all(isinstance(reply, SiteFailure) for reply in replies)
    assert [(reply.site, reply.code if isinstance(reply, SiteFailure) else "") for reply in replies] == [
        ("east", "FL-RUN-010"),
        ("west", "FL-RUN-010"),
        ("north", "FL-RUN-011"),
    ]
