"""Serves an ASGI application on a unix socket, in a thread of its own."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from fedloop_core.errors import ProcessFailed

__all__ = ["SocketServer"]

_START_SECONDS = 30.0
_STOP_SECONDS = 3


class SocketServer:
    """A door on this machine alone: its user's, and its group's (0660), through which the front's user comes.

    Args:
        path: of the socket; one that a dead process left behind is replaced.
        application: what answers.
    """

    def __init__(self, path: Path, application: Starlette) -> None:
        self._path = path
        config = uvicorn.Config(
            application,
            log_level="warning",
            access_log=False,
            lifespan="off",
            http="h11",
            ws="none",
            loop="asyncio",
            timeout_graceful_shutdown=_STOP_SECONDS,
            h11_max_incomplete_event_size=16 << 10,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="door", daemon=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def start(self) -> None:
        """Listens and begins to answer.

        Raises:
            ProcessFailed: the socket cannot be made, or nothing answers.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)
            self._socket.bind(str(self._path))
            self._path.chmod(0o660)
            self._socket.listen(64)
        except OSError as error:
            raise ProcessFailed(
                f"cannot listen on {self._path}: {error.strerror or error}.",
                hint="A socket's path may have 107 characters: choose a shorter home.",
            ) from error
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise ProcessFailed(f"nothing answers on {self._path}.")
            time.sleep(0.01)

    def stop(self) -> None:
        """Stops answering and removes the socket."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS + 5)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])
