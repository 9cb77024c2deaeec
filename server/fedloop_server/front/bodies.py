"""Reading request bodies: no larger, no slower and no more at once than allowed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.types import Receive

from fedloop_server.front.refusals import Denial, Reason

__all__ = ["BodyBudget", "CallerGone", "NoRoom", "Pace", "drain", "pieces", "read_body"]

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


class NoRoom(Exception):
    """A body has waited for room in vain."""


@dataclass(eq=False)
class _Waiting:
    owner: str
    size: int
    turn: asyncio.Future[None]


class BodyBudget:
    """Bytes of bodies that are held at once: a ceiling for all together, and a share for each owner.

    A body counts whole from before its first byte, however slowly it comes. So one owner must not fill the ceiling, and half
    of it is kept for owners who hold none: those on slow lines are served beside each other, and beside those in a hurry.

    Args:
        total: bytes of all bodies.
        each: bodies of one owner.
        seconds: how long a body waits for room.
        free: a body of at most so many bytes needs no room.
    """

    def __init__(self, total: int, each: int, seconds: float, free: int = 0) -> None:
        self._total = total
        self._each = each
        self._seconds = seconds
        self._free = free
        self._used = 0
        self._held: Counter[str] = Counter()
        self._waiting: list[_Waiting] = []

    @asynccontextmanager
    async def room(self, owner: str, size: int) -> AsyncIterator[None]:
        """Waits for room and gives it back.

        Raises:
            NoRoom: there was none in time.
        """
        if size <= self._free:
            yield
            return
        wanted = min(size, self._total)
        await self._enter(owner, wanted)
        try:
            yield
        finally:
            self._leave(owner, wanted)

    async def _enter(self, owner: str, size: int) -> None:
        waiting = _Waiting(owner, size, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._let_in()
        entered = False
        try:
            async with asyncio.timeout(self._seconds):
                await waiting.turn
            entered = True
        except TimeoutError as error:
            raise NoRoom from error
        finally:
            if not entered:
                self._give_up(waiting)

    def _give_up(self, waiting: _Waiting) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            self._let_in()  # those behind may be smaller
        else:  # its turn came as it left
            self._leave(waiting.owner, waiting.size)

    def _leave(self, owner: str, size: int) -> None:
        self._used -= size
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        self._let_in()

    def _let_in(self) -> None:
        while (waiting := self._next()) is not None:
            self._waiting.remove(waiting)
            self._used += waiting.size
            self._held[waiting.owner] += 1
            waiting.turn.set_result(None)

    def _next(self) -> _Waiting | None:
        """Whose turn it is, if there is room: owners who hold none come first, and nobody overtakes a larger body."""
        within = [waiting for waiting in self._waiting if self._held[waiting.owner] < self._each]
        first = min(within, key=lambda waiting: self._held[waiting.owner] > 0, default=None)
        if first is None or first.turn.done():
            return None
        ceiling = self._total // 2 if self._held[first.owner] else self._total
        return first if self._used + first.size <= ceiling else None


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
