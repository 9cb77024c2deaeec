"""How long a stranger may take to say what it wants, once it is connected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

__all__ = ["GuardedProtocol"]


class GuardedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, which has no deadline for the head of a request.

    Args:
        config: uvicorn's.
        server_state: uvicorn's.
        app_state: uvicorn's.
        head_seconds: for the head of a request, and for an idle connection.
        not_http: called with the address of who speaks something else.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        *,
        head_seconds: float,
        not_http: Callable[[str], None],
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._head_seconds = head_seconds
        self._not_http = not_http
        self._deadline: asyncio.TimerHandle | None = None
        self.begun = False
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the clock for the first head."""
        super().connection_made(transport)
        self.begun = True
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tells that the connection has ended."""
        self._stop_waiting()
        self.ended.set()
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
        self._not_http(self.client[0] if self.client else "")
        super().send_400_response("refused")

    def _should_upgrade(self) -> bool:
        return False  # nothing but HTTP is spoken here

    def _wait_for_head(self) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(self._head_seconds, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
