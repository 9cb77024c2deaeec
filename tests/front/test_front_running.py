"""The front while things change under it: certificates, lists of nodes, SuperLink, its own restart."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import resource
import signal
import ssl
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedloop_server.front import FrontClient


@pytest.fixture(scope="module")
def federation(world_in: Any, tmp_path_factory: pytest.TempPathFactory, new_key: Any) -> Iterator[Any]:
    """SuperLink with two registered sites; no SuperNode runs."""
    world = world_in(tmp_path_factory.mktemp("federation"))
    world.superlink = world.start_superlink()
    world.north, world.south = new_key(), new_key()
    world.north_id = world.register("north", world.north)
    world.south_id = world.register("south", world.south)
    yield world
    world.close()


@pytest.fixture
def site(federation: Any) -> Iterator[Any]:
    """The same, with a service that allows nobody yet, and no front."""
    federation.service.start()
    federation.issue("tls", ("localhost", "127.0.0.1"))
    yield federation
    for program in [program for program in federation.programs if program is not federation.superlink]:
        program.stop()
        federation.programs.remove(program)
    federation.service.stop()


def in_background(what: Any, *arguments: Any) -> concurrent.futures.Future[Any]:
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(what(*arguments))
        except BaseException as error:  # noqa: BLE001  handed to whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def asks(site: Any) -> int:
    return sum('"POST /v1/fleet/pull-messages' in line for _, line in site.superlink.lines)


def asks_from_now(site: Any) -> Any:
    before = asks(site)
    return lambda: asks(site) - before


def test_a_poll_is_held_and_answered_empty(site: Any) -> None:
    site.start_front(hold_seconds=3.0, ask_seconds=1.0)
    site.allow(north=site.north)
    asked = asks_from_now(site)
    with site.client() as client:
        started = time.monotonic()
        answer = site.poll(client, site.north, site.north_id)
    assert answer.status_code == 200
    assert not PullMessagesResponse.FromString(answer.content).messages_list
    assert 2.5 < time.monotonic() - started < 20.0
    site.wait(lambda: asked() >= 2)
    assert asked() <= 3


def test_a_revoked_site_is_cut_off_in_a_held_poll_and_the_other_notices_nothing(site: Any) -> None:
    site.start_front()
    site.allow(north=site.north, south=site.south)
    with site.client() as client, site.client() as other:
        assert site.beat(client, site.north, site.north_id) == 200
        held = in_background(site.poll, client, site.north, site.north_id)
        kept = in_background(site.poll, other, site.south, site.south_id)
        site.wait(lambda: site.health()["held"] == 2)
        revoked = time.monotonic()
        site.service.allow({k: s for k, s in site.service.nodes.items() if s == "south"})
        assert held.result(10).status_code == 401
        assert time.monotonic() - revoked < 2.0
        assert not kept.done()
        assert site.poll(client, site.north, site.north_id).status_code == 401
    local = FrontClient(site.front_socket)
    assert {(refusal.site, refusal.reason) for refusal in local.refusals(0)} == {("north", "revoked")}
    assert len(local.refusals(0)) == 2  # of the poll that was held, and of the one after


def test_it_tells_how_long_a_site_has_been_waiting(site: Any) -> None:
    site.start_front()
    site.allow(north=site.north)
    local = FrontClient(site.front_socket)
    assert local.idle_seconds() == {}
    with site.client() as client:
        held = in_background(site.poll, client, site.north, site.north_id)
        site.wait(lambda: local.idle_seconds().get("north", 0.0) > 1.0)
        site.service.allow({})
        assert held.result(10).status_code == 401
    site.wait(lambda: local.idle_seconds() == {})


def test_a_doorbell_makes_each_held_poll_ask_once(site: Any) -> None:
    site.start_front(ask_seconds=15.0)
    site.allow(north=site.north, south=site.south)
    asked = asks_from_now(site)
    with site.client() as client, site.client() as other:
        polls = [
            in_background(site.poll, client, site.north, site.north_id),
            in_background(site.poll, other, site.south, site.south_id),
        ]
        site.wait(lambda: site.health()["held"] == 2 and asked() == 2)
        local = FrontClient(site.front_socket)
        for ring in range(1, 4):
            local.ring()
            site.wait(lambda count=2 + 2 * ring: asked() >= count)
            assert asked() == 2 + 2 * ring
        assert not any(poll.done() for poll in polls)


def test_a_second_poll_of_a_node_takes_the_place_of_the_first(site: Any) -> None:
    site.start_front()
    site.allow(north=site.north)
    with site.client() as client, site.client() as again:
        first = in_background(site.poll, client, site.north, site.north_id)
        site.wait(lambda: site.health()["held"] == 1)
        second = in_background(site.poll, again, site.north, site.north_id)
        assert first.result(10).status_code == 200
        assert not second.done()
        assert site.health()["held"] == 1


def test_a_caller_that_goes_gives_its_place_back(site: Any) -> None:
    site.start_front()
    site.allow(north=site.north)
    with site.client() as client:
        client.timeout = httpx.Timeout(1.0)
        with pytest.raises(httpx.ReadTimeout):
            site.poll(client, site.north, site.north_id)
    site.wait(lambda: site.health()["held"] == 0)


def test_the_certificate_is_replaced_while_connections_go_on(site: Any) -> None:
    front = site.start_front()
    site.allow(north=site.north)

    def serial() -> int:
        with site.connect() as connection:
            number: int = int(connection.getpeercert()["serialNumber"], 16)
            return number

    with site.client() as client:
        before = serial()
        assert site.beat(client, site.north, site.north_id) == 200
        held = in_background(site.poll, client, site.north, site.north_id)
        site.wait(lambda: site.health()["held"] == 1)
        site.issue("tls", ("localhost", "127.0.0.1"))
        site.wait(lambda: serial() != before)
        assert not held.done()
        local = FrontClient(site.front_socket)
        local.ring()
    (site.folder / "tls.pem").write_text("nothing")  # half written: the last one stays
    front.wait_for("cannot be used yet")
    assert serial() != before


def test_another_authority_is_noticed_by_the_caller(site: Any, tmp_path: Path) -> None:
    from fedloop_core.certificates import CertificateAuthority

    site.start_front()
    stranger = tmp_path / "stranger.pem"
    stranger.write_bytes(CertificateAuthority.create("other", int(time.time())).certificate)
    context = ssl.create_default_context(cafile=str(stranger))
    with pytest.raises(httpx.ConnectError):
        httpx.post(f"https://127.0.0.1:{site.front_port}/v1/membership/join", verify=context, trust_env=False)


def test_without_a_list_nobody_is_let_in_and_the_last_list_stays(site: Any) -> None:
    site.service.stop()
    front = site.start_front()
    with site.client() as client:
        answer = site.poll(client, site.north, site.north_id)
        assert answer.status_code == 503  # a SuperNode comes again; 401 would end it
        assert site.health()["ready"] is False
        site.service.start()
        site.allow(north=site.north)
        assert site.beat(client, site.north, site.north_id) == 200
        site.service.stop()
        front.wait_for("the last list stays")
        assert site.beat(client, site.north, site.north_id) == 200


@pytest.mark.slow
def test_while_superlink_is_down_a_site_is_told_to_come_again(site: Any) -> None:
    site.start_front()
    site.allow(north=site.north)
    with site.client() as client:
        assert site.beat(client, site.north, site.north_id) == 200
        site.programs.remove(site.superlink)
        site.superlink.stop()
        answer = site.poll(client, site.north, site.north_id)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        site.superlink = site.start_superlink()
        assert site.poll(client, site.north, site.north_id).status_code == 200


def test_it_ends_cleanly_with_polls_held(site: Any) -> None:
    front = site.start_front()
    site.allow(north=site.north)
    with site.client() as client:
        held = in_background(site.poll, client, site.north, site.north_id)
        site.wait(lambda: site.health()["held"] == 1)
        os.kill(front.process.pid, signal.SIGTERM)
        assert held.result(10).status_code == 200
    assert front.process.wait(20) == 0
    assert not site.front_socket.exists()


def test_large_objects_pass_with_bounded_memory(site: Any) -> None:
    front = site.start_front(buffered_bytes=16 << 20, room_seconds=60.0)
    site.allow(north=site.north)
    body = PushObjectRequest(run_id=1, object_id="o", object_content=bytes(5 << 20)).SerializeToString()

    def peak() -> int:
        status = Path(f"/proc/{front.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) // 1024

    with site.client() as client, concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert site.beat(client, site.north, site.north_id) == 200
        before = peak()

        def push() -> int:
            answer = client.post("/v1/fleet/push-object", content=body, headers=site.north.headers())
            return int(answer.status_code)

        statuses = {future.result() for future in [pool.submit(push) for _ in range(36)]}
    assert len(statuses) == 1
    assert 413 not in statuses
    assert peak() - before < 60


def test_a_supernodes_client_comes_again_when_there_was_no_room(site: Any) -> None:
    site.start_front(bodies_per_site=1, room_seconds=0.2)
    site.allow(north=site.north)
    node = Node(node_id=site.north_id)
    asked = PushObjectRequest(node=node, run_id=1, object_id="o", object_content=bytes(5 << 20))

    class Signs(ProtobufClientInterceptor):
        def intercept(self, context: Any, call_next: Any) -> httpx.Response:
            context.request.headers.update(site.north.headers())
            answer: httpx.Response = call_next(context)
            statuses.append(answer.status_code)
            return answer

    statuses: list[int] = []
    with FleetHttpClient.from_server_address(
        f"127.0.0.1:{site.front_port}",
        False,
        site.ca.read_bytes(),
        [Signs()],
        retry_invoker=make_simple_http_retry_invoker(),
    ) as client:
        with site.begin("/v1/fleet/push-object", 5 << 20, site.north.headers()):
            pushed = in_background(client.PushObject, asked)
            site.wait(lambda: statuses)
        with pytest.raises(httpx.HTTPStatusError):
            pushed.result(60)
    assert statuses[0] == 503
    assert statuses[-1] == 500  # SuperLink's own answer: it knows of no such run


def test_who_is_not_let_in_is_reset(site: Any) -> None:
    """A SuperNode gives up when TLS ends in its middle, and comes again after a reset."""
    site.start_front(connections_per_address=1, handshake_seconds=0.5)
    with site.connect_raw("127.0.0.9") as first, site.connect_raw("127.0.0.9") as second:
        for connection in (second, first):  # one too many; one whose time is up
            with pytest.raises(ConnectionResetError):
                connection.recv(1)


def limits_of(front: Any) -> tuple[int, int]:
    return resource.prlimit(front.process.pid, resource.RLIMIT_NOFILE)


def test_it_takes_as_many_descriptors_as_it_may_and_lets_fewer_connections_in(site: Any) -> None:
    front = site.start_front(ulimit="-Sn 100")
    soft, hard = limits_of(front)
    assert soft == hard > 100
    assert "are let in" not in front.text
    front.stop()
    site.programs.remove(front)
    front = site.start_front(ulimit="-n 290", handshake_seconds=60.0)
    assert limits_of(front) == (290, 290)
    front.wait_for("only 34 connections are let in")
    with contextlib.ExitStack() as opened:
        for _ in range(60):
            opened.enter_context(site.connect_raw("127.0.0.9"))
        site.wait(lambda: site.health()["refused"].get("connections", 0) >= 60 - 34)
        assert open_files(front) < 100
    site.allow(north=site.north)
    with site.client() as client:
        site.wait(lambda: site.beat(client, site.north, site.north_id) == 200)


def test_without_a_free_descriptor_it_waits_quietly(site: Any) -> None:
    front = site.start_front()
    site.allow(north=site.north)
    _, hard = limits_of(front)
    opened = open_files(front)
    resource.prlimit(front.process.pid, resource.RLIMIT_NOFILE, (opened, hard))
    with contextlib.ExitStack() as knocking:
        for _ in range(40):
            knocking.enter_context(site.connect_raw())
        front.wait_for("no connection can be accepted")
        before = processor_seconds(front)
        time.sleep(3.0)
        assert processor_seconds(front) - before < 1.0  # it does not ask again and again
        resource.prlimit(front.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
    with site.client() as client:
        assert site.beat(client, site.north, site.north_id) == 200
    assert front.text.count("no connection can be accepted") <= 2  # once for each listener
    assert "Traceback" not in front.text


def open_files(front: Any) -> int:
    return sum(1 for _ in Path(f"/proc/{front.process.pid}/fd").iterdir())


def processor_seconds(front: Any) -> float:
    fields = Path(f"/proc/{front.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_reply_beyond_the_limit_is_refused_by_name(site: Any) -> None:
    site.start_front(reply_bytes=3 << 20)
    site.allow(north=site.north)
    statuses = []
    with site.client() as client:
        for number in range(4):
            body = PushObjectRequest(run_id=1, object_id=f"{number}", object_content=bytes(1 << 20)).SerializeToString()
            answer = client.post("/v1/fleet/push-object", content=body, headers=site.north.headers())
            statuses.append(answer.status_code)
    assert statuses[3] == 413
    assert 413 not in statuses[:3]
    local = FrontClient(site.front_socket)
    (refusal,) = local.refusals(0)
    assert (refusal.site, refusal.reason) == ("north", "reply-too-large")
    assert local.refusals(refusal.number) == ()


def test_it_runs_out_of_a_coordinators_folder(site: Any) -> None:
    home = site.folder / "home"
    for name in ("front", "sockets"):
        (home / name).mkdir(parents=True)
    for name, copy in {"ca.pem": "authorities.pem", "tls.pem": "tls.pem", "tls.key": "tls.key"}.items():
        (home / "front" / copy).write_bytes((site.folder / name).read_bytes())
    (home / "sockets" / "service.sock").symlink_to(site.service.path)
    address = f"127.0.0.1:{site.front_port}"
    (home / "server.toml").write_text(
        f'format = 1\nname = "c"\npublic_names = ["localhost"]\nsuperlink_port = {site.superlink_port}\n'
        f'[front]\naddress = "{address}"\npublic = "{address}"\n[hub]\naddress = "127.0.0.1:1"\npublic = "localhost:1"\n'
    )
    front = site.start("front", sys.executable, "-m", "fedloop_server.front", "--home", str(home))
    front.wait_for("the front listens")
    site.service.allow({b64encode(site.north.openssh).decode(): "north"})
    with site.client() as client:
        site.wait(lambda: site.beat(client, site.north, site.north_id) == 200)
    assert (home / "sockets" / "front.sock").stat().st_mode & 0o777 == 0o660
    (home / "server.toml").write_text("format = 2\n")
    broken = site.start("front", sys.executable, "-m", "fedloop_server.front", "--home", str(home))
    assert broken.process.wait(60) != 0
    site.wait(lambda: "server.toml" in broken.text)
    assert "Traceback" not in broken.text


def test_a_client_of_a_front_that_is_down_raises_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    local = FrontClient(tmp_path / "no.sock")
    for _ in range(3):
        local.ring()
    assert local.refusals(0) == ()
    assert local.arrivals(7, 0.1).number == 7
    assert len([record for record in caplog.records if "cannot be reached" in record.message]) == 1
