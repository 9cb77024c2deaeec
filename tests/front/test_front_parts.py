"""The front's decisions apart from its sockets, and what it knows of Flower."""

from __future__ import annotations

import asyncio
import itertools
import logging
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.common import constant as flower_constants
from flwr.proto import fleet_pb2, message_pb2
from flwr.supercore import constant as supercore_constants
from flwr.supercore.interceptors.http import runtime_version as _version  # noqa: F401  its headers begin with flwr-
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supernode.fleet_http_client import FleetHttpClient
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from fedloop_server.front import Reason
from fedloop_server.front.addresses import address_key
from fedloop_server.front.admission import Head, authenticate, body_length, check_call
from fedloop_server.front.allowed import AllowedNodes, Node
from fedloop_server.front.bodies import CallerGone
from fedloop_server.front.flower_wire import (
    CLOCK_AHEAD_SECONDS,
    CLOCK_BEHIND_SECONDS,
    FLEET_CALLS,
    KEY_HEADER,
    SIGNATURE_HEADER,
    TIME_HEADER,
    Announcement,
    ObjectPushed,
    holds_messages,
    key_header,
    load_node_key,
    read_announcement,
    read_object,
    wanted_objects,
    was_stored,
)
from fedloop_server.front.polls import Polls, Pulled
from fedloop_server.front.refusals import Caller, Denial, RefusalBook
from fedloop_server.front.replies import Arrivals, Replies
from fedloop_server.rates import Bucket, Rates

KEY = ec.generate_private_key(ec.SECP384R1())
NODE = Node("north", key_header(KEY.public_key()), KEY.public_key())
ALLOWED = AllowedNodes(1, {NODE.header: NODE})
NOW = 1_800_000_000.0


def test_flower_is_still_as_the_front_knows_it() -> None:
    """Fails when Flower moves what flower_wire.py relies on."""
    assert supercore_constants.FLEET_HTTP_PUBLIC_KEY_HEADER.encode() == KEY_HEADER
    assert supercore_constants.FLEET_HTTP_SIGNATURE_HEADER.encode() == SIGNATURE_HEADER
    assert flower_constants.TIMESTAMP_HEADER.encode() == TIME_HEADER
    assert flower_constants.SYSTEM_TIME_TOLERANCE == CLOCK_AHEAD_SECONDS
    assert flower_constants.TIMESTAMP_TOLERANCE + flower_constants.SYSTEM_TIME_TOLERANCE >= CLOCK_BEHIND_SECONDS
    assert supercore_constants.FLWR_PACKAGE_VERSION_METADATA_KEY.startswith("flwr-")
    assert key_header(KEY.public_key()) == b64encode(public_key_to_bytes(KEY.public_key()))
    fields: dict[Callable[[], Message], set[str]] = {
        fleet_pb2.PullMessagesResponse: {"messages_list"},
        fleet_pb2.PushMessagesRequest: {"messages_list", "message_object_trees"},
        fleet_pb2.PushMessagesResponse: {"objects_to_push"},
        message_pb2.PushObjectRequest: {"object_id", "object_content"},
        message_pb2.PushObjectResponse: {"stored"},
        message_pb2.ObjectTree: {"object_id", "children"},
        message_pb2.Metadata: {"reply_to_message_id"},
    }
    for message, names in fields.items():
        assert names <= set(message().DESCRIPTOR.fields_by_name)


def test_every_call_of_a_supernode_is_served_but_those_that_register(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: set[str] = set()
    monkeypatch.setattr(FleetHttpClient, "_unary_unary", lambda self, *, path, **_: calls.add(path))
    client = object.__new__(FleetHttpClient)
    for name in vars(FleetHttpClient):
        if name[0].isupper():
            getattr(client, name)(None)
    served = {path.decode() for path in FLEET_CALLS}
    assert calls - served == {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    assert served <= calls


@pytest.mark.parametrize("encoding", ["openssh", "pem", "der"])
def test_a_node_key_is_read_in_every_form(encoding: str) -> None:
    forms = {
        "openssh": (Encoding.OpenSSH, PublicFormat.OpenSSH),
        "pem": (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "der": (Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
    }
    content = KEY.public_key().public_bytes(*forms[encoding])
    assert load_node_key(content) == KEY.public_key()
    document = f'{{"revision": 3, "nodes": {{"{b64encode(content).decode()}": "north"}}, "shut_out": {{}}}}'
    assert AllowedNodes.from_json(document.encode()).nodes == ALLOWED.nodes


def test_a_key_that_cannot_be_read_keeps_nobody_else_out(caplog: pytest.LogCaptureFixture) -> None:
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    bad = b64encode(other.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)).decode()
    good = NODE.header.decode()
    document = f'{{"revision": 3, "nodes": {{"{bad}": "south", "%%": "east", "{good}": "north"}}, "shut_out": {{}}}}'
    with caplog.at_level(logging.ERROR):
        assert set(AllowedNodes.from_json(document.encode()).nodes) == {NODE.header}
    assert "south" in caplog.text
    assert "east" in caplog.text


def head(*more: tuple[bytes, bytes], path: bytes = b"/v1/fleet/get-run", ahead: float = 0.0) -> Head:
    moment = (datetime.fromtimestamp(NOW, UTC) + timedelta(seconds=ahead)).isoformat().encode()
    signature = b64encode(sign_message(KEY, moment))
    signed = ((KEY_HEADER, NODE.header), (TIME_HEADER, moment), (SIGNATURE_HEADER, signature))
    return Head("POST", path, b"", (*signed, *more))


def without(name: bytes, value: bytes | None = None) -> Head:
    kept = tuple((key, old) for key, old in head().headers if key != name)
    return Head("POST", b"/v1/fleet/get-run", b"", kept if value is None else (*kept, (name, value)))


def test_a_signed_call_is_from_its_site() -> None:
    check_call(head())
    assert authenticate(head(), ALLOWED, NOW) is NODE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (KEY_HEADER, None), (KEY_HEADER, b""), (KEY_HEADER, b"x"),
        (SIGNATURE_HEADER, None), (SIGNATURE_HEADER, b""), (SIGNATURE_HEADER, b"%"), (SIGNATURE_HEADER, b"A" * 5000),
        (SIGNATURE_HEADER, b64encode(b"x" * 100)), (TIME_HEADER, None), (TIME_HEADER, b""), (TIME_HEADER, b"yesterday"),
        (TIME_HEADER, b"2026-11-30T12:00:00"), (TIME_HEADER, "2026-11-30T12:00:00+00:00".encode("utf-16")),
    ],
)  # fmt: skip
def test_a_call_with_a_broken_header_is_refused(name: bytes, value: bytes | None) -> None:
    with pytest.raises(Denial) as caught:
        authenticate(without(name, value), ALLOWED, NOW)
    assert (caught.value.status, caught.value.site) == (401, "")


def test_a_site_that_is_shut_out_is_told_by_name_when_it_proves_who_it_is() -> None:
    shut_out = AllowedNodes(2, {}, {NODE.header: NODE})
    with pytest.raises(Denial) as caught:
        authenticate(head(), shut_out, NOW)
    assert (caught.value.status, caught.value.reason, caught.value.site) == (401, Reason.REVOKED, "north")
    with pytest.raises(Denial) as caught:
        authenticate(without(SIGNATURE_HEADER, b64encode(b"x" * 100)), shut_out, NOW)
    assert (caught.value.status, caught.value.reason, caught.value.site) == (401, Reason.SIGNATURE, "")


def test_before_the_list_is_known_the_caller_shall_come_again() -> None:
    with pytest.raises(Denial) as caught:
        authenticate(head(), None, NOW)
    assert (caught.value.status, caught.value.reason) == (503, Reason.NOT_READY)


@given(st.floats(-1000, 1000))
def test_a_clock_is_judged_by_the_signed_time(ahead: float) -> None:
    call = head(ahead=ahead)
    if -CLOCK_BEHIND_SECONDS + 0.01 < ahead < CLOCK_AHEAD_SECONDS - 0.01:
        assert authenticate(call, ALLOWED, NOW) is NODE
    elif not -CLOCK_BEHIND_SECONDS - 0.01 < ahead < CLOCK_AHEAD_SECONDS + 0.01:
        with pytest.raises(Denial) as caught:
            authenticate(call, ALLOWED, NOW)
        assert (caught.value.reason, caught.value.site) == (Reason.CLOCK, "north")
        assert caught.value.seconds == pytest.approx(ahead, abs=0.01)


@given(st.binary(max_size=60))
def test_no_other_path_is_served(path: bytes) -> None:
    with pytest.raises(Denial):
        check_call(Head("POST", b"/v1/" + path, b"", ()))


@pytest.mark.parametrize(
    "headers", [(), ((b"content-length", b"-1"),), ((b"content-length", b"1"), (b"transfer-encoding", b"chunked"))]
)
def test_a_body_needs_a_length(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    with pytest.raises(Denial) as caught:
        body_length(Head("POST", b"/", b"", headers))
    assert caught.value.status == 411


@given(st.lists(st.floats(0, 5), max_size=60), st.floats(0.1, 10), st.integers(1, 10))
def test_a_bucket_never_gives_more_than_burst_and_rate(pauses: list[float], rate: float, burst: int) -> None:
    bucket, now, taken = Bucket(rate, burst, 0.0), 0.0, 0
    for pause in pauses:
        now += pause
        expected = bucket.wait(now) == 0.0
        got = bucket.take(now)
        assert got == expected
        taken += got
    assert taken <= burst + rate * now + 1e-6


def test_after_the_wait_there_is_a_token() -> None:
    bucket = Bucket(2.0, 1, 0.0)
    assert bucket.take(0.0)
    assert not bucket.take(0.0)
    assert bucket.take(bucket.wait(0.0))


def test_rates_forget_who_asked_longest_ago() -> None:
    rates = Rates(0.0, 1, names=2)
    assert rates.take("a", 0.0)
    assert rates.take("b", 0.0)
    assert not rates.take("a", 0.0)
    assert rates.take("c", 0.0)  # b is forgotten
    assert not rates.take("a", 0.0)
    assert rates.take("b", 0.0)
    assert rates.wait("b", 0.0) > 0.0


@pytest.mark.parametrize(
    ("peer", "key"),
    [
        ("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff", "2001:db8::/64"), ("fe80::1%eth0", "fe80::/64"), ("", ""),
    ],
)  # fmt: skip
def test_an_address_is_a_host_or_its_network(peer: str, key: str) -> None:
    assert address_key(peer) == key


def test_refusals_of_sites_are_kept_in_order_and_numbers_rise_across_restarts() -> None:
    now = [1000.0]
    book = RefusalBook(capacity=3, clock=lambda: now[0])
    for number in range(5):
        book.note(Caller("1.2.3.4", "POST", "/" + "x" * 500), Denial(413, Reason.BODY_TOO_LARGE, site=f"s{number}"))
    book.note(Caller("1.2.3.4", "POST", "/"), Denial(401, Reason.KEY))
    kept = book.since(0)
    assert [refusal.site for refusal in kept] == ["s2", "s3", "s4"]
    assert book.since(kept[1].number) == kept[2:]
    assert len(kept[0].path) == 200
    assert book.counts == {Reason.BODY_TOO_LARGE: 5, Reason.KEY: 1}
    now[0] += 1.0
    later = RefusalBook(clock=lambda: now[0])
    later.note(Caller("", "", ""), Denial(413, Reason.BODY_TOO_LARGE, site="s9"))
    assert later.since(0)[0].number > kept[-1].number


def test_a_flood_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    book = RefusalBook(clock=lambda: 1000.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(5000):
            book.note(Caller("1.2.3.4", "POST", "/\n\x1b[0m"), Denial(404, Reason.PATH))
    assert len(caplog.records) == 200
    assert "\x1b" not in caplog.text
    assert book.counts[Reason.PATH] == 5000


def announcement(*objects: str) -> Announcement:
    return Announcement("question", frozenset(objects))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=20))
def test_a_reply_never_brings_more_than_its_limit(pushes: list[tuple[str, int]]) -> None:
    replies = Replies(100, 10, Arrivals(lambda: 0.0))
    replies.open("north", announcement("a", "b", "c"))
    sizes: dict[str, int] = {}
    for name, size in pushes:
        if sum((sizes | {name: size}).values()) > 100:
            with pytest.raises(Denial):
                replies.add("north", ObjectPushed(name, size))
        else:
            replies.add("north", ObjectPushed(name, size))
            sizes[name] = size
        assert sum(sizes.values()) <= 100


def test_objects_that_were_not_announced_are_refused() -> None:
    replies = Replies(100, 2, Arrivals())
    replies.open("north", announcement("a"))
    with pytest.raises(Denial):
        replies.add("north", ObjectPushed("z", 1))
    with pytest.raises(Denial):
        replies.open("north", announcement("a", "b", "c"))
    replies.add("south", ObjectPushed("z", 1))  # announced before the front was restarted


def test_a_reply_is_whole_when_superlink_has_all_that_it_wanted() -> None:
    async def scenario() -> None:
        arrivals = Arrivals(lambda: 5.0)
        replies = Replies(100, 10, arrivals)
        replies.open("north", announcement("a", "b", "c"))
        replies.want("north", frozenset({"a", "b"}))
        begun = await arrivals.since(0, 0.0)
        assert begun.begun == ("question",)
        start = begun.number
        waiting = asyncio.create_task(arrivals.since(start, 30.0))
        await asyncio.sleep(0)
        for name in ("a", "a", "b"):
            assert not waiting.done()
            replies.add("north", ObjectPushed(name, 1))
            replies.stored("north", name)
            await asyncio.sleep(0)
        arrived = await waiting
        assert (arrived.answered, arrived.begun) == (("question",), ())
        replies.stored("north", "b")  # sent again
        assert (await arrivals.since(arrived.number, 0.01)).answered == ()
        replies.open("south", announcement("a"))
        replies.want("south", frozenset())  # SuperLink had everything
        assert (await arrivals.since(arrived.number, 30.0)).answered == ("question",)

    asyncio.run(scenario())


def test_messages_of_flower_are_read() -> None:
    tree = message_pb2.ObjectTree(object_id="a", children=[message_pb2.ObjectTree(object_id="b")])
    message = message_pb2.Message(metadata=message_pb2.Metadata(reply_to_message_id="q"))
    request = fleet_pb2.PushMessagesRequest(messages_list=[message], message_object_trees=[tree])
    assert read_announcement(bytearray(request.SerializeToString()), 10) == Announcement("q", frozenset("ab"))
    assert wanted_objects(fleet_pb2.PushMessagesResponse(objects_to_push=["a"]).SerializeToString()) == {"a"}
    assert was_stored(message_pb2.PushObjectResponse(stored=True).SerializeToString())
    assert not was_stored(b"\xff")
    pushed = message_pb2.PushObjectRequest(object_id="a", object_content=b"123")
    assert read_object(bytearray(pushed.SerializeToString())) == ObjectPushed("a", 3)
    assert not holds_messages(b"")
    assert holds_messages(fleet_pb2.PullMessagesResponse(messages_list=[message]).SerializeToString())


@given(st.binary(max_size=200))
def test_garbage_is_named_or_read(content: bytes) -> None:
    for read in (lambda: read_object(bytearray(content)), lambda: read_announcement(bytearray(content), 10)):
        try:
            read()
        except ValueError:
            continue
    holds_messages(content)


EMPTY = Pulled(200, b"", "", empty=True)
FULL = Pulled(200, b"message", "", empty=False)


async def never() -> None:
    await asyncio.Event().wait()


def test_a_message_that_its_poll_cannot_take_is_kept_for_the_next() -> None:
    async def scenario(second: str) -> None:
        polls = Polls(20.0, 20.0)
        asked, release, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
        asks: list[str] = []

        async def slow() -> Pulled:
            asks.append("first")
            asked.set()
            await release.wait()
            return FULL

        async def quick() -> Pulled:
            asks.append("second")
            return EMPTY

        async def leave() -> None:
            await gone.wait()

        first = asyncio.create_task(polls.pull(NODE, slow, leave, 20.0))
        await asked.wait()
        if second == "the caller has gone":
            gone.set()
            await asyncio.sleep(0.01)
            release.set()
            with pytest.raises(CallerGone):
                await first
            assert await polls.pull(NODE, quick, never, 20.0) == FULL
        else:
            again = asyncio.create_task(polls.pull(NODE, quick, never, 20.0))
            await asyncio.sleep(0.01)
            release.set()
            assert await again == FULL
            with pytest.raises(CallerGone):
                await first
        assert asks == ["first"]
        assert polls.held == 0

    for second in ("the caller has gone", "the node asks anew"):
        asyncio.run(scenario(second))


def test_a_ring_while_superlink_is_asked_is_not_lost() -> None:
    async def scenario() -> None:
        polls = Polls(20.0, 20.0)
        answers = [EMPTY, FULL]

        async def ask() -> Pulled:
            polls.ring()  # the message came just after SuperLink had looked
            return answers.pop(0)

        assert await asyncio.wait_for(polls.pull(NODE, ask, never, 20.0), 5.0) == FULL

    asyncio.run(scenario())


def test_nodes_that_wait_do_not_ask_in_step() -> None:
    async def scenario() -> None:
        polls = Polls(0.6, 0.2)
        times: dict[str, list[float]] = {}
        nodes = [Node(f"s{n}", str(n).encode(), KEY.public_key()) for n in range(20)]

        def asker(site: str) -> Any:
            async def ask() -> Pulled:
                times.setdefault(site, []).append(asyncio.get_running_loop().time())
                return EMPTY

            return ask

        await asyncio.gather(*(polls.pull(node, asker(node.site), never, 20.0) for node in nodes))
        second = [moments[1] for moments in times.values()]
        assert max(second) - min(second) > 0.02
        assert all(b - a >= 0.19 for moments in times.values() for a, b in itertools.pairwise(moments))

    asyncio.run(scenario())


def test_the_signature_is_ecdsa_with_sha256() -> None:
    KEY.public_key().verify(sign_message(KEY, b"x"), b"x", ec.ECDSA(hashes.SHA256()))
