"""Everything the front needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["FrontConfig"]

MIB = 1 << 20


@dataclass(frozen=True)
class FrontConfig:
    """Addresses, files and limits of the front. All seconds are seconds of wall time, all sizes are bytes."""

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
    body_bytes: int = 8 * MIB
    """Of one request; Flower cuts arrays into pieces of 5 MiB."""
    reply_bytes: int = 1024 * MIB
    """Of all objects of one site's reply."""
    reply_objects: int = 20_000
    buffered_bytes: int = 64 * MIB
    """Of all request bodies held at once; further ones wait."""
    requests_per_second: float = 50.0
    """Of one site, whose requests wait for their turn, and of one address that sends what is refused."""
    burst: int = 200
    connections: int = 512
    connections_per_address: int = 64
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
