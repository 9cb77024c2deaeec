"""The socket between relay and daemon: the same answers as directly, and peers that misbehave are cut off."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedloop_clients.app import relay
from fedloop_clients.endpoint import Question, Reply
from fedloop_clients.socket_endpoint import SOCKET_VARIABLE, SocketEndpoint, endpoint_from_environment
from fedloop_clients.socket_server import SocketServer
from fedloop_core.arrays import NamedArrays, pack_arrays
from fedloop_core.errors import ProcessFailed, RunError, SettingsInvalid
from fedloop_core.federation.frames import Frame

ME = frozenset({os.getuid()})


@dataclass
class Turner:
    """Answers with the envelope backwards and twice the arrays."""

    asked: list[bytes] = field(default_factory=list)

    def answer(self, question: Question) -> Reply:
        self.asked.append(question.envelope)
        if question.envelope == b"fail":
            raise RunError("a secret of the site")
        if question.envelope == b"crash":
            raise ZeroDivisionError("/a/path/of/the/site")
        doubled = {name: np.add(array, array) for name, array in question.arrays.items()}
        return Reply(question.envelope[::-1], doubled)


@pytest.fixture
def turner() -> Turner:
    return Turner()


@pytest.fixture
def path(tmp_path: Path, turner: Turner) -> Iterator[Path]:
    with SocketServer(tmp_path / "s", turner, allowed_users=ME, connections=2, frame_seconds=0.5):
        yield tmp_path / "s"


def same(left: Reply, right: Reply) -> bool:
    return (
        left.answer == right.answer
        and list(left.arrays) == list(right.arrays)
        and all(
            np.array_equal(a, right.arrays[name]) and a.dtype == right.arrays[name].dtype
            for name, a in left.arrays.items()
        )
    )


arrays = st.dictionaries(
    st.text("abcxyz.", min_size=1, max_size=8),
    st.tuples(st.sampled_from([np.float32, np.int64, np.float64]), st.lists(st.integers(0, 5), max_size=3)).map(
        lambda made: np.ones(made[1], dtype=made[0])
    ),
    max_size=4,
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(envelope=st.binary(max_size=300), content=arrays)
def test_answers_are_the_same_as_directly(path: Path, envelope: bytes, content: NamedArrays) -> None:
    question = Question(envelope, content)
    assert same(SocketEndpoint(path).answer(question), Turner().answer(question))


def test_a_large_model_crosses(path: Path) -> None:
    content = {"w": np.arange(5_000_000, dtype=np.float32)}
    reply = SocketEndpoint(path).answer(Question(b"x", content))
    assert np.array_equal(reply.arrays["w"], content["w"] * 2)


@pytest.mark.parametrize("envelope", [b"fail", b"crash"])
def test_a_failure_says_nothing_of_the_site(path: Path, envelope: bytes) -> None:
    with pytest.raises(ProcessFailed) as caught:
        SocketEndpoint(path).answer(Question(envelope, {}))
    assert "secret" not in str(caught.value)
    assert "/" not in str(caught.value)
    assert SocketEndpoint(path).answer(Question(b"ab", {})).answer == b"ba"


def test_a_daemon_that_is_not_there_is_named_without_its_path(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailed) as caught:
        SocketEndpoint(tmp_path / "none", patience=0.3).answer(Question(b"x", {}))
    assert str(tmp_path) not in str(caught.value)


def test_a_daemon_that_comes_back_is_asked_again(tmp_path: Path) -> None:
    class Ends:
        """Breaks off instead of answering."""

        def answer(self, question: Question) -> Reply:
            closing.start()
            time.sleep(1.0)
            return Reply(b"nobody reads this", {})

    first = SocketServer(tmp_path / "s", Ends(), allowed_users=ME)
    closing = threading.Thread(target=first.close)
    got: list[Reply] = []
    asking = threading.Thread(
        target=lambda: got.append(SocketEndpoint(tmp_path / "s", patience=30.0).answer(Question(b"ab", {})))
    )
    asking.start()
    first._thread.join()
    closing.join()
    with SocketServer(tmp_path / "s", Turner(), allowed_users=ME):
        asking.join(30)
    assert [reply.answer for reply in got] == [b"ba"]


def test_another_user_is_not_answered(tmp_path: Path, turner: Turner) -> None:
    strangers = frozenset({os.getuid() + 1})
    with SocketServer(tmp_path / "s", turner, allowed_users=strangers), pytest.raises(ProcessFailed):
        SocketEndpoint(tmp_path / "s", patience=0.2).answer(Question(b"x", {}))
    assert turner.asked == []


def frame(kind: str, body: bytes = b"x") -> bytes:
    content = Frame(1, 0, kind, body).to_bytes()
    return struct.pack("!i", len(content)) + content


@pytest.mark.parametrize(
    "sent",
    {
        "nothing": b"",
        "half a length": b"\x00\x00",
        "a length alone": struct.pack("!i", 1000),
        "a huge length": struct.pack("!i", -1) + struct.pack("!Q", 1 << 60),
        "an empty frame": struct.pack("!i", 0),
        "a short frame": struct.pack("!i", 5) + b"abcde",
        "lengths that lie": struct.pack("!i", 40) + b"\xff" * 40,
        "another kind": frame("answer"),
        "a kind that is no text": struct.pack("!i", 31) + struct.pack("=QQHIII", 1, 0, 1, 0, 0, 0) + b"\xff",
        "a pickle": struct.pack("!i", 6) + b"\x80\x04N.  ",
    }.items(),
    ids=lambda row: row[0],
)
def test_a_broken_or_slow_peer_is_cut_off(path: Path, turner: Turner, sent: tuple[str, bytes]) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
        peer.sendall(sent[1])
        peer.settimeout(20)
        with contextlib.suppress(ConnectionError):
            assert peer.recv(100) == b""
    assert turner.asked == []
    assert SocketEndpoint(path).answer(Question(b"ab", {})).answer == b"ba"


def test_idle_peers_do_not_keep_others_out(path: Path) -> None:
    idle = [socket.socket(socket.AF_UNIX) for _ in range(6)]
    for peer in idle:
        peer.connect(str(path))
    try:
        assert SocketEndpoint(path).answer(Question(b"ab", {})).answer == b"ba"
    finally:
        for peer in idle:
            peer.close()


def test_a_peer_that_does_not_take_its_answer_is_cut_off(path: Path) -> None:
    content = Frame(1, 0, "question", b"x", pack_arrays({"w": np.zeros(2_000_000, dtype=np.float32)})).to_bytes()
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
        Connection(os.dup(peer.fileno())).send_bytes(content)
        assert SocketEndpoint(path).answer(Question(b"ab", {})).answer == b"ba"
        time.sleep(1.0)  # longer than a frame may take
        with pytest.raises((EOFError, OSError)), Connection(os.dup(peer.fileno())) as late:
            late.recv_bytes()


def test_the_app_needs_its_socket_only_when_it_is_asked(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.delenv(SOCKET_VARIABLE, raising=False)
    endpoint = endpoint_from_environment()
    relay(endpoint)
    with pytest.raises(SettingsInvalid):
        endpoint.answer(Question(b"x", {}))
    monkeypatch.setenv(SOCKET_VARIABLE, str(path))
    assert endpoint.answer(Question(b"ab", {})).answer == b"ba"
