"""An exchange sends over Flower's own grids in one request, and to a grid of this machine message by message."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

import pytest
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedloop_clients.app import SITE_KEY, relay
from fedloop_core.keys import SigningKey
from fedloop_proto.coordination.v1.coordination_pb2 import CollectMoments, Instruction
from fedloop_server.runs.exchange import Exchange
from fedloop_server.runs.surroundings import Surroundings
from fedloop_simulations.federation import rehearsal_directory
from fedloop_simulations.flower_internals import Run
from fedloop_simulations.grid import InProcessGrid, Node

NAMES = {7: "a", 8: "b", 9: "c"}


class FarGrid(Grid):
    """As Flower's grids: it has no ``wait``, and it looks at messages twice."""

    def __init__(self, near: InProcessGrid) -> None:
        self.near = near
        self.pushed: list[int] = []

    def set_run(self, run: Run) -> None:
        self.near.set_run(run)

    @property
    def run(self) -> Run:
        return self.near.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return self.near.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self.near.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.pushed.append(sum(1 for _ in messages))
        return self.near.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self.near.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.near.send_and_receive(messages, timeout=timeout)


class CountingGrid(InProcessGrid):
    """Counts the messages of each push."""

    pushed: list[int]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self.pushed.append(len(messages))
        return super().push_messages(messages)


@pytest.mark.parametrize(("far", "pushes"), [(True, [3]), (False, [1, 1, 1])])
def test_questions_go_out_as_the_grid_likes_them(sites: ModuleType, far: bool, pushes: list[int]) -> None:
    near = CountingGrid({node: Node(relay(sites.echo(name)), {SITE_KEY: name}) for node, name in NAMES.items()})
    near.pushed = []
    grid = FarGrid(near) if far else near
    around = Surroundings(rehearsal_directory(NAMES))
    exchange = Exchange(grid, SigningKey.generate(), around, run_id="run-1", attempt=1, task_digest=b"")
    assert exchange.gather(3, 5.0) == ("a", "b", "c")
    work = {name: Instruction(collect_moments=CollectMoments()) for name in NAMES.values()}
    replies = list(exchange.ask(0, work, {}, deadline_seconds=5.0))
    assert sorted(reply.site for reply in replies) == ["a", "b", "c"]
    assert grid.pushed == pushes
