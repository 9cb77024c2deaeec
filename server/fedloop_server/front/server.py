"""Runs the front: one public TLS listener, one unix socket, and what follows certificate and list of nodes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Generator
from functools import partial
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from fedloop_server.front.allowed import follow_allowed
from fedloop_server.front.app import FrontApp
from fedloop_server.front.certificates import ServedCertificate
from fedloop_server.front.config import FrontConfig
from fedloop_server.front.local import local_app
from fedloop_server.front.protocol import Door, GuardedProtocol
from fedloop_server.front.upstream import ServiceLink, SuperLinkClient

__all__ = ["build_front", "run_front"]

_LOG = logging.getLogger(__name__)
_BACKLOG = 512
_GRACE_SECONDS = 3


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs several servers in one process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def build_front(config: FrontConfig) -> FrontApp:
    """The public application with its ways to SuperLink and service, not yet listening; needs a running event loop."""
    superlink = SuperLinkClient(config.superlink_port, config.internal_authority)
    return FrontApp(config, superlink, ServiceLink(config.service_socket))


async def run_front(config: FrontConfig) -> None:
    """Serves until SIGTERM or SIGINT.

    Raises:
        OSError: an address is taken, or a file cannot be read.
        CertificateRefused: the certificate does not fit its key.
    """
    front = build_front(config)
    certificate = ServedCertificate(config.certificate, config.key)
    public_socket, own_socket = _public_socket(*config.listen), _own_socket(config.own_socket)
    public = _public_server(front, certificate, Door(config, front.book), config)
    local = _local_server(local_app(front))

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
        await asyncio.gather(public.serve([public_socket]), local.serve([own_socket]))
    finally:
        for follower in followers:
            follower.cancel()
        await front.close()
        config.own_socket.unlink(missing_ok=True)


def _public_server(front: FrontApp, certificate: ServedCertificate, door: Door, config: FrontConfig) -> uvicorn.Server:
    return _server(
        front,
        http=partial(GuardedProtocol, door=door),
        ssl_context_factory=lambda *_: certificate.context,
        h11_max_incomplete_event_size=config.head_bytes,
        timeout_keep_alive=int(config.head_seconds),
    )


def _local_server(app: ASGIApp) -> uvicorn.Server:
    return _server(app, http="h11")


def _server(app: ASGIApp, **options: object) -> uvicorn.Server:
    settings = uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        **options,  # type: ignore[arg-type]
    )
    return _Server(settings)


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
