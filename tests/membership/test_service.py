"""The service as a process, what the front asks of it, and what it brings in line with Flower."""

from __future__ import annotations

import base64
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from tests.membership.coordinators import DEADLINE, Coordinator, SiteEnd, wait_until

from fedloop_core.errors import LedgerRolledBack, ProcessFailed, UsageError
from fedloop_proto.membership.v1 import membership_pb2 as messages
from fedloop_server.runs.heads import LedgerHead
from fedloop_server.service.reconcile import Reconciler

Make = Callable[..., Coordinator]


@dataclass(frozen=True)
class Node:
    node_id: int
    status: str = "registered"


class Flower:
    """Stands for Flower's list of nodes: real keys in files, ids and words like Flower's, and nodes that it does not take."""

    def __init__(self) -> None:
        self.keys: dict[int, bytes] = {}
        self.gone: set[int] = set()
        self.refused: set[bytes] = set()
        self.calls = 0

    def register(self, public_key: Path) -> int:
        self.calls += 1
        content = public_key.read_bytes()
        load_ssh_public_key(content)
        if content in self.refused:
            raise ProcessFailed("Flower does not take this node.")
        if content in self.keys.values():
            raise ProcessFailed("`flwr supernode` failed: [code: 23] Public key already in use.")
        node_id = 2**63 + len(self.keys)
        self.keys[node_id] = content
        return node_id

    def unregister(self, node_id: int) -> None:
        if node_id in self.gone or node_id not in self.keys:
            raise ProcessFailed("`flwr supernode` failed: [code: 24] Node ID not found for account.")
        self.gone.add(node_id)

    def nodes(self) -> Sequence[Node]:
        return [Node(node_id, "unregistered" if node_id in self.gone else "online") for node_id in self.keys]


class Failing:
    """A run manager that fails at each look."""

    def __init__(self) -> None:
        self.ticks = 0

    def tick(self) -> None:
        self.ticks += 1
        raise ValueError("what nobody foresaw")


def _ask(coordinator: Coordinator, path: str) -> httpx.Response:
    transport = httpx.HTTPTransport(uds=str(coordinator.home.folder / "sockets" / "service.sock"))
    with httpx.Client(transport=transport, timeout=DEADLINE) as client:
        return client.get(f"http://service{path}")


def test_nodes_are_registered_and_unregistered_each_alone(coordinators: Make) -> None:
    flower, manager = Flower(), Failing()
    coordinator = coordinators()
    coordinator.start(registrar=flower, ticker=manager)
    token = coordinator.invite("south")
    south = SiteEnd("south")
    flower.refused.add(south.node_key + b"\n")
    coordinator.join(token, south.join_request(token.secret))
    coordinator.joined("north")
    record = wait_until(lambda: coordinator.members.site("north").node_id and coordinator.members.site("north"), "node")
    assert record.node_id == 2**63
    assert coordinator.members.site("south").node_id is None
    flower.refused.clear()
    wait_until(lambda: coordinator.members.site("south").node_id, "the other one later")
    coordinator.members.revoke("north", "test")
    wait_until(lambda: flower.gone == {2**63}, "the revoked one is unregistered")
    wait_until(lambda: coordinator.members.site("north").node_id is None, "and that is stored")
    calls = flower.calls
    time.sleep(1.5)
    assert flower.calls == calls
    assert manager.ticks >= 1


def test_what_a_dying_service_did_and_did_not_note_is_found_out(coordinators: Make, tmp_path: Path) -> None:
    coordinator = coordinators().start()
    members, flower = coordinator.members, Flower()
    for name in ("north", "south"):
        coordinator.joined(name)
    look = Reconciler(members, flower, tmp_path / "nodes")
    look.run()
    north, south = members.site("north"), members.site("south")
    assert {north.node_id, south.node_id} == set(flower.keys)
    members.set_node(north.node_key, None)  # as if it had died before it could note the node
    Reconciler(members, flower, tmp_path / "nodes").run()
    assert members.site("north") == north
    for name in ("north", "south"):  # two that are nobody's are not guessed at
        members.set_node(members.site(name).node_key, None)
    Reconciler(members, flower, tmp_path / "nodes").run()
    assert members.site("north").node_id is None
    for site in (north, south):
        members.set_node(site.node_key, site.node_id)
    members.revoke("south", "test")
    assert south.node_id is not None
    flower.unregister(south.node_id)  # and died
    Reconciler(members, flower, tmp_path / "nodes").run()
    assert members.nodes_to_unregister() == ()
    renewed = Flower()  # its state was lost
    Reconciler(members, renewed, tmp_path / "nodes").run()
    assert list(renewed.keys) == [members.site("north").node_id]


def test_the_front_hears_at_once_who_may_speak(coordinator: Coordinator) -> None:
    assert _ask(coordinator, "/healthz").json()["healthy"]
    assert _ask(coordinator, "/allowed").status_code == 400
    assert _ask(coordinator, "/allowed?known=-1").status_code == 400
    site = coordinator.joined("north")
    known = wait_until(lambda: _ask(coordinator, "/allowed?known=0").json(), "a list")
    header = base64.b64encode(coordinator.members.site("north").node_key).decode()
    assert known["nodes"] == {header: "north"}
    assert known["shut_out"] == {}
    heard: list[dict[str, object]] = []
    began = time.monotonic()

    def listen() -> None:
        answer = known
        while answer["nodes"]:
            answer = _ask(coordinator, f"/allowed?known={answer['revision']}").json()
        heard.append(answer)

    listening = threading.Thread(target=listen)
    listening.start()
    time.sleep(0.3)
    coordinator.members.revoke("north", "test")
    listening.join(DEADLINE)
    assert heard
    assert heard[0]["nodes"] == {}
    assert heard[0]["shut_out"] == {header: "north"}
    assert time.monotonic() - began < 10
    assert site.name == "north"


def test_the_socket_is_its_users_and_groups_alone(coordinator: Coordinator) -> None:
    path = coordinator.home.folder / "sockets" / "service.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_ledger_heads_only_rise(coordinator: Coordinator) -> None:
    members = coordinator.members
    coordinator.joined("north")
    assert members.ledger_head("north") is None
    members.advance_ledger_head("north", LedgerHead(5, b"a" * 32))
    members.advance_ledger_head("north", LedgerHead(5, b"a" * 32))
    members.advance_ledger_head("north", LedgerHead(7, b"b" * 32))
    for behind in (LedgerHead(6, b"c" * 32), LedgerHead(7, b"c" * 32), LedgerHead(0, b"")):
        with pytest.raises(LedgerRolledBack):
            members.advance_ledger_head("north", behind)
    members.heads.advance({"north": LedgerHead(6, b"x"), "nobody": LedgerHead(1, b"y")})
    assert members.ledger_head("north") == LedgerHead(7, b"b" * 32)
    coordinator.joined("north")  # keys are new, the ledger is not
    assert members.ledger_head("north") == LedgerHead(7, b"b" * 32)
    with pytest.raises(UsageError):
        members.advance_ledger_head("nobody", LedgerHead(1, b""))


@pytest.fixture
def service_process(coordinators: Make) -> Iterator[tuple[Coordinator, Callable[[], subprocess.Popen[bytes]]]]:
    """A coordinator, and what starts its service as a process."""
    coordinator = coordinators("p")
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "fedloop_server.service", "--home", str(coordinator.home.folder)]
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
        return started[-1]

    yield coordinator, start
    for process in started:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _serves(coordinator: Coordinator) -> bool:
    path = coordinator.home.folder / "sockets" / "service.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if not path.exists() or probe.connect_ex(str(path)) != 0:
            return False
    return _ask(coordinator, "/healthz").status_code == 200


@pytest.mark.slow
def test_the_process_serves_stops_cleanly_and_comes_back_after_a_kill(
    service_process: tuple[Coordinator, Callable[[], subprocess.Popen[bytes]]],
) -> None:
    coordinator, start = service_process
    process = start()
    wait_until(lambda: _serves(coordinator), "the service serves")
    coordinator.open_door()
    site = coordinator.joined("north")
    process.kill()
    process.wait()
    process = start()  # over the socket that the dead one left
    wait_until(lambda: _serves(coordinator), "the service serves again")
    with coordinator.hub(site) as stub:
        for notice in stub.Watch(messages.WatchRequest(protocol=1)):
            assert notice.number == 0
            break
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE) == 0
    assert time.monotonic() - began < 30
    assert not (coordinator.home.folder / "sockets" / "service.sock").exists()


def test_a_service_that_cannot_start_says_why_in_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedloop_server.service", "--home", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 3
    assert "FL-SET-003" in done.stderr
    assert "Traceback" not in done.stderr
