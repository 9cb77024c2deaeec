"""What Flower's own grid raises over a reply: the bytes of a SuperNode are that site's fault, the way to SuperLink is not."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from flwr.app import Message
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_object_id
from flwr.supercore.run import Run, RunNotRunningException
from flwr.superlink.grid.http_grid import HttpGrid
from google.protobuf.message import DecodeError

from fedloop_core.errors import RunError
from fedloop_server.runs.post import BrokenReply, Post

GARBAGE = b"Message  8\x00not json"
REQUEST = httpx.Request("POST", "https://127.0.0.1/v1/runtime/pull-messages")


class Link:
    """SuperLink as the grid's client sees it: one reply, of one object; each of its calls may fail."""

    def __init__(self, content: bytes, fails: Exception | None = None, at: str = "") -> None:
        self._content = content
        self._fails = fails
        self._at = at
        self.confirmed = 0

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802  Flower's name
        self._fail("PullMessages")
        reply = ProtoMessage()
        reply.metadata.message_id = get_object_id(self._content)
        reply.metadata.reply_to_message_id = request.message_ids[0]
        return PullAppMessagesResponse(
            messages_list=[reply], message_object_trees=[ObjectTree(object_id=reply.metadata.message_id)]
        )

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802
        self._fail("PullObject")
        return PullObjectResponse(object_found=True, object_available=True, object_content=self._content)

    def ConfirmMessageReceived(self, request: object) -> None:  # noqa: N802
        self._fail("ConfirmMessageReceived")
        self.confirmed += 1

    def _fail(self, at: str) -> None:
        if self._fails is not None and at == self._at:
            raise self._fails


def post_over(link: Link) -> Post:
    grid = HttpGrid(token="none")  # noqa: S106
    grid.set_run(Run.create_empty(1))
    grid._client = link  # type: ignore[assignment]
    return Post(grid, None)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(GARBAGE, id="no message"),
        pytest.param(b"Message  0\x00", id="a message of nothing"),
        pytest.param(b"RecordDict  8\x00not json", id="records that are none"),
        pytest.param(b"ArrayRecord  2\x00{}", id="another kind of object"),
        pytest.param(b"Array  2\x00{}", id="an array without anything"),
    ],
)
def test_a_reply_that_flower_cannot_inflate_is_broken_and_was_taken(content: bytes) -> None:
    link = Link(content)
    assert post_over(link).pull("m1") == BrokenReply()
    assert link.confirmed == 1


def unread() -> Exception:
    """As Flower's client says that SuperLink's own answer cannot be read."""
    error = ValueError("Invalid protobuf response payload")
    error.__cause__ = DecodeError("Error parsing message")
    return error


@pytest.mark.parametrize("at", ["PullMessages", "PullObject", "ConfirmMessageReceived"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: httpx.ConnectError("refused"),
        lambda: httpx.ReadTimeout("late"),
        lambda: httpx.HTTPStatusError("busy", request=REQUEST, response=httpx.Response(500, request=REQUEST)),
        lambda: httpx.StreamClosed(),
        lambda: OSError(errno.ENOSPC, "no space"),
        lambda: RuntimeError("Cannot send a request, as the client has been closed."),
        unread,
    ],
    ids=["refused", "late", "status 500", "closed stream", "disk", "closed client", "SuperLink's answer"],
)
def test_what_happens_on_the_way_to_superlink_is_no_fault_of_a_site(make: Callable[[], Exception], at: str) -> None:
    error = make()
    with pytest.raises(type(error)) as raised:
        post_over(Link(GARBAGE, error, at)).pull("m1")
    assert raised.value is error


@pytest.mark.parametrize("error", [RunNotRunningException(), KeyboardInterrupt(), RunError("all workers have ended.")])
def test_an_end_of_the_run_goes_through(error: Any) -> None:
    with pytest.raises(type(error)):
        post_over(Link(GARBAGE, error, "PullMessages")).pull("m1")


def test_a_reply_too_deep_for_flower_is_broken() -> None:
    assert post_over(Link(GARBAGE, RecursionError(), "ConfirmMessageReceived")).pull("m1") == BrokenReply()


def test_what_is_there_is_handed_over() -> None:
    body = ProtoMessage()
    body.metadata.message_type = "train"
    body.error.code = 2
    serialised = body.SerializeToString()
    reply = post_over(Link(b"Message  %d\x00" % len(serialised) + serialised)).pull("m1")
    assert isinstance(reply, Message)
    assert reply.has_error()
