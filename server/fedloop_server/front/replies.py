"""The replies that sites are sending: how many bytes each has brought, and which are whole.

Objects come one by one, and their sum has a limit. Flower's ServerApp sees a reply as soon as it is announced and then waits for
its objects, for two hours if they never come; who asks the front first learns which replies are whole, and which have begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from fedloop_server.front.flower_wire import Announcement, ObjectPushed
from fedloop_server.front.refusals import Denial, Reason

__all__ = ["Arrivals", "Arrived", "Replies"]

_KEPT = 10_000


@dataclass(frozen=True)
class Arrived:
    """Ids of messages whose replies are whole. ``number`` is the last one's; numbers rise, also across restarts.

    ``begun``: ids of those whose replies have begun to come and are not whole, however long ago.
    """

    number: int
    answered: tuple[str, ...]
    begun: tuple[str, ...] = ()


class Arrivals:
    """Replies that are whole, in their order.

    Args:
        clock: Unix time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._number = int(clock() * 1e6)
        self._kept: deque[tuple[int, str]] = deque(maxlen=_KEPT)
        self._begun: dict[str, None] = {}  # in the order of their beginning
        self._more = asyncio.Event()

    def begin(self, answers: str) -> None:
        """SuperLink knows of a reply to this message, whose parts are to come."""
        self._begun[answers] = None
        if len(self._begun) > _KEPT:
            del self._begun[next(iter(self._begun))]

    def note(self, answers: str) -> None:
        """The reply to this message is whole."""
        self._begun.pop(answers, None)
        self._number += 1
        self._kept.append((self._number, answers))
        self._more.set()
        self._more = asyncio.Event()

    async def since(self, number: int, seconds: float) -> Arrived:
        """Those with higher numbers; waits at most ``seconds`` for one."""
        if number >= self._number:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._more.wait()
        answered = tuple(answers for kept, answers in self._kept if kept > number)
        return Arrived(self._number, answered, tuple(self._begun))


@dataclass
class _Reply:
    announced: Announcement | None  # None: the front was restarted since the reply was announced
    missing: set[str] | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    total: int = 0


class Replies:
    """The reply that each site is sending. A SuperNode sends one at a time.

    Args:
        largest: bytes of all objects of one reply.
        objects: number of objects of one reply.
        arrivals: learns of each reply that is whole.
    """

    def __init__(self, largest: int, objects: int, arrivals: Arrivals) -> None:
        self._largest = largest
        self._objects = objects
        self._arrivals = arrivals
        self._replies: dict[str, _Reply] = {}

    def open(self, site: str, announced: Announcement) -> None:
        """A new reply, which takes the place of the one before.

        Raises:
            Denial: it has too many objects.
        """
        if len(announced.objects) > self._objects:
            raise Denial(413, Reason.REPLY_TOO_LARGE, site=site)
        self._replies[site] = _Reply(announced)

    def want(self, site: str, missing: frozenset[str]) -> None:
        """SuperLink has taken the announcement and wants these objects."""
        reply = self._replies.get(site)
        if reply is not None and reply.announced is not None:
            self._arrivals.begin(reply.announced.answers)
            reply.missing = set(missing)
            self._close_when_whole(reply)

    def add(self, site: str, pushed: ObjectPushed) -> None:
        """One object; sent again, it counts once.

        Raises:
            Denial: the reply is too large, or the object does not belong to it.
        """
        reply = self._replies.setdefault(site, _Reply(None))
        if reply.announced is not None and pushed.object_id not in reply.announced.objects:
            raise Denial(400, Reason.STRAY, site=site)  # of an earlier reply, tried again: the open one goes on
        total = reply.total - reply.sizes.get(pushed.object_id, 0) + pushed.size
        if total > self._largest or (pushed.object_id not in reply.sizes and len(reply.sizes) >= self._objects):
            raise Denial(413, Reason.REPLY_TOO_LARGE, site=site)
        reply.sizes[pushed.object_id] = pushed.size
        reply.total = total

    def stored(self, site: str, object_id: str) -> None:
        """SuperLink has an object."""
        reply = self._replies.get(site)
        if reply is not None and reply.missing is not None and object_id in reply.missing:
            reply.missing.discard(object_id)
            self._close_when_whole(reply)

    def keep_only(self, sites: frozenset[str]) -> None:
        """Forgets sites that are no more."""
        self._replies = {site: reply for site, reply in self._replies.items() if site in sites}

    def _close_when_whole(self, reply: _Reply) -> None:
        if not reply.missing and reply.announced is not None:
            reply.missing = None
            self._arrivals.note(reply.announced.answers)
