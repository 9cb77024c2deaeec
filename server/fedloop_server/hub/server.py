"""The listener under mutual TLS."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc

from fedloop_core.errors import UsageError
from fedloop_proto.membership.v1 import membership_pb2_grpc
from fedloop_server.hub.service import HubParts, SiteHubService
from fedloop_server.settings import split_address

__all__ = ["SiteHubServer"]

_WORKERS = 8  # for short calls, beside one for each stream
_GRACE_SECONDS = 1.0
_KEEPALIVE_MS = 30_000


class SiteHubServer:
    """Serves SiteHub on its own port.

    Args:
        parts: what it works with; the board is the caller's to start and to close.
        address: ``host:port``.
        credentials: of mutual TLS (``hub_credentials``).
    """

    def __init__(self, parts: HubParts, address: str, credentials: grpc.ServerCredentials) -> None:
        limits = parts.limits
        workers = _WORKERS + limits.streams
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=workers, thread_name_prefix="site-hub"),
            maximum_concurrent_rpcs=2 * workers,
            options=[
                ("grpc.so_reuseport", 0),  # two hubs on one port would silently share its sites
                ("grpc.max_receive_message_length", limits.message_bytes),
                ("grpc.max_metadata_size", 16 << 10),
                ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
            ],
        )
        membership_pb2_grpc.add_SiteHubServicer_to_server(SiteHubService(parts), self._server)  # type: ignore[no-untyped-call]
        try:
            self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise UsageError(
                f"the hub cannot listen on {address}.", hint="Is the port taken, or the address another machine's?"
            ) from error
        self.address = f"{split_address(address)[0]}:{self.port}"

    def start(self) -> None:
        """Begins to serve."""
        self._server.start()

    def stop(self) -> None:
        """Ends all calls; watches within a second when the board was closed before."""
        self._server.stop(_GRACE_SECONDS).wait()
