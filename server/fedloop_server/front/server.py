"""Runs the front: one public TLS listener, one unix socket, and what follows certificate and list of nodes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Generator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from fedloop_server.front.allowed import follow_allowed
from fedloop_server.front.app import FrontApp
from fedloop_server.front.certificates import ServedCertificate
from fedloop_server.front.config import FrontConfig
from fedloop_server.front.descriptors import connections_that_fit, raise_descriptor_limit
from fedloop_server.front.gate import Door, Gate
from fedloop_server.front.local import local_app
from fedloop_server.front.protocol import GuardedProtocol
from fedloop_server.front.refusals import Reason
from fedloop_server.front.upstream import ServiceLink, SuperLinkClient

__all__ = ["build_front", "run_front"]

_LOG = logging.getLogger(__name__)
_BACKLOG = 512
_GRACE_SECONDS = 3
_LOCAL_CALLERS = 128


class _Server(uvicorn.Server):
    """Takes its connections from a gate, and leaves signals to whoever runs several servers in one process."""

    def __init__(self, config: uvicorn.Config, gate: Gate, door: Door, head_seconds: float) -> None:
        super().__init__(config)
        self._gate = gate
        self._door = door
        self._head_seconds = head_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002  the gate has the socket
        """Opens the gate."""
        await self.lifespan.startup()
        self.servers = []
        self._gate.open(self._protocol)
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes the gate; requests that are served are finished."""
        self._gate.close()
        await super().shutdown(sockets)

    def _protocol(self) -> GuardedProtocol:
        return GuardedProtocol(
            self.config,
            self.server_state,
            self.lifespan.state,
            head_seconds=self._head_seconds,
            not_http=lambda peer: self._door.refuse(peer, Reason.NOT_HTTP),
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def build_front(config: FrontConfig) -> FrontApp:
    """The public application with its ways to SuperLink and service, not yet listening; needs a running event loop."""
    superlink = SuperLinkClient(config.superlink_port, config.internal_authority)
    return FrontApp(config, superlink, ServiceLink(config.service_socket))


async def run_front(config: FrontConfig) -> None:
    """Serves until SIGTERM or SIGINT. Raises this process's limit of open files.

    Raises:
        OSError: an address is taken, or a file cannot be read.
        CertificateRefused: the certificate does not fit its key.
    """
    connections = connections_that_fit(config.limits.connections, raise_descriptor_limit())
    front = build_front(config)
    certificate = ServedCertificate(config.certificate, config.key)
    public_socket, own_socket = _public_socket(*config.listen), _own_socket(config.own_socket)
    door = Door(connections, config.limits.connections_per_address, front.book)
    public = _server(front, Gate(public_socket, door, certificate.context, config.handshake_seconds), door, config)
    own_door = Door(_LOCAL_CALLERS, _LOCAL_CALLERS, front.book)
    local = _server(local_app(front), Gate(own_socket, own_door, None, config.handshake_seconds), own_door, config)

    def stop() -> None:
        front.polls.close()
        public.should_exit = local.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    _LOG.info("the front listens on %s:%d", *public_socket.getsockname()[:2])
    followers = [
        asyncio.create_task(follow_allowed(config.service_socket, front.allow)),
        asyncio.create_task(certificate.follow()),
    ]
    try:
        await asyncio.gather(public.serve(), local.serve())
    finally:
        for follower in followers:
            follower.cancel()
        await front.close()
        config.own_socket.unlink(missing_ok=True)


def _server(app: ASGIApp, gate: Gate, door: Door, config: FrontConfig) -> _Server:
    settings = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        h11_max_incomplete_event_size=config.head_bytes,
        timeout_keep_alive=int(config.head_seconds),
    )
    return _Server(settings, gate, door, config.head_seconds)


def _public_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio switches Nagle's algorithm off: without it each answer waits 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def _own_socket(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)  # left by a front that was killed
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o660)
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener
