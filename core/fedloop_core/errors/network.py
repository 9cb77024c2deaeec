"""The way between coordinator and site."""

from __future__ import annotations

from fedloop_core.errors.root import FedloopError

__all__ = ["CoordinatorUnreachable", "NetworkError", "RequestRefused"]


class NetworkError(FedloopError):
    """The way to another machine."""

    code = "FL-NET-000"
    exit_status = 12


class CoordinatorUnreachable(NetworkError):
    """Name, route, proxy, port or TLS stand between a site and its coordinator; ``stage`` says which."""

    code = "FL-NET-001"
    wire_fields = frozenset({"stage"})


class RequestRefused(NetworkError):
    """A request beyond a limit of the front: its size, its rate, or a path that is not served."""

    code = "FL-NET-002"
    wire_fields = frozenset({"reason"})
