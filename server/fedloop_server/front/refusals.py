"""What the front refused: counted, logged, and, when a known site is concerned, kept for the coordinator to read."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from fedloop_server.rates import Bucket

__all__ = ["Caller", "Denial", "Reason", "Refusal", "RefusalBook"]

_LOG = logging.getLogger(__name__)
_PATH_CHARACTERS = 200
_LINES_PER_SECOND = 20.0
_LINES_BURST = 200


class Reason(StrEnum):
    """Why a request was refused."""

    NOT_HTTP = "not-http"
    PATH = "path"
    HEADERS = "headers"
    KEY = "key"
    SIGNATURE = "signature"
    CLOCK = "clock"
    REVOKED = "revoked"
    BODY_TOO_LARGE = "body-too-large"
    REPLY_TOO_LARGE = "reply-too-large"
    MALFORMED = "malformed"
    STRAY = "stray"
    SLOW_BODY = "slow-body"
    SLOW_READER = "slow-reader"
    RATE = "rate"
    CONNECTIONS = "connections"
    HANDSHAKE = "handshake"
    BUSY = "busy"
    NOT_READY = "not-ready"


@dataclass(frozen=True)
class Caller:
    """Who asked for what, before anything of it is believed."""

    peer: str
    method: str
    path: str


class Denial(Exception):
    """Ends a request with a status and one plain word; ``site`` is set when the caller has proved who it is.

    ``seconds`` goes with ``Reason.CLOCK``: positive when the site's clock is ahead.
    """

    def __init__(self, status: int, reason: Reason, *, site: str = "", seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.site = site
        self.seconds = seconds


@dataclass(frozen=True)
class Refusal:
    """A request of a known site that was refused. Numbers rise, also across restarts of the front."""

    number: int
    unix: float
    site: str
    path: str
    reason: Reason
    seconds: float = 0.0


class RefusalBook:
    """Counts by reason since the start, and the last refusals of known sites.

    Args:
        capacity: how many refusals of known sites are kept.
        clock: Unix time in seconds.
    """

    def __init__(self, capacity: int = 1000, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._kept: deque[Refusal] = deque(maxlen=capacity)
        self._number = int(clock() * 1e6)
        self._lines = Bucket(_LINES_PER_SECOND, _LINES_BURST, clock())
        self._unlogged = 0
        self.counts: Counter[Reason] = Counter()

    def note(self, caller: Caller, denial: Denial) -> None:
        """Takes in one refusal."""
        now = self._clock()
        self.counts[denial.reason] += 1
        if denial.site:
            self._number += 1
            path = caller.path[:_PATH_CHARACTERS]
            self._kept.append(Refusal(self._number, now, denial.site, path, denial.reason, denial.seconds))
        if not self._lines.take(now):
            self._unlogged += 1  # a flood must not fill the disk
            return
        _LOG.warning("%s", _line(now, caller, denial, self._unlogged))
        self._unlogged = 0

    def since(self, number: int) -> tuple[Refusal, ...]:
        """Refusals of known sites with higher numbers, in their order."""
        return tuple(refusal for refusal in self._kept if refusal.number > number)


def _line(now: float, caller: Caller, denial: Denial, unlogged: int) -> str:
    content: dict[str, str | int | float] = {
        "event": "refused",
        "unix": round(now, 3),
        "peer": caller.peer,
        "method": caller.method[:16],
        "path": caller.path[:_PATH_CHARACTERS],
        "status": denial.status,
        "reason": denial.reason,
    }
    if denial.site:
        content["site"] = denial.site
    if denial.seconds:
        content["seconds"] = round(denial.seconds, 1)
    if unlogged:
        content["unlogged"] = unlogged
    return json.dumps(content)
