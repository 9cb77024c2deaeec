"""Flower's Grid as an exchange uses it: questions out in one push, replies in one at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from flwr.app import Message
from flwr.serverapp import Grid

from fedloop_server.runs.surroundings import Doorbell

__all__ = ["NearGrid", "Post"]


@runtime_checkable
class NearGrid(Protocol):
    """A grid over nodes of this machine: each message costs the same alone, and replies are noticed as they come."""

    def wait(self, seconds: float) -> None:
        """Returns when a reply may be there, at the latest after ``seconds``."""


class Post:
    """Pushes and pulls. One message id a pull: a grid hands over every ready reply of the ids that it is given."""

    def __init__(self, grid: Grid, doorbell: Doorbell | None) -> None:
        self._grid = grid
        self._doorbell = doorbell
        self._near = grid if isinstance(grid, NearGrid) else None

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

    def pull(self, identifier: str) -> Message | None:
        """The reply to a message, if it is there."""
        return next(iter(self._grid.pull_messages([identifier])), None)

    def wait(self, seconds: float) -> None:
        """Waits until a reply may be there, at most so long."""
        if self._near is None:
            time.sleep(seconds)
        else:
            self._near.wait(seconds)
