"""The site daemon as seen from the relay: a ``SiteEndpoint`` at the other end of a unix socket."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from fedloop_clients.endpoint import Question, Reply
from fedloop_core.arrays import pack_arrays, unpack_arrays
from fedloop_core.errors import ProcessFailed, SettingsInvalid
from fedloop_core.federation.frames import Frame, receive, send

__all__ = ["ANSWER", "QUESTION", "SOCKET_VARIABLE", "SocketEndpoint", "endpoint_from_environment"]

_LOG = logging.getLogger(__name__)

SOCKET_VARIABLE = "FEDLOOP_SITE_SOCKET"
QUESTION = "question"  # kinds of frames; body and arrays are those of Question and Reply
ANSWER = "answer"
_PATIENCE = 60.0
_PAUSE = 0.2


class SocketEndpoint:
    """Asks the daemon over its socket. A daemon that ends meanwhile is asked again: it answers a question once.

    What it raises says nothing of this machine, because Flower sends an exception's text to the coordinator.

    Args:
        path: the daemon's socket.
        patience: seconds to wait for a daemon that is not there.
    """

    def __init__(self, path: Path, patience: float = _PATIENCE) -> None:
        self._path = path
        self._patience = patience

    def answer(self, question: Question) -> Reply:
        """Waits for the daemon's answer, as long as it takes.

        Raises:
            ProcessFailed: the daemon is not there, or it cannot answer.
            RunError: the question is too long.
        """
        arrays = pack_arrays(question.arrays) if question.arrays else None
        frame = Frame(1, 0, QUESTION, question.envelope, arrays)
        end = time.monotonic() + self._patience
        while True:
            try:
                reply = self._ask(frame)
            except (OSError, EOFError, ValueError) as error:
                _LOG.warning("the site's daemon does not answer at %s: %r", self._path, error)
                if time.monotonic() >= end:
                    raise ProcessFailed("the site's daemon does not answer.") from None
                time.sleep(_PAUSE)
                continue
            if reply.kind != ANSWER:
                raise ProcessFailed("the site's daemon could not answer.")
            return Reply(reply.body, {} if reply.arrays is None else unpack_arrays(reply.arrays))

    def _ask(self, frame: Frame) -> Frame:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.connect(str(self._path))
            with Connection(stream.detach()) as connection:
                send(connection, frame)
                return receive(connection)


class _FromEnvironment:
    """Looks for the socket's path at the first question: the module that holds the app is imported without it, too."""

    def __init__(self, make: Callable[[Path], SocketEndpoint]) -> None:
        self._make = make

    def answer(self, question: Question) -> Reply:
        """As ``SocketEndpoint.answer``.

        Raises:
            SettingsInvalid: the environment names no socket.
        """
        path = os.environ.get(SOCKET_VARIABLE, "")
        if not path:
            raise SettingsInvalid(f"{SOCKET_VARIABLE} is not set.", hint="Start the site by `fedloop site up`.")
        return self._make(Path(path)).answer(question)


def endpoint_from_environment() -> _FromEnvironment:
    """The daemon whose socket the environment names when the first question comes."""
    return _FromEnvironment(SocketEndpoint)
