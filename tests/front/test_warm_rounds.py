"""Rounds through all real parts: SuperLink, front, SuperNode, SuperExec, and the relay with its site socket."""

from __future__ import annotations

import json
import logging
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.node_pb2 import Node

from fedloop_clients.endpoint import Question, Reply
from fedloop_clients.relay import write_shim
from fedloop_clients.socket_server import SocketServer

HERE = Path(__file__).parent
_LOG = logging.getLogger(__name__)  # figures: pytest -o log_cli=true -o log_cli_level=INFO
BUNDLE = """
[project]
name = "rounds"
version = "1.0.0"
description = "rounds"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fedloop"
[tool.flwr.app.components]
serverapp = "front_apps:app"
clientapp = "fedloop_clients.app:app"
[tool.flwr.app.config]
front = ""
out = ""
rounds = 1
nodes = 1
size = 10
"""


class Echo:
    """A site that answers at once with what it was asked."""

    def __init__(self) -> None:
        self.questions: list[bytes] = []

    def answer(self, question: Question) -> Reply:
        self.questions.append(question.envelope)
        return Reply(b"answer to " + question.envelope, question.arrays)


def start_run(world: Any, out: Path, **config: Any) -> None:
    bundle = world.folder / "bundle"
    bundle.mkdir(exist_ok=True)
    (bundle / "pyproject.toml").write_text(BUNDLE)
    settings = {"front": str(world.front_socket), "out": str(out)} | config
    words = " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
    world.flwr("run", str(bundle), "x", "--run-config", words)


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def start_site(world: Any, name: str, key: Any, *, warm: bool) -> Any:
    """SuperNode, SuperExec and relay of one site; returns the SuperNode."""
    node, port = world.start_supernode(name, key)
    path = os.pathsep.join((str(Path(sys.executable).parent), "/usr/bin", "/bin"))
    if warm:
        shims = world.folder / f"shim-{name}"
        shims.mkdir()
        write_shim(shims, world.folder / "relay.sock")
        path = f"{shims}{os.pathsep}{path}"
        relay = world.start(
            f"relay-{name}",
            *(sys.executable, "-m", "fedloop_clients.relay_server", "--socket", str(world.folder / "relay.sock")),
            FEDLOOP_SITE_SOCKET=str(world.folder / "site.sock"),
        )
        relay.wait_for("the relay is warm")
        world.relay = relay
    world.node_superexec = world.start_superexec(
        f"exec-{name}", port, secure=False, PATH=path, FEDLOOP_SITE_SOCKET=str(world.folder / "site.sock")
    )
    return node


def seconds_a_round(done: list[dict[str, Any]]) -> float:
    return float(statistics.median(line["ended"] - line["started"] for line in done[1:]))


@pytest.mark.slow
@pytest.mark.parametrize("warm", [False, True], ids=["a process for each call", "a warm relay"])
def test_rounds(world: Any, new_key: Any, warm: bool) -> None:
    key, echo, out = new_key(), Echo(), world.folder / "out.jsonl"
    world.start_superlink()
    world.start_front()
    world.register("north", key)
    world.allow(north=key)
    world.start_superexec("exec", world.superlink_port, secure=True)
    with SocketServer(world.folder / "site.sock", echo, allowed_users=frozenset({os.getuid()})):
        node = start_site(world, "north", key, warm=warm)
        rounds = 6
        start_run(world, out, rounds=rounds, size=1000)
        wait = world.wait
        done = wait(lambda: len(lines(out)) == rounds and lines(out), why=node.text)
    assert [line["answers"] for line in done] == [[f"answer to question {number} 499500"] for number in range(rounds)]
    assert echo.questions == [f"question {number}".encode() for number in range(rounds)]
    received = [moment for moment, line in node.lines if "Receiving: train" in line]
    latencies = [moment - line["pushed"] for moment, line in zip(received, done, strict=True)][1:]
    _LOG.info("warm %s: %.2f s a round, %.3f s to the node", warm, seconds_a_round(done), statistics.median(latencies))
    assert statistics.median(latencies) < 1.0  # without the doorbell it is up to 2 s, without the front up to 3 s
    if warm:
        assert "Traceback" not in world.relay.text


@pytest.mark.slow
def test_a_message_of_a_run_that_ended_is_gone_and_not_forbidden(world: Any, new_key: Any) -> None:
    """Forbidden, the SuperNode would leave its client app to answer, and be one answer behind from then on."""
    key = new_key()
    world.start_superlink()
    world.start_front()
    world.register("north", key)
    world.allow(north=key)
    world.start_superexec("exec", world.superlink_port, secure=True)
    with world.client() as client:
        node = world.activate(client, key)

        def call(name: str, request: Any) -> int:
            answer = client.post(f"/v1/fleet/{name}", content=request.SerializeToString(), headers=key.headers())
            return int(answer.status_code)

        def pulled() -> Any:
            assert world.beat(client, key, node) == 200
            return PullMessagesResponse.FromString(world.poll(client, key, node).content).messages_list

        start_run(world, world.folder / "out.jsonl", rounds=1)
        message = world.wait(pulled, why="the message of the run")[0].metadata
        sender = Node(node_id=node)
        part = PullObjectRequest(node=sender, run_id=message.run_id, object_id=message.message_id)
        confirmation = ConfirmMessageReceivedRequest(
            node=sender, run_id=message.run_id, message_object_id=message.message_id
        )
        assert call("pull-object", part) == 200
        world.flwr("stop", str(message.run_id), "x")
        assert call("pull-object", part) == 410
        assert call("confirm-message-received", confirmation) == 410
