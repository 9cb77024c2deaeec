"""The front as an ASGI application: each request is admitted by its head, read within limits, and passed on."""

from __future__ import annotations

import asyncio
import time

import httpx
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from fedloop_server.front.addresses import address_key
from fedloop_server.front.admission import MEMBERSHIP_CALLS, Head, authenticate, body_length, check_call
from fedloop_server.front.allowed import AllowedNodes, Node
from fedloop_server.front.bodies import BodyBudget, CallerGone, NoRoom, Pace, drain, read_body
from fedloop_server.front.config import FrontConfig
from fedloop_server.front.flower_wire import (
    CLOCK_BEHIND_SECONDS,
    DELIVERY_CALLS,
    PULL_MESSAGES,
    PUSH_MESSAGES,
    PUSH_OBJECT,
    TIME_HEADER,
    read_announcement,
    read_object,
    signed_unix,
    wanted_objects,
    was_stored,
)
from fedloop_server.front.polls import Polls
from fedloop_server.front.refusals import Caller, Denial, Reason, RefusalBook
from fedloop_server.front.replies import Arrivals, Replies
from fedloop_server.front.upstream import ServiceLink, SuperLinkClient, SuperLinkDown
from fedloop_server.membership_http import MEMBERSHIP_BYTES
from fedloop_server.rates import Rates

__all__ = ["FrontApp"]

_PUSHES = frozenset({PUSH_MESSAGES, PUSH_OBJECT})
_SMALL_BODY = 64 * 1024  # of all calls but those that bring a reply; so many connections as are let in may hold one
_LONGEST_TURN = 20.0  # seconds that a site's request waits for its turn
_COME_AGAIN = {429: {"retry-after": "10"}, 503: {"retry-after": "2"}}
_PASSED_BACK = ("content-type", "content-length", "flwr-version-incompatibility-message")


class FrontApp:
    """What strangers reach."""

    def __init__(self, config: FrontConfig, superlink: SuperLinkClient, service: ServiceLink) -> None:
        self._config = config
        self._superlink = superlink
        self._service = service
        self._pace = Pace(config.body_grace_seconds, config.body_bytes_per_second)
        self._budget = BodyBudget(config.buffered_bytes, config.bodies_per_site, config.room_seconds, free=_SMALL_BODY)
        self._membership_budget = BodyBudget(
            config.membership_buffered_bytes, config.memberships_per_address, config.room_seconds
        )
        self.arrivals = Arrivals()
        limits = config.limits
        self._replies = Replies(limits.reply_bytes, config.reply_objects, self.arrivals)
        self._refused = Rates(limits.requests_per_second, limits.burst)
        self._turns = Rates(limits.requests_per_second, limits.burst)
        self._joins = Rates(config.joins_per_second, config.join_burst)
        self.polls = Polls(config.hold_seconds, config.ask_seconds)
        self.book = RefusalBook()
        self.allowed: AllowedNodes | None = None

    def allow(self, allowed: AllowedNodes) -> None:
        """Takes a new list of nodes; those that are gone from it are cut off at once."""
        self.allowed = allowed
        self.polls.keep_only(frozenset(allowed.nodes))
        self._replies.keep_only(frozenset(node.site for node in allowed.nodes.values()))

    async def close(self) -> None:
        """Closes the ways to SuperLink and service."""
        await self._superlink.close()
        await self._service.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            return
        head = Head(scope["method"], scope["raw_path"], scope["query_string"], tuple(scope["headers"]))
        caller = Caller(
            scope["client"][0] if scope["client"] else "", head.method, head.path.decode("ascii", "replace")
        )
        try:
            await self._serve(head, caller, receive, _Answering(scope, receive, send, self._config.reply_seconds))
        except Denial as denial:
            self.book.note(caller, denial)
            await _refuse(denial)(scope, receive, send)
        except SuperLinkDown:
            await _come_again()(scope, receive, send)
        except CallerGone:
            return
        except TimeoutError:  # the answer has begun: all that is left is to break off
            self.book.note(caller, Denial(0, Reason.SLOW_READER))

    async def _serve(self, head: Head, caller: Caller, receive: Receive, answering: _Answering) -> None:
        try:
            check_call(head)
            if head.path in MEMBERSHIP_CALLS:
                await self._membership(head, caller, receive, answering)
                return
            node = authenticate(head, self.allowed, time.time())
        except Denial as denial:
            self._limit_refusals(caller, denial)
            raise
        await self._turn(node)
        length = body_length(head)
        limit = self._config.limits.body_bytes if head.path in _PUSHES else _SMALL_BODY
        if length > limit:
            await drain(receive, length, limit, self._pace)
            raise Denial(413, Reason.BODY_TOO_LARGE, site=node.site)
        if head.path in _PUSHES:
            await answering.copy(await self._push(node, head, length, receive))
            return
        body = await read_body(receive, length, self._pace, site=node.site)
        if head.path == PULL_MESSAGES:
            await self._pull(node, head, body, receive, answering)
            return
        async with self._superlink.call(head, body) as response:
            await answering.stream(response, _status(head, response))

    async def _push(self, node: Node, head: Head, length: int, receive: Receive) -> httpx.Response:
        """Passes a part of a reply on; its room is free again before a slow caller has taken the answer.

        Who finds no room is told so at once and its body is not read: on a slow line that would take minutes, for nothing. A
        SuperNode reads the answer although it is still sending, and comes again.
        """
        try:
            async with self._budget.room(node.site, length):
                body = await read_body(receive, length, self._pace, site=node.site)
                if head.path == PUSH_MESSAGES:
                    return await self._push_reply(node, head, body)
                return await self._push_object(node, head, body)
        except NoRoom as error:
            raise Denial(503, Reason.BUSY) from error

    def _limit_refusals(self, caller: Caller, denial: Denial) -> None:
        """Who is refused often is told to wait; it costs a site nothing that shares the address."""
        now = time.monotonic()
        if denial.reason is not Reason.RATE and not self._refused.take(address_key(caller.peer), now):
            raise Denial(429, Reason.RATE) from denial

    async def _turn(self, node: Node) -> None:
        """Waits for the site's turn: a SuperNode ends itself when it is told 429, so only a flood is."""
        now = time.monotonic()
        waited = 0.0
        while not self._turns.take(node.site, now):
            wait = self._turns.wait(node.site, now)
            if waited + wait > _LONGEST_TURN:
                raise Denial(429, Reason.RATE, site=node.site)
            await asyncio.sleep(wait)
            waited += wait
            now = time.monotonic()

    async def _push_reply(self, node: Node, head: Head, body: bytearray) -> httpx.Response:
        try:
            announcement = read_announcement(body, self._config.reply_objects)
        except ValueError as error:
            raise Denial(400, Reason.MALFORMED, site=node.site) from error
        self._replies.open(node.site, announcement)
        answer = await self._superlink.ask(head, body)
        if answer.status_code == httpx.codes.OK:
            self._replies.want(node.site, wanted_objects(answer.content))
        return answer

    async def _push_object(self, node: Node, head: Head, body: bytearray) -> httpx.Response:
        try:
            pushed = read_object(body)
        except ValueError as error:
            raise Denial(400, Reason.MALFORMED, site=node.site) from error
        self._replies.add(node.site, pushed)
        answer = await self._superlink.ask(head, body)
        if answer.status_code == httpx.codes.OK and was_stored(answer.content):
            self._replies.stored(node.site, pushed.object_id)
        return answer

    async def _pull(self, node: Node, head: Head, body: bytearray, receive: Receive, answering: _Answering) -> None:
        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        # The signature that the poll came with is shown again at each ask, while it is valid.
        longest = CLOCK_BEHIND_SECONDS - (time.time() - signed_unix(head.one(TIME_HEADER) or b""))
        pulled = await self.polls.pull(node, lambda: self._superlink.pull(head, body), gone, longest)
        await answering.whole(Response(pulled.content, pulled.status, media_type=pulled.media_type))

    async def _membership(self, head: Head, caller: Caller, receive: Receive, answering: _Answering) -> None:
        now = time.monotonic()
        if not self._joins.take(address_key(caller.peer), now):
            raise Denial(429, Reason.RATE)
        length = body_length(head)
        if length > MEMBERSHIP_BYTES:
            raise Denial(413, Reason.BODY_TOO_LARGE)
        try:
            async with self._membership_budget.room(address_key(caller.peer), length):
                body = await read_body(receive, length, self._pace)
                answer = await self._service.call(head.path.decode().removeprefix("/v1"), body, caller.peer)
        except NoRoom as error:
            raise Denial(503, Reason.BUSY) from error
        media_type = answer.headers.get("content-type")
        await answering.whole(Response(answer.content, answer.status_code, media_type=media_type))


class _Answering:
    """Sends an answer to a caller that may be slow to take it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, seconds: float) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._seconds = seconds

    async def whole(self, response: Response) -> None:
        async with asyncio.timeout(self._seconds):
            await response(self._scope, self._receive, self._send)

    async def copy(self, response: httpx.Response) -> None:
        await self.whole(Response(response.content, response.status_code, _passed_back(response)))

    async def stream(self, response: httpx.Response, status: int) -> None:
        await self.whole(StreamingResponse(response.aiter_raw(), status, _passed_back(response)))


def _passed_back(response: httpx.Response) -> dict[str, str]:
    return {name: response.headers[name] for name in _PASSED_BACK if name in response.headers}


def _status(head: Head, response: httpx.Response) -> int:
    """Gone instead of forbidden, for a part of a message whose run has ended.

    Told "forbidden", a SuperNode of flwr 1.42 ignores the message, but the client app that it has started answers all the
    same. Each later answer then stays in the SuperNode until the next message comes: a round would wait for ever. Told
    anything else, it drops the message and its client app.
    """
    if response.status_code == httpx.codes.FORBIDDEN and head.path in DELIVERY_CALLS:
        return httpx.codes.GONE
    return response.status_code


def _refuse(denial: Denial) -> Response:
    headers = {"connection": "close"} | _COME_AGAIN.get(denial.status, {})
    return Response("refused\n", denial.status, headers, media_type="text/plain")


def _come_again() -> Response:
    return Response("not now\n", 503, {"retry-after": "1"}, media_type="text/plain")
