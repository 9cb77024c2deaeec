"""What every grid on this machine promises, over this process and over workers."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message

from fedloop_clients.app import SITE_KEY, relay
from fedloop_core.federation.records import DESCRIBE, EVALUATE, MOMENTS, TRAIN, array_record, pack, unpack
from fedloop_simulations.grid import InProcessGrid, LocalGrid, Node
from fedloop_simulations.worker_grid import WorkerGrid

NAMES = {7: "a", 8: "b", 9: "raises", 10: "c"}


@pytest.fixture(scope="module", params=["in process", "workers"])
def grid(request: pytest.FixtureRequest, sites: ModuleType) -> Iterator[LocalGrid]:
    if request.param == "in process":
        yield InProcessGrid({node: Node(relay(sites.echo(name)), {SITE_KEY: name}) for node, name in NAMES.items()})
        return
    with WorkerGrid(NAMES, sites.echo, 2) as grid:
        yield grid


def pull(grid: LocalGrid, identifiers: list[str]) -> list[Message]:
    replies: list[Message] = []
    while len(replies) < len(identifiers):
        replies.extend(grid.pull_messages(identifiers))
        grid.wait(0.01)
    return replies


def test_every_node_is_there(grid: LocalGrid) -> None:
    assert list(grid.get_node_ids()) == list(NAMES)
    assert [node.node_id for node in grid.get_nodes()] == list(NAMES)


def test_a_reply_belongs_to_its_question_and_is_handed_over_once(grid: LocalGrid) -> None:
    arrays: dict[str, Any] = {
        "x": np.arange(3, dtype=np.float32),
        "y": np.zeros((0, 2)),
        "z": np.array(7, dtype=np.uint8),
    }
    identifiers = list(
        grid.push_messages([Message(pack(b"for", array_record(arrays)), node, TRAIN) for node in (7, 8)])
    )
    for node, identifier in reversed(list(zip((7, 8), identifiers, strict=True))):
        (reply,) = pull(grid, [identifier])
        body, back = unpack(reply.content)
        assert body.startswith(f"for {NAMES[node]} ".encode())
        assert list(back) == list(arrays)
        assert all(back[name].tobytes() == array.tobytes() for name, array in arrays.items())
        assert all((back[name].dtype, back[name].shape) == (a.dtype, a.shape) for name, a in arrays.items())
        assert reply.metadata.reply_to_message_id == identifier
        assert (reply.metadata.src_node_id, reply.metadata.message_type) == (node, TRAIN)
    assert list(grid.pull_messages([*identifiers, "never sent"])) == []


@pytest.mark.parametrize("kind", [DESCRIBE, MOMENTS, TRAIN, EVALUATE])
def test_every_kind_of_question_reaches_the_site(grid: LocalGrid, kind: str) -> None:
    (reply,) = grid.send_and_receive([Message(pack(b"", ArrayRecord()), 7, kind)])
    assert unpack(reply.content)[0].startswith(b" a ")


def test_a_site_keeps_its_state_and_is_asked_in_order(grid: LocalGrid) -> None:
    replies = grid.send_and_receive([Message(pack(b"%d" % at, ArrayRecord()), 10, TRAIN) for at in range(12)])
    assert [unpack(reply.content)[0] for reply in replies] == [b"%d c %d" % (at, at + 1) for at in range(12)]


def test_a_site_that_raises_becomes_an_error_reply_and_the_others_answer(grid: LocalGrid) -> None:
    replies = grid.send_and_receive([Message(pack(b"", ArrayRecord()), node, TRAIN) for node in NAMES])
    failed = {reply.metadata.src_node_id: reply.error for reply in replies if reply.has_error()}
    assert {node: error.code for node, error in failed.items()} == {9: 2}
    assert "must not cross" not in str(failed[9].reason)


def test_long_messages_do_not_block_one_another(grid: LocalGrid) -> None:
    arrays = {"x": np.arange(1_000_000, dtype=np.float64)}
    record = array_record(arrays)
    replies = grid.send_and_receive([Message(pack(b"", record), node, TRAIN) for node in (7, 8, 10) * 4])
    assert all(unpack(reply.content)[1]["x"].tobytes() == arrays["x"].tobytes() for reply in replies)


def test_whoever_waits_no_longer_gets_the_replies_that_are_there(grid: LocalGrid) -> None:
    replies = list(grid.send_and_receive([Message(pack(b"", ArrayRecord()), 7, TRAIN)], timeout=0.0))
    assert len(replies) <= 1
