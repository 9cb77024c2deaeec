"""How the front passes requests to join and to renew on to the service, over the service's unix socket."""

from __future__ import annotations

__all__ = ["MEMBERSHIP_BYTES", "MEMBERSHIP_MEDIA_TYPE", "PEER_HEADER"]

PEER_HEADER = "fedloop-peer"
"""The address that a request came from, as the front saw it."""
MEMBERSHIP_MEDIA_TYPE = "application/x-protobuf"
MEMBERSHIP_BYTES = 64 << 10
"""Of one request at most."""
