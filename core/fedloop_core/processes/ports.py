"""Ports and socket paths, looked at before anything is started."""

from __future__ import annotations

import errno
import socket
import time
from pathlib import Path

from fedloop_core.errors import ProcessFailed, SettingsInvalid

__all__ = ["check_ports", "check_socket_path", "free_port"]

_LONGEST_SOCKET_PATH = 107  # sun_path of unix(7), without its end
_WAIT_SECONDS = 5.0  # what a killed supervisor left dies within moments
_POLL_SECONDS = 0.2


def check_ports(ports: dict[str, tuple[str, int]]) -> None:
    """Binds each and lets go of it.

    Args:
        ports: host and port by what they are for, as a person would say it.

    Raises:
        ProcessFailed: one is taken or may not be used; says which.
    """
    until = time.monotonic() + _WAIT_SECONDS
    for purpose, (host, port) in ports.items():
        while (problem := _problem(host, port)) is not None:
            if problem.errno != errno.EADDRINUSE or time.monotonic() >= until:
                raise ProcessFailed(
                    f"{purpose} cannot listen on {host}:{port}: {problem.strerror}.",
                    hint="Choose another port in the settings, or end what uses it.",
                    port=port,
                )
            time.sleep(_POLL_SECONDS)


def free_port() -> int:
    """A loopback port that nobody uses now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def check_socket_path(path: Path) -> None:
    """Unix sockets have short names.

    Raises:
        SettingsInvalid: this one is too long.
    """
    if len(str(path).encode()) > _LONGEST_SOCKET_PATH:
        raise SettingsInvalid(
            f"the path of the socket {path} is too long for the system.", hint="Choose a home with a shorter path."
        )


def _problem(host: str, port: int) -> OSError | None:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
    except OSError as error:
        return error
    return None
