"""Flower's Grid as an exchange uses it: questions out in one push, replies in one at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import httpx
from flwr.app import Message
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

from fedloop_core.errors import FedloopError
from fedloop_server.runs.surroundings import Arrivals, Doorbell

__all__ = ["BrokenReply", "NearGrid", "Post"]

_LOG = logging.getLogger(__name__)

_HEAR_SECONDS = 1.0  # then somebody must look who is still there
_ANYWAY_SECONDS = 3.0


@dataclass(frozen=True)
class BrokenReply:
    """A reply of which Flower can make no message. It was taken from SuperLink, so nobody gets it again."""


@runtime_checkable
class NearGrid(Protocol):
    """A grid over nodes of this machine: each message costs the same alone, and replies are noticed as they come."""

    def wait(self, seconds: float) -> None:
        """Returns when a reply may be there, at the latest after ``seconds``."""


class Post:
    """Pushes and pulls. One message id a pull: a grid hands over every ready reply of the ids that it is given.

    With ``arrivals``, Flower is asked for the replies that have come whole: asked for one of which a part is missing, it
    waits for that part, for two hours if it never comes. Every few seconds it is asked for all others anyway, since not all
    replies are told of.

    Args:
        grid: Flower's.
        doorbell: rung after each push.
        arrivals: None: Flower is asked for every reply at every time.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        grid: Grid,
        doorbell: Doorbell | None,
        arrivals: Arrivals | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._grid = grid
        self._doorbell = doorbell
        self._near = grid if isinstance(grid, NearGrid) else None
        self._arrivals = arrivals
        self._clock = clock
        self._heard = 0  # the number of the last reply that was told of
        self._whole: set[str] = set()  # told of and not pulled
        self._begun: frozenset[str] = frozenset()
        self._anyway = arrivals is None
        self._next_anyway = clock() + _ANYWAY_SECONDS

    @property
    def near(self) -> bool:
        """Whether the nodes are of this machine."""
        return self._near is not None

    def push(self, messages: Sequence[Message]) -> list[str | None]:
        """Sends messages; returns an id for each, None for one that Flower did not take."""
        taken: list[str | None] = [*self._grid.push_messages(messages)]
        if self._doorbell is not None:
            self._doorbell.ring()
        return taken + [None] * (len(messages) - len(taken))

    def pull(self, identifier: str) -> Message | BrokenReply | None:
        """The reply to a message, if it is there.

        SuperLink passes on objects that it has not looked into, so a SuperNode chooses what Flower inflates here.
        """
        if identifier not in self._whole and (not self._anyway or identifier in self._begun):
            return None
        reply: Message | BrokenReply | None
        try:
            reply = next(iter(self._grid.pull_messages([identifier])), None)
        except Exception as error:  # a process boundary: bytes of a stranger
            if _is_ours(error):
                raise
            _LOG.warning("the reply to message %s cannot be inflated", identifier, exc_info=True)
            reply = BrokenReply()
        if reply is not None:
            self._whole.discard(identifier)
        return reply

    def wait(self, seconds: float) -> None:
        """Waits until a reply may be there: at most so long, or a second where arrivals are told."""
        if self._near is not None:
            self._near.wait(seconds)
        elif self._arrivals is None:
            time.sleep(seconds)
        else:
            self._hear(self._arrivals, seconds)

    def _hear(self, arrivals: Arrivals, pause: float) -> None:
        began = self._clock()
        arrived = arrivals.since(self._heard, min(_HEAR_SECONDS, max(0.0, self._next_anyway - began)))
        self._heard = arrived.number
        self._whole |= arrived.messages
        self._begun = arrived.begun
        now = self._clock()
        if not arrived.messages and now - began < pause:  # nobody can tell
            time.sleep(pause - (now - began))
        self._anyway = now >= self._next_anyway
        if self._anyway:
            self._next_anyway = now + _ANYWAY_SECONDS


def _is_ours(error: Exception) -> bool:
    """Whether it was raised for another reason than a reply's bytes: this side's own, or the way to SuperLink."""
    if isinstance(error, FedloopError | httpx.HTTPError | httpx.StreamError | httpx.InvalidURL | OSError):
        return True
    if isinstance(error, RuntimeError) and not isinstance(error, RecursionError):
        return True  # a client that was closed, threads that cannot be started
    return isinstance(error.__cause__, DecodeError)  # Flower's client of SuperLink's own answer; a reply's has no cause
