"""How the coordinator's own processes reach the front."""

from __future__ import annotations

import logging
import socket
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fedloop_server.front.refusals import Refusal
from fedloop_server.front.replies import Arrived

__all__ = ["FrontClient"]

_LOG = logging.getLogger(__name__)
_SECONDS = 2.0
_REFUSALS = TypeAdapter(tuple[Refusal, ...])
_ARRIVED = TypeAdapter(Arrived)
_IDLE = TypeAdapter(dict[str, float])


class _UnixConnection(HTTPConnection):
    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("front", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class FrontClient:
    """Rings the doorbell and reads refusals. A front that is down is logged once and costs only waiting time.

    Args:
        socket_path: the front's unix socket.
    """

    def __init__(self, socket_path: Path) -> None:
        self._path = socket_path
        self._reachable = True

    def close(self) -> None:
        """Does nothing: each call has a connection of its own. For callers that close what they open."""

    def ring(self) -> None:
        """Says that messages were pushed: held polls ask for them at once. Never raises."""
        self._ask("POST", "/doorbell")

    def refusals(self, since: int) -> tuple[Refusal, ...]:
        """Refusals of known sites with numbers above ``since``, in order; none when the front is down."""
        answer = self._ask("GET", f"/refusals?since={since}")
        if answer is None:
            return ()
        try:
            return _REFUSALS.validate_json(answer)
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
            return _ARRIVED.validate_json(answer)
        except ValidationError as error:
            self._lost(error)
            return Arrived(since, ())

    def idle_seconds(self) -> dict[str, float]:
        """By site, how long its SuperNode has been waiting for a message; none when the front is down."""
        answer = self._ask("GET", "/idle")
        if answer is None:
            return {}
        try:
            return _IDLE.validate_json(answer)
        except ValidationError as error:
            self._lost(error)
            return {}

    def _ask(self, method: str, path: str, seconds: float = _SECONDS) -> bytes | None:
        connection = _UnixConnection(self._path, seconds)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise HTTPException(f"status {answer.status}")
        except (OSError, HTTPException) as error:
            self._lost(error)
            return None
        finally:
            connection.close()
        self._reachable = True
        return content

    def _lost(self, error: Exception) -> None:
        if self._reachable:
            _LOG.warning("the front cannot be reached at %s: %s", self._path, error)
        self._reachable = False
