"""Connections of strangers: how many, and how long one may take to say what it wants."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from fedloop_server.front.buckets import address_key
from fedloop_server.front.config import FrontConfig
from fedloop_server.front.refusals import Caller, Denial, Reason, RefusalBook

__all__ = ["Door", "GuardedProtocol"]


class Door:
    """Counts open connections, in all and by address."""

    def __init__(self, config: FrontConfig, book: RefusalBook) -> None:
        self.head_seconds = config.head_seconds
        self._total = config.connections
        self._each = config.connections_per_address
        self._open: Counter[str] = Counter()
        self._book = book

    def enter(self, peer: str) -> bool:
        """Whether one more is let in; if so, ``leave`` must follow."""
        key = address_key(peer)
        if self._open.total() >= self._total or self._open[key] >= self._each:
            self.refuse(peer, Reason.CONNECTIONS)
            return False
        self._open[key] += 1
        return True

    def leave(self, peer: str) -> None:
        """A connection has ended."""
        key = address_key(peer)
        self._open[key] -= 1
        if self._open[key] <= 0:
            del self._open[key]

    def refuse(self, peer: str, reason: Reason) -> None:
        """Notes what never became a request."""
        self._book.note(Caller(peer, "", ""), Denial(400, reason))


class GuardedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, which has no deadline for the head of a request and does not count by address."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        door: Door,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._door = door
        self._inside = False
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def _peer(self) -> str:
        return self.client[0] if self.client else ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Lets the connection in, or breaks it off."""
        super().connection_made(transport)
        self._inside = self._door.enter(self._peer)
        if not self._inside:
            transport.abort()
            return
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Gives its place back."""
        self._stop_waiting()
        if self._inside:
            self._inside = False
            self._door.leave(self._peer)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Stops the clock once a head is complete."""
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Starts it again for the next one."""
        self._wait_for_head()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  strangers are not told what was wrong
        """Refuses what is not HTTP."""
        self._door.refuse(self._peer, Reason.NOT_HTTP)
        super().send_400_response("refused")

    def _should_upgrade(self) -> bool:
        return False  # nothing but HTTP is spoken here

    def _wait_for_head(self) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(self._door.head_seconds, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
