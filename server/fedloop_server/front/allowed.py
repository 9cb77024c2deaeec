"""Which nodes may speak: the service's list of node keys and their sites, followed as it changes."""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import ValidationError

from fedloop_core.strict import Strict
from fedloop_server.front.flower_wire import key_header, load_node_key

__all__ = ["AllowedNodes", "Node", "follow_allowed"]

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 70.0  # the service answers its long poll well before
_RETRY_SECONDS = 0.5


class _Document(Strict):
    revision: int
    nodes: dict[str, str]  # base64 of a node key (OpenSSH, PEM or DER) → site
    shut_out: dict[str, str]  # the same of sites that were revoked or have left


@dataclass(frozen=True)
class Node:
    """One site's SuperNode; ``header`` is its key as it stands in its requests."""

    site: str
    header: bytes
    key: ec.EllipticCurvePublicKey


@dataclass(frozen=True)
class AllowedNodes:
    """Nodes by the header that names them. Those that are shut out are known, so that who knocks can be told by name."""

    revision: int
    nodes: dict[bytes, Node] = field(default_factory=dict)
    shut_out: dict[bytes, Node] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: bytes) -> AllowedNodes:
        """Reads the service's answer; a key that cannot be read is left out and logged.

        Raises:
            ValidationError: the answer is not what the service should send.
        """
        document = _Document.model_validate_json(content)
        return cls(document.revision, _nodes(document.nodes), _nodes(document.shut_out))


def _nodes(keys: Mapping[str, str]) -> dict[bytes, Node]:
    nodes = {}
    for text, site in keys.items():
        try:
            key = load_node_key(b64decode(text, validate=True))
        except (ValueError, Base64Error) as error:
            _LOG.error("the node key of site %s cannot be read and is not let in: %s", site, error)
            continue
        header = key_header(key)
        nodes[header] = Node(site, header, key)
    return nodes


async def follow_allowed(socket: Path, take: Callable[[AllowedNodes], None]) -> None:
    """Asks the service for its list and calls ``take`` at each change, for ever. While it is down nothing changes."""
    known: int | None = None
    reachable = True
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    async with httpx.AsyncClient(transport=transport, base_url="http://service", timeout=_POLL_SECONDS) as client:
        while True:
            try:
                answer = await client.get("/allowed", params={"known": known or 0})
                answer.raise_for_status()
                allowed = AllowedNodes.from_json(answer.content)
            except httpx.ReadTimeout:
                continue  # nothing changed
            except (httpx.HTTPError, ValidationError) as error:
                if reachable:
                    _LOG.warning("the service does not tell which nodes are allowed, the last list stays: %s", error)
                reachable = False
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if not reachable:
                _LOG.info("the service tells again which nodes are allowed")
            reachable = True
            if allowed.revision == known:
                await asyncio.sleep(0.05)  # a service that answers at once must not be asked without pause
                continue
            known = allowed.revision
            take(allowed)
