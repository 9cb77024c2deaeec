"""Reading request bodies: no larger, no slower and no more at once than allowed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.types import Receive

from fedloop_server.front.refusals import Denial, Reason

__all__ = ["BodyBudget", "CallerGone", "Pace", "drain", "pieces", "read_body"]

_PIECE = 64 * 1024
_DRAINED = 8  # times the limit: a known sender reads our answer only when it has sent its body


class CallerGone(Exception):
    """The other side has closed the connection."""


@dataclass(frozen=True)
class Pace:
    """A body may take ``grace`` seconds, and one more for each ``bytes_per_second``."""

    grace: float
    bytes_per_second: int

    def deadline(self, started: float, received: int) -> float:
        """When the next piece must be here."""
        return started + self.grace + received / self.bytes_per_second


class BodyBudget:
    """Bytes of bodies that are held at once; who finds no room waits."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._free = total
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Waits for room and gives it back."""
        wanted = min(size, self._total)
        async with self._changed:
            await self._changed.wait_for(lambda: self._free >= wanted)
            self._free -= wanted
        try:
            yield
        finally:
            async with self._changed:
                self._free += wanted
                self._changed.notify_all()


async def read_body(receive: Receive, length: int, pace: Pace, *, site: str = "") -> bytearray:
    """The whole body, held once.

    Raises:
        Denial: it comes too slowly.
        CallerGone: it does not come.
    """
    body = bytearray()
    async for piece in _received(receive, pace, site):
        body += piece
    if len(body) != length:  # the HTTP parser sees to this; a body of another length is never passed on
        raise Denial(400, Reason.HEADERS, site=site)
    return body


async def drain(receive: Receive, length: int, limit: int, pace: Pace) -> None:
    """Reads a body that is refused and forgets it, so that its sender reads the answer instead of trying again.

    Raises:
        Denial: it comes too slowly.
        CallerGone: it does not come.
    """
    if length <= limit * _DRAINED:
        async for _ in _received(receive, pace, ""):
            pass


async def pieces(body: bytearray) -> AsyncIterator[bytes]:
    """A body piece by piece, for a request that goes on."""
    for start in range(0, len(body), _PIECE):
        yield bytes(body[start : start + _PIECE])


async def _received(receive: Receive, pace: Pace, site: str) -> AsyncIterator[bytes]:
    started = asyncio.get_running_loop().time()
    received = 0
    more = True
    while more:
        try:
            async with asyncio.timeout_at(pace.deadline(started, received)):
                message = await receive()
        except TimeoutError as error:
            raise Denial(408, Reason.SLOW_BODY, site=site) from error
        if message["type"] == "http.disconnect":
            raise CallerGone
        piece: bytes = message.get("body", b"")
        received += len(piece)
        more = message.get("more_body", False)
        yield piece
