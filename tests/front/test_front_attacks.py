"""What strangers try at the front, with nothing but the authority's file: each is refused, logged, and never reaches SuperLink."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest, StopRunRequest
from flwr.proto.fleet_pb2 import PushMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.message_pb2 import Message, ObjectTree, PushObjectRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest

from fedloop_server.front import FrontClient

PULL = "/v1/fleet/pull-messages"


@dataclass(frozen=True)
class Attack:
    name: str
    path: str
    status: int
    reason: str
    method: str = "POST"
    body: bytes = b""


STRANGERS = [
    Attack("starts a run", "/v1/control/start-run", 404, "path", body=StartRunRequest().SerializeToString()),
    Attack("stops a run", "/v1/control/stop-run", 404, "path", body=StopRunRequest(run_id=1).SerializeToString()),
    Attack("registers a node by control", "/v1/control/register-node", 404, "path", body=RegisterNodeRequest().SerializeToString()),
    Attack("lists runs", "/v1/control/list-runs", 404, "path"),
    Attack("registers a node by fleet", "/v1/fleet/register-node", 404, "path", body=RegisterNodeFleetRequest(public_key=b"k").SerializeToString()),
    Attack("unregisters a node", "/v1/fleet/unregister-node", 404, "path"),
    Attack("acquires a task", "/v1/runtime/acquire-task", 404, "path", body=AcquireTaskRequest().SerializeToString()),
    Attack("pulls a task's input", "/v1/runtime/pull-task-input", 404, "path"),
    Attack("reads docs", "/docs", 404, "path", method="GET"),
    Attack("reads redoc", "/redoc", 404, "path", method="GET"),
    Attack("reads openapi", "/openapi.json", 404, "path", method="GET"),
    Attack("reads health", "/health", 404, "path", method="GET"),
    Attack("gets a fleet call", PULL, 404, "path", method="GET"),
    Attack("puts a fleet call", PULL, 404, "path", method="PUT"),
    Attack("asks for options", PULL, 404, "path", method="OPTIONS"),
    Attack("sends a query", f"{PULL}?x=1", 404, "path"),
    Attack("joins an unknown call", "/v1/membership/allowed", 404, "path"),
    Attack("asks for the list of nodes", "/allowed", 404, "path", method="GET"),
    Attack("calls without a key", PULL, 401, "key"),
]  # fmt: skip

TARGETS = {  # written to the socket as they stand: no client makes them canonical
    "encoded slash": "/v1/fleet%2f..%2fcontrol/start-run",
    "encoded letters": "/v1/%66leet/pull-messages",
    "doubled slash": "//v1/fleet/pull-messages",
    "inner doubled slash": "/v1//fleet/pull-messages",
    "dot segments": "/v1/fleet/../control/start-run",
    "encoded dot segments": "/v1/fleet/%2e%2e/control/start-run",
    "dot segment": "/v1/./fleet/pull-messages",
    "backslash": "/v1/fleet\\..\\control\\start-run",
    "trailing slash": "/v1/fleet/pull-messages/",
    "capitals": "/V1/FLEET/pull-messages",
    "parameter": "/v1/fleet/pull-messages;x",
    "absolute address": "https://127.0.0.1/v1/fleet/pull-messages",
    "absolute address of another": "https://127.0.0.1/v1/control/start-run",
    "authority": "127.0.0.1:443",
    "star": "*",
    "null byte": "/v1/fleet/pull-messages%00",
}


def refused_lines(running: Any) -> list[dict[str, Any]]:
    lines = [line.partition("{") for _, line in running.front.lines]
    return [json.loads(brace + rest) for _, brace, rest in lines if '"event": "refused"' in rest]


def asked_of_superlink(running: Any) -> list[str]:
    """Requests in SuperLink's own log but those of its node north."""
    return [line for _, line in running.superlink.lines if '"POST ' in line or '"GET ' in line or '"PUT ' in line]


@pytest.fixture(autouse=True)
def nothing_reaches_superlink(running: Any, request: pytest.FixtureRequest) -> Any:
    before = len(asked_of_superlink(running))
    yield
    if "flood" not in request.node.name:
        assert asked_of_superlink(running)[before:] == []


def last_refusal(running: Any, count: int, wait: Callable[..., Any]) -> dict[str, Any]:
    wait(lambda: len(refused_lines(running)) > count)
    return refused_lines(running)[-1]


def wait(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (answer := what()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return answer


@pytest.mark.parametrize("attack", STRANGERS, ids=[attack.name for attack in STRANGERS])
def test_a_stranger_is_refused(running: Any, attack: Attack) -> None:
    count = len(refused_lines(running))
    with running.client() as client:
        answer = client.request(attack.method, attack.path, content=attack.body)
    assert (answer.status_code, answer.text) == (attack.status, "refused\n")
    line = last_refusal(running, count, wait)
    assert line["reason"] == attack.reason
    assert line["peer"] == "127.0.0.1"
    assert line["path"] == attack.path.partition("?")[0]


@pytest.mark.parametrize("name", TARGETS)
def test_a_tricky_path_is_refused(running: Any, name: str) -> None:
    headers = "".join(f"{key}: {value}\r\n" for key, value in running.north.headers().items())
    with running.connect() as connection:
        connection.sendall(f"POST {TARGETS[name]} HTTP/1.1\r\nhost: x\r\n{headers}content-length: 0\r\n\r\n".encode())
        answer = connection.recv(4096)
    assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))


@pytest.mark.parametrize(
    ("first", "why"),
    {
        "not http": b"\x00\x01\x02\x03\r\n\r\n",
        "a head without end": b"POST / HTTP/1.1\r\n" + b"a: " + b"x" * 40_000,
        "two lengths": b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        "an upgrade": b"GET /v1/runtime HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    }.items(),
)
def test_what_is_not_our_http_is_refused(running: Any, first: str, why: bytes) -> None:
    with running.connect() as connection:
        connection.sendall(why)
        assert connection.recv(4096).startswith((b"HTTP/1.1 400", b"HTTP/1.1 404", b"HTTP/1.1 431"))


def test_a_connection_that_says_nothing_is_closed(running: Any) -> None:
    with running.connect() as silent, running.connect() as slow:
        slow.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhos")
        for connection in (silent, slow):
            connection.settimeout(30.0)
            with contextlib.suppress(ConnectionError):
                assert connection.recv(100) == b""


def test_plain_http_is_not_answered(running: Any) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", running.front_port), timeout=30) as connection:
        connection.sendall(b"GET /docs HTTP/1.1\r\nhost: x\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert not connection.recv(100).startswith(b"HTTP")


def test_old_tls_is_refused(running: Any) -> None:
    import socket
    import ssl
    import warnings

    context = ssl.create_default_context(cafile=str(running.ca))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(("127.0.0.1", running.front_port)) as raw, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(raw, server_hostname="localhost")


@pytest.mark.parametrize("path", ["/v1/fleet/pull-messages", "/v1/fleet/activate-node", "/v1/fleet/push-object"])
def test_an_unknown_key_is_refused(running: Any, new_key: Callable[[], Any], path: str) -> None:
    count = len(refused_lines(running))
    with running.client() as client:
        answer = client.post(path, content=b"", headers=new_key().headers())
    assert answer.status_code == 401
    assert last_refusal(running, count, wait)["reason"] == "key"


def test_a_known_key_with_a_wrong_signature_is_refused(running: Any) -> None:
    count = len(refused_lines(running))
    with running.client() as client:
        answer = running.poll(client, running.north, running.north_id, forged=True)
    assert answer.status_code == 401
    line = last_refusal(running, count, wait)
    assert line["reason"] == "signature"
    assert "site" not in line  # nobody has proved to be north


@pytest.mark.parametrize(("ahead", "told"), [(10.0, True), (-400.0, True), (5.5, True)])
def test_a_site_whose_clock_is_off_is_refused_by_name(running: Any, ahead: float, told: bool) -> None:
    local = FrontClient(running.front_socket)
    seen = max((refusal.number for refusal in local.refusals(0)), default=0)
    with running.client() as client:
        answer = running.poll(client, running.north, running.north_id, ahead=ahead)
    assert answer.status_code == 401
    (refusal,) = local.refusals(seen)
    assert (refusal.site, refusal.reason, refusal.path) == ("north", "clock", PULL)
    assert refusal.seconds == pytest.approx(ahead, abs=2.0)


def push_object(size: int, name: str = "o") -> bytes:
    return PushObjectRequest(run_id=1, object_id=name, object_content=bytes(size)).SerializeToString()


def two_trees() -> bytes:
    return PushMessagesRequest(
        messages_list=[Message()], message_object_trees=[ObjectTree(), ObjectTree()]
    ).SerializeToString()


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        pytest.param("push-object", push_object((1 << 20) + 1), 413, "body-too-large", id="an object beyond the limit"),
        pytest.param("send-node-heartbeat", bytes(70_000), 413, "body-too-large", id="a small call with a large body"),
        pytest.param("push-object", b"\xff" * 1000, 400, "malformed", id="a garbage object"),
        pytest.param("push-object", b"", 400, "malformed", id="an object without a name"),
        pytest.param("push-messages", b"\xff" * 1000, 400, "malformed", id="a garbage reply"),
        pytest.param("push-messages", b"", 400, "malformed", id="an empty reply"),
        pytest.param("push-messages", two_trees(), 400, "malformed", id="a reply with two trees"),
    ],
)
def test_a_site_that_sends_nonsense_is_refused_by_name(
    running: Any, path: str, body: bytes, status: int, reason: str
) -> None:
    local = FrontClient(running.front_socket)
    seen = max((refusal.number for refusal in local.refusals(0)), default=0)
    with running.client() as client:
        answer = client.post(f"/v1/fleet/{path}", content=body, headers=running.north.headers())
    assert (answer.status_code, answer.text) == (status, "refused\n")
    (refusal,) = local.refusals(seen)
    assert (refusal.site, refusal.reason, refusal.path) == ("north", reason, f"/v1/fleet/{path}")


def test_a_slow_body_is_refused(running: Any) -> None:
    local = FrontClient(running.front_socket)
    seen = max((refusal.number for refusal in local.refusals(0)), default=0)
    headers = "".join(f"{key}: {value}\r\n" for key, value in running.north.headers().items())
    with running.connect() as connection:
        connection.sendall(
            f"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\n{headers}content-length: 1000\r\n\r\nabc".encode()
        )
        assert connection.recv(4096).startswith(b"HTTP/1.1 408")
    assert [refusal.reason for refusal in local.refusals(seen)] == ["slow-body"]


def test_a_body_without_length_is_refused(running: Any) -> None:
    def stream() -> Any:
        yield b"abc"

    with running.client() as client:
        answer = client.post("/v1/fleet/push-object", content=stream(), headers=running.north.headers())
    assert answer.status_code == 411


def test_a_header_that_stands_twice_is_refused(running: Any) -> None:
    headers = [*running.north.headers().items(), ("flwr-public-key", "x")]
    with running.client() as client:
        assert client.post(PULL, content=b"", headers=headers).status_code == 400


def test_joins_are_passed_to_the_service_and_limited(running: Any) -> None:
    with running.client() as client:
        answers = [client.post("/v1/membership/join", content=b"hello") for _ in range(5)]
        renewed = client.post("/v1/membership/renew", content=b"again")
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert renewed.status_code == 429
    assert answers[0].content == b"joined"
    assert answers[3].headers["retry-after"]
    assert running.service.joins[0] == ("/membership/join", "127.0.0.1", b"hello")


def test_refusals_are_counted(running: Any) -> None:
    counts = running.health()["refused"]
    assert counts["path"] >= 1


def test_a_flood_is_told_to_wait_and_costs_the_site_behind_the_same_address_nothing(running: Any) -> None:
    with running.client() as client:
        statuses = [client.post("/v1/control/start-run").status_code for _ in range(700)]
        node = running.activate(client, running.north)
    assert set(statuses) == {404, 429}
    assert node == running.north_id
    assert len(refused_lines(running)) < 700  # the log does not grow with the flood


@dataclass(frozen=True)
class Flood:
    """``begin`` opens one connection of it; ``drip`` is sent on each every half second; ``counted`` is told by /healthz."""

    name: str
    begin: Callable[[Any], Any]
    connections: int
    drip: bytes
    counted: str


def dripped_push(running: Any) -> Any:
    return running.begin("/v1/fleet/push-object", 1 << 20, running.north.headers())


def dripped_join(running: Any) -> Any:
    return running.begin("/v1/membership/join", 60_000, {}, address="127.0.0.9")


def silence(running: Any) -> Any:
    return running.connect_raw("127.0.0.9")


def half_a_hello(running: Any) -> Any:
    connection = running.connect_raw("127.0.0.9")
    connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    return connection


def silent(connection: Any) -> bool:
    """Whether the front has not ended it yet."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True


FLOODS = [
    Flood("large bodies of one site that drip", dripped_push, 8, bytes(12_000), "busy"),
    Flood("requests to join that drip", dripped_join, 3, bytes(12_000), "busy"),
    Flood("connections that never say a word", silence, 100, b"", "connections"),
    Flood("connections that stay silent until their time is up", silence, 10, b"", "handshake"),
    Flood("TLS that never goes on", half_a_hello, 10, b"", "handshake"),
]


@contextlib.contextmanager
def kept_up(flood: Flood, running: Any) -> Iterator[None]:
    """Begins anew what the front has ended."""
    over = threading.Event()

    def drip() -> None:
        with contextlib.ExitStack() as opened:
            held = [None] * flood.connections
            while not over.wait(0.5):
                for number, connection in enumerate(held):
                    try:
                        if connection is None:
                            held[number] = opened.enter_context(flood.begin(running))
                        elif flood.drip:
                            connection.sendall(flood.drip)
                        elif not silent(connection):
                            held[number] = None
                    except OSError:
                        held[number] = None

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        yield
    finally:
        over.set()
        dripping.join()


@pytest.mark.parametrize("flood", FLOODS, ids=[flood.name for flood in FLOODS])
def test_a_flood_keeps_nobody_else_out(running: Any, flood: Flood) -> None:
    before = running.health()["refused"].get(flood.counted, 0)
    with kept_up(flood, running):
        wait(lambda: running.health()["refused"].get(flood.counted, 0) > before)
        with running.client() as client:
            client.timeout = httpx.Timeout(10.0)
            assert running.beat(client, running.north, running.north_id) == 200
            assert running.beat(client, running.south, running.south_id) == 200
            assert running.poll(client, running.south, running.south_id).status_code == 200
            answer = client.post("/v1/fleet/push-object", content=push_object(1 << 19), headers=running.south.headers())
            assert answer.status_code not in (408, 413, 503)
            assert client.post("/v1/membership/renew", content=b"again").status_code in (200, 429)  # 429: see above


def test_a_slow_line_gets_through_a_flood_of_others_that_hurry(running: Any) -> None:
    body = push_object(200_000)
    over = threading.Event()

    def hurry() -> None:
        with running.client() as client:
            while not over.is_set():
                client.post("/v1/fleet/push-object", content=push_object(1 << 19), headers=running.north.headers())

    hurrying = [threading.Thread(target=hurry) for _ in range(4)]
    for thread in hurrying:
        thread.start()
    try:
        with running.begin("/v1/fleet/push-object", len(body), running.south.headers()) as slow:
            for start in range(0, len(body), 20_000):
                slow.sendall(body[start : start + 20_000])
                time.sleep(0.4)
            answer = slow.recv(4096)
        assert answer.startswith(b"HTTP/1.1 ")
        assert not answer.startswith((b"HTTP/1.1 503", b"HTTP/1.1 408"))
    finally:
        over.set()
        for thread in hurrying:
            thread.join()
