"""Everything the front needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedloop_server.settings import FrontLimits

__all__ = ["FrontConfig"]

MIB = 1 << 20


@dataclass(frozen=True)
class FrontConfig:
    """Addresses, files and limits of the front. All seconds are seconds of wall time, all sizes are bytes.

    ``limits`` are those that people may change in ``server.toml``; the others are below.
    """

    listen: tuple[str, int]
    """Host and port of the public listener; port 0 takes a free one."""
    superlink_port: int
    """SuperLink's port on 127.0.0.1."""
    internal_authority: Path
    """PEM of the authority that signed SuperLink's certificate."""
    certificate: Path
    """PEM chain that sites see; read again when it changes."""
    key: Path
    service_socket: Path
    own_socket: Path
    limits: FrontLimits
    reply_objects: int = 20_000
    """Of one site's reply."""
    buffered_bytes: int = 256 * MIB
    """Of all large request bodies held at once: 51 of 5 MiB, the pieces into which Flower cuts arrays."""
    bodies_per_site: int = 2
    """Large ones, at once; a SuperNode of flwr 1.42 sends two."""
    membership_buffered_bytes: int = 4 * MIB
    """Of all requests to join and to renew held at once."""
    memberships_per_address: int = 8
    """Of these requests, at once."""
    room_seconds: float = 5.0
    """A body waits this long for room; then its sender is told to come again."""
    handshake_seconds: float = 5.0
    """For the TLS handshake of a new connection."""
    join_burst: int = 30
    joins_per_second: float = 0.5
    head_bytes: int = 16 * 1024
    head_seconds: float = 10.0
    """For the head of a request, and for an idle connection."""
    body_grace_seconds: float = 10.0
    body_bytes_per_second: int = 16 * 1024
    """A body that comes more slowly is refused after the grace."""
    reply_seconds: float = 120.0
    """For a caller to take one answer."""
    hold_seconds: float = 20.0
    """A poll is held this long; a SuperNode gives up after 30."""
    ask_seconds: float = 2.0
    """SuperLink is asked for a node at each ring of the doorbell, and this often without one."""
