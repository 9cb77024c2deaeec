"""The way to SuperLink, on loopback and over TLS, and to the service, over its unix socket."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from fedloop_server.front.admission import Head
from fedloop_server.front.bodies import pieces
from fedloop_server.front.flower_wire import holds_messages
from fedloop_server.front.polls import Pulled
from fedloop_server.front.refusals import Denial, Reason
from fedloop_server.membership_http import MEMBERSHIP_MEDIA_TYPE, PEER_HEADER

__all__ = ["ServiceLink", "SuperLinkClient", "SuperLinkDown"]

_CALL = httpx.Timeout(25.0, connect=2.0, pool=10.0)  # a SuperNode gives up after 30 s
_CONNECTIONS = 64
_IDLE_SECONDS = 2.0  # SuperLink closes idle connections after 5 s; ours must not be used at that moment
_ASKS_AT_ONCE = 16
_LARGEST_ANSWER = 1 << 20  # of the service


class SuperLinkDown(Exception):
    """SuperLink, or the service, does not answer: the caller is told to come again."""


class SuperLinkClient:
    """Passes fleet calls on.

    Args:
        port: SuperLink's port on 127.0.0.1.
        authority: PEM of the authority of its certificate.
    """

    def __init__(self, port: int, authority: Path) -> None:
        context = ssl.create_default_context(cafile=str(authority))
        self._client = httpx.AsyncClient(
            base_url=f"https://127.0.0.1:{port}",
            verify=context,
            timeout=_CALL,
            trust_env=False,  # no proxy stands on loopback
            limits=httpx.Limits(
                max_connections=_CONNECTIONS,
                max_keepalive_connections=_CONNECTIONS,
                keepalive_expiry=_IDLE_SECONDS,
            ),
        )
        self._asks = asyncio.Semaphore(_ASKS_AT_ONCE)

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.aclose()

    @asynccontextmanager
    async def call(self, head: Head, body: bytearray) -> AsyncIterator[httpx.Response]:
        """Sends one request; its answer is read as it comes.

        Raises:
            SuperLinkDown: there is no answer.
        """
        request = self._client.build_request(
            "POST", head.path.decode(), headers=_headers(head, body), content=pieces(body)
        )
        try:
            response = await self._client.send(request, stream=True)
        except httpx.TransportError as error:
            raise SuperLinkDown from error
        try:
            yield response
        finally:
            await response.aclose()

    async def ask(self, head: Head, body: bytearray) -> httpx.Response:
        """Sends one request and reads its answer, which must be a small one.

        Raises:
            SuperLinkDown: there is no answer.
        """
        async with self.call(head, body) as response:
            try:
                await response.aread()
            except httpx.TransportError as error:
                raise SuperLinkDown from error
        return response

    async def pull(self, head: Head, body: bytearray) -> Pulled:
        """Asks once for messages.

        Raises:
            SuperLinkDown: there is no answer.
        """
        async with self._asks:
            answer = await self.ask(head, body)
        empty = answer.status_code == httpx.codes.OK and not holds_messages(answer.content)
        return Pulled(answer.status_code, answer.content, answer.headers.get("content-type", ""), empty)


class ServiceLink:
    """Passes requests to join and to renew on to the service."""

    def __init__(self, socket: Path) -> None:
        transport = httpx.AsyncHTTPTransport(uds=str(socket))
        self._client = httpx.AsyncClient(transport=transport, base_url="http://service", timeout=_CALL)

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.aclose()

    async def call(self, path: str, body: bytearray, peer: str) -> httpx.Response:
        """Sends one request; ``path`` begins with /membership.

        Raises:
            SuperLinkDown: the service does not answer.
            Denial: its answer is beyond all measure.
        """
        headers = {PEER_HEADER: peer, "content-type": MEMBERSHIP_MEDIA_TYPE}
        try:
            answer = await self._client.post(path, content=bytes(body), headers=headers)
        except httpx.TransportError as error:
            raise SuperLinkDown from error
        if len(answer.content) > _LARGEST_ANSWER:
            raise Denial(502, Reason.BODY_TOO_LARGE)
        return answer


def _headers(head: Head, body: bytearray) -> list[tuple[bytes, bytes]]:
    passed = [(name, value) for name, value in head.headers if name.startswith(b"flwr-") or name in _PASSED]
    return [*passed, (b"content-length", str(len(body)).encode()), (b"accept-encoding", b"identity")]


_PASSED = frozenset({b"content-type", b"accept"})
