"""How the coordinator's own processes reach the front."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
from pydantic import TypeAdapter, ValidationError

from fedloop_server.front.refusals import Refusal
from fedloop_server.front.replies import Arrived

__all__ = ["FrontClient"]

_LOG = logging.getLogger(__name__)
_SECONDS = 2.0
_REFUSALS = TypeAdapter(tuple[Refusal, ...])
_ARRIVED = TypeAdapter(Arrived)


class FrontClient:
    """Rings the doorbell and reads refusals. A front that is down is logged once and costs only waiting time.

    Args:
        socket_path: the front's unix socket.
    """

    def __init__(self, socket_path: Path) -> None:
        self._path = socket_path
        transport = httpx.HTTPTransport(uds=str(socket_path))
        self._client = httpx.Client(transport=transport, base_url="http://front", timeout=_SECONDS)
        self._reachable = True

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def ring(self) -> None:
        """Says that messages were pushed: held polls ask for them at once. Never raises."""
        self._ask("POST", "/doorbell")

    def refusals(self, since: int) -> tuple[Refusal, ...]:
        """Refusals of known sites with numbers above ``since``, in order; none when the front is down."""
        answer = self._ask("GET", f"/refusals?since={since}")
        if answer is None:
            return ()
        try:
            return _REFUSALS.validate_json(answer.content)
        except ValidationError as error:
            self._lost(error)
            return ()

    def arrivals(self, since: int, seconds: float) -> Arrived:
        """Replies that came whole after number ``since``; waits at most ``seconds`` for one. Start with number 0.

        A front that is down, or that was restarted while a reply came, does not tell of it: ask Flower for every open
        message now and then, too. Returns at once when the front is down.
        """
        wait = max(0, round(seconds * 1000))
        answer = self._ask("GET", f"/replies?since={since}&milliseconds={wait}", seconds + _SECONDS)
        if answer is None:
            return Arrived(since, ())
        try:
            return _ARRIVED.validate_json(answer.content)
        except ValidationError as error:
            self._lost(error)
            return Arrived(since, ())

    def _ask(self, method: str, path: str, seconds: float = _SECONDS) -> httpx.Response | None:
        try:
            answer = self._client.request(method, path, timeout=seconds)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            self._lost(error)
            return None
        self._reachable = True
        return answer

    def _lost(self, error: Exception) -> None:
        if self._reachable:
            _LOG.warning("the front cannot be reached at %s: %s", self._path, error)
        self._reachable = False
