"""Held polls: a SuperNode that asks for messages waits here until there is one, instead of asking every three seconds.

SuperLink marks a message as delivered when it is asked for it. So an answer that its poll cannot take any more, because
the caller has gone or has asked anew, is kept for the node's next poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto

from fedloop_server.front.allowed import Node
from fedloop_server.front.bodies import CallerGone
from fedloop_server.front.refusals import Denial, Reason

__all__ = ["Polls", "Pulled"]

_KEPT_SECONDS = 60.0
_STAGGER = 0.25  # of the pause between two asks: nodes that wait must not ask in step


class _End(Enum):
    REVOKED = auto()
    ANEW = auto()
    GONE = auto()
    CLOSING = auto()


@dataclass(frozen=True)
class Pulled:
    """SuperLink's answer; ``empty`` when it was asked in vain and may be asked again."""

    status: int
    content: bytes
    media_type: str
    empty: bool


@dataclass
class _Held:
    site: str
    since: float  # by the event loop's clock
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    end: _End | None = None

    def stop(self, why: _End) -> None:
        self.end = self.end or why
        self.wake.set()


@dataclass
class _Line:
    """One node: the poll that is held for it, the ask that is under way, and the answer that nobody took."""

    held: _Held | None = None
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    kept: Pulled | None = None
    kept_until: float = 0.0


class Polls:
    """All held polls.

    Args:
        hold_seconds: how long a poll is held.
        ask_seconds: how often SuperLink is asked for one node when no bell rings.
    """

    def __init__(self, hold_seconds: float, ask_seconds: float) -> None:
        self._hold_seconds = hold_seconds
        self._ask_seconds = ask_seconds
        self._lines: dict[bytes, _Line] = {}
        self._closing = False

    @property
    def held(self) -> int:
        """How many polls are held now."""
        return sum(line.held is not None for line in self._lines.values())

    def idle_seconds(self) -> dict[str, float]:
        """By site, how long the poll has been held that is held for it now."""
        now = asyncio.get_running_loop().time()
        return {line.held.site: now - line.held.since for line in self._lines.values() if line.held is not None}

    def ring(self) -> None:
        """New messages may be there: each poll asks at once."""
        for line in self._lines.values():
            if line.held is not None:
                line.held.wake.set()

    def keep_only(self, headers: frozenset[bytes]) -> None:
        """Ends the polls of nodes that are no longer allowed."""
        for header in [header for header in self._lines if header not in headers]:
            line = self._lines.pop(header)
            if line.held is not None:
                line.held.stop(_End.REVOKED)

    def close(self) -> None:
        """Ends all polls with an empty answer; later ones are not held."""
        self._closing = True
        for line in self._lines.values():
            if line.held is not None:
                line.held.stop(_End.CLOSING)

    async def pull(
        self, node: Node, ask: Callable[[], Awaitable[Pulled]], gone: Callable[[], Awaitable[None]], longest: float
    ) -> Pulled:
        """Asks until there is something, at most ``longest`` seconds; ``gone`` returns when the caller has gone.

        A node has one poll: a second one ends the first with an empty answer.

        Raises:
            Denial: the node was revoked meanwhile.
            CallerGone: nobody waits for the answer.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + (0.0 if self._closing else min(self._hold_seconds, longest))
        line = self._lines.setdefault(node.header, _Line())
        async with _holding(line, _Held(node.site, loop.time()), gone) as held:
            while True:
                held.wake.clear()
                pulled = await self._ask(line, ask)
                if held.end is _End.REVOKED:
                    raise Denial(401, Reason.REVOKED, site=node.site)
                if not pulled.empty and held.end in (_End.GONE, _End.ANEW):
                    line.kept, line.kept_until = pulled, loop.time() + _KEPT_SECONDS
                    raise CallerGone
                if held.end is _End.GONE:
                    raise CallerGone
                if not pulled.empty or held.end is not None or loop.time() >= end:
                    return pulled
                pause = self._ask_seconds * (1.0 + _STAGGER * random.random())  # noqa: S311  not a secret
                await _sleep(held, min(end, loop.time() + pause))
                if held.end in (_End.CLOSING, _End.ANEW) or (loop.time() >= end and not held.wake.is_set()):
                    return pulled

    async def _ask(self, line: _Line, ask: Callable[[], Awaitable[Pulled]]) -> Pulled:
        async with line.asking:
            kept, line.kept = line.kept, None
            if kept is not None and asyncio.get_running_loop().time() < line.kept_until:
                return kept
            return await ask()


@asynccontextmanager
async def _holding(line: _Line, held: _Held, gone: Callable[[], Awaitable[None]]) -> AsyncIterator[_Held]:
    if line.held is not None:
        line.held.stop(_End.ANEW)
    line.held = held

    async def watch() -> None:
        await gone()
        held.stop(_End.GONE)

    watching = asyncio.create_task(watch())
    try:
        yield held
    finally:
        watching.cancel()
        if line.held is held:
            line.held = None


async def _sleep(held: _Held, until: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            await held.wake.wait()
