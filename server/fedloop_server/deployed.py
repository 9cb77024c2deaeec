"""The surroundings of a run at a coordinator that is set up: its database, audit log and front."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager

from fedloop_core.errors import ClockSkewed, RequestRefused
from fedloop_core.keys import VerifyingKey
from fedloop_server.front.client import FrontClient
from fedloop_server.front.flower_wire import PUSH_MESSAGES, PUSH_OBJECT
from fedloop_server.front.refusals import Reason, Refusal
from fedloop_server.home import CoordinatorHome
from fedloop_server.manager.queue import RunQueue
from fedloop_server.membership import Members
from fedloop_server.membership.machine import SiteState
from fedloop_server.runs.room import WaitsForRoom, with_room
from fedloop_server.runs.surroundings import ArrivedReplies, RefusedRequest, SiteKey, Surroundings

__all__ = [
    "ENDS_THE_REPLY",
    "IGNORED",
    "FrontArrivals",
    "FrontIdleSites",
    "FrontRefusals",
    "MemberDirectory",
    "QueuedStop",
    "deployed_surroundings",
]

_REPLY_PATHS = frozenset({PUSH_MESSAGES.decode(), PUSH_OBJECT.decode()})
ENDS_THE_REPLY = {
    Reason.BODY_TOO_LARGE: "a part of it is larger than the front takes",
    Reason.REPLY_TOO_LARGE: "it is larger than the front takes",
    Reason.MALFORMED: "it is malformed",
    Reason.SLOW_BODY: "it came too slowly",
    Reason.HEADERS: "it has another length than was said",
}
"""Refusals after which a SuperNode gives a reply up: it repeats only what no server answered."""
IGNORED = {
    Reason.REVOKED: "the directory says it first",
    Reason.STRAY: "a SuperNode tries an object of an earlier reply again after an outage; the open one is not harmed",
    Reason.RATE: "the SuperNode ends, is started again, and the site is asked again",
    **dict.fromkeys(
        (Reason.PATH, Reason.KEY, Reason.SIGNATURE, Reason.NOT_HTTP, Reason.HANDSHAKE), "nobody knows which site it was"
    ),
    **dict.fromkeys(
        (Reason.CONNECTIONS, Reason.NOT_READY, Reason.BUSY, Reason.SLOW_READER), "it passes, and names no site"
    ),
}
"""Refusals that are no site's failure, and why."""


class MemberDirectory:
    """The active members, read from the database at each call."""

    def __init__(self, members: Members) -> None:
        self._members = members

    def nodes(self) -> Mapping[int, SiteKey]:
        """Active sites by Flower's node id."""
        return {
            site.node_id: SiteKey(site.name, VerifyingKey(site.signing_key))
            for site in self._members.sites()
            if site.state is SiteState.ACTIVE and site.node_id is not None
        }

    def active(self) -> frozenset[str]:
        """Names of the active sites."""
        return frozenset(site.name for site in self._members.sites() if site.state is SiteState.ACTIVE)


class FrontRefusals:
    """What the front turned away and what will not pass by itself: replies that break its limits, and wrong clocks."""

    def __init__(self, front: FrontClient) -> None:
        self._front = front

    def since(self, number: int) -> Sequence[RefusedRequest]:
        """Refusals whose number is above ``number``, in their order."""
        return [told for refusal in self._front.refusals(number) if (told := _told(refusal)) is not None]


class FrontArrivals:
    """Replies that the front has passed on whole."""

    def __init__(self, front: FrontClient) -> None:
        self._front = front

    def since(self, number: int, seconds: float) -> ArrivedReplies:
        """Those after ``number``; waits at most ``seconds`` for one."""
        arrived = self._front.arrivals(number, seconds)
        return ArrivedReplies(arrived.number, frozenset(arrived.answered), frozenset(arrived.begun))


class FrontIdleSites:
    """Sites whose SuperNodes wait at the front for a message."""

    def __init__(self, front: FrontClient) -> None:
        self._front = front

    def seconds(self) -> Mapping[str, float]:
        """By site, how long it has been waiting."""
        return self._front.idle_seconds()


class QueuedStop:
    """The wish that ``fedloop run stop`` leaves in the database."""

    def __init__(self, queue: RunQueue, run_id: str) -> None:
        self._queue = queue
        self._run_id = run_id

    def wished(self) -> bool:
        """Whether a person wants the run to stop."""
        return self._queue.stop_wished(self._run_id)


@contextmanager
def deployed_surroundings(home: CoordinatorHome, run_id: str) -> Iterator[Surroundings]:
    """What the drive of a run needs of the coordinator, for as long as it lasts.

    Raises:
        SettingsInvalid: server.toml cannot be read.
        StorageError: the database cannot be opened, for longer than it is waited for.
    """
    with ExitStack() as stack:
        members = with_room(home.members, WaitsForRoom(None))
        stack.enter_context(closing(members.database))
        front = stack.enter_context(closing(FrontClient(home.folder / "sockets" / "front.sock")))
        stop = QueuedStop(RunQueue(members.database), run_id)
        yield Surroundings(
            directory=MemberDirectory(members),
            heads=members.heads,
            audit=home.audit(),
            countersignatures=home.countersignatures(),
            doorbell=front,
            refusals=FrontRefusals(front),
            arrivals=FrontArrivals(front),
            idle=FrontIdleSites(front),
            stop=stop,
            room=WaitsForRoom(stop),
        )


def _told(refusal: Refusal) -> RefusedRequest | None:
    if refusal.reason is Reason.CLOCK:
        way = "ahead of" if refusal.seconds > 0 else "behind"
        reason = f"its clock is {abs(refusal.seconds):.0f} s {way} the coordinator's"
        return RefusedRequest(refusal.number, refusal.site, ClockSkewed.code, reason)
    if refusal.path in _REPLY_PATHS and refusal.reason in ENDS_THE_REPLY:
        reason = f"the front turned its reply away: {ENDS_THE_REPLY[refusal.reason]}"
        return RefusedRequest(refusal.number, refusal.site, RequestRefused.code, reason)
    return None
