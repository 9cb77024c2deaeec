"""How many bytes a site's reply has brought: objects come one by one, and their sum has a limit."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedloop_server.front.flower_wire import ObjectPushed
from fedloop_server.front.refusals import Denial, Reason

__all__ = ["Replies"]


@dataclass
class _Reply:
    announced: frozenset[str] | None  # None: the front was restarted since the reply was announced
    sizes: dict[str, int] = field(default_factory=dict)
    total: int = 0


class Replies:
    """The reply that each site is sending. A SuperNode sends one at a time.

    Args:
        largest: bytes of all objects of one reply.
        objects: number of objects of one reply.
    """

    def __init__(self, largest: int, objects: int) -> None:
        self._largest = largest
        self._objects = objects
        self._replies: dict[str, _Reply] = {}

    def open(self, site: str, announced: frozenset[str]) -> None:
        """A new reply, which takes the place of the one before.

        Raises:
            Denial: it has too many objects.
        """
        if len(announced) > self._objects:
            raise Denial(413, Reason.REPLY_TOO_LARGE, site=site)
        self._replies[site] = _Reply(announced)

    def add(self, site: str, pushed: ObjectPushed) -> None:
        """One object; sent again, it counts once.

        Raises:
            Denial: the reply is too large, or the object does not belong to it.
        """
        reply = self._replies.setdefault(site, _Reply(None))
        if reply.announced is not None and pushed.object_id not in reply.announced:
            raise Denial(400, Reason.MALFORMED, site=site)
        total = reply.total - reply.sizes.get(pushed.object_id, 0) + pushed.size
        if total > self._largest or len(reply.sizes) >= self._objects:
            raise Denial(413, Reason.REPLY_TOO_LARGE, site=site)
        reply.sizes[pushed.object_id] = pushed.size
        reply.total = total

    def keep_only(self, sites: frozenset[str]) -> None:
        """Forgets sites that are no more."""
        self._replies = {site: reply for site, reply in self._replies.items() if site in sites}
