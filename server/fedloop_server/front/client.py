"""How the coordinator's own processes reach the front."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
from pydantic import TypeAdapter, ValidationError

from fedloop_server.front.refusals import Refusal

__all__ = ["FrontClient"]

_LOG = logging.getLogger(__name__)
_SECONDS = 2.0
_REFUSALS = TypeAdapter(tuple[Refusal, ...])


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

    def _ask(self, method: str, path: str) -> httpx.Response | None:
        try:
            answer = self._client.request(method, path)
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
