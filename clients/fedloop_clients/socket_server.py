"""Serves a site's endpoint on a unix socket, to processes of allowed users on this machine."""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self

from fedloop_clients.endpoint import Question, SiteEndpoint
from fedloop_clients.socket_endpoint import ANSWER, QUESTION
from fedloop_core.arrays import pack_arrays, unpack_arrays
from fedloop_core.errors import FedloopError
from fedloop_core.federation.frames import Frame, receive, send

__all__ = ["FAILED", "SocketServer", "peer_user"]

_LOG = logging.getLogger(__name__)

FAILED = "failed"  # the kind of a frame that brings no answer; it says nothing more
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_FRAME_SECONDS = 60.0
_CONNECTIONS = 8


class SocketServer:
    """Answers questions, each connection in a thread of its own.

    A peer of another user, one that sends what is no question, and one that is too slow to send a question or to take an
    answer is cut off. Beyond ``connections`` peers wait.

    Args:
        path: the socket; one that a killed process left is replaced.
        endpoint: it may be called from several threads at once.
        allowed_users: numbers of users whose processes may ask.
        connections: how many are served at once.
        frame_seconds: how long one frame may take.
        mode: permissions of the socket file.
    """

    def __init__(
        self,
        path: Path,
        endpoint: SiteEndpoint,
        *,
        allowed_users: frozenset[int],
        connections: int = _CONNECTIONS,
        frame_seconds: float = _FRAME_SECONDS,
        mode: int = 0o660,
    ) -> None:
        self._path = path
        self._endpoint = endpoint
        self._allowed = allowed_users
        self._frame_seconds = frame_seconds
        self._places = threading.BoundedSemaphore(connections)
        self._closing = threading.Event()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        path.chmod(mode)
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept, name="site-socket", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Takes no further questions; connections are broken off, and what was being answered goes to nobody."""
        self._closing.set()
        with self._lock:
            streams = [self._listener, *self._open]
        for stream in streams:
            _shut(stream)
        self._thread.join()
        self._listener.close()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while not self._closing.is_set():
            self._places.acquire()
            try:
                stream, _ = self._listener.accept()
            except OSError as error:
                self._places.release()
                if not self._closing.is_set():
                    _LOG.error("a connection to the site's socket was lost: %s", error)
                    self._closing.wait(1.0)
                continue
            threading.Thread(target=self._serve, args=(stream,), name="site-question", daemon=True).start()

    def _serve(self, stream: socket.socket) -> None:
        with self._lock:
            self._open.add(stream)
        try:
            user = peer_user(stream)
            if user not in self._allowed:
                _LOG.warning("a process of user %d is not allowed to ask this site", user)
                return
            with Connection(stream.dup().detach()) as connection:
                while not self._closing.is_set():
                    self._answer_next(stream, connection)
        except EOFError:
            return
        except (OSError, ValueError) as error:
            _LOG.warning("a connection to the site's socket broke off: %s", error)
        finally:
            with self._lock:
                self._open.discard(stream)
            _shut(stream)
            stream.close()
            self._places.release()

    def _answer_next(self, stream: socket.socket, connection: Connection) -> None:
        with self._in_time(stream):
            question = receive(connection)
        if question.kind != QUESTION:
            raise ValueError("a frame is not a question")
        answer = self._answer(question)
        with self._in_time(stream):
            send(connection, answer)

    def _answer(self, frame: Frame) -> Frame:
        try:
            arrays = {} if frame.arrays is None else unpack_arrays(frame.arrays)
            reply = self._endpoint.answer(Question(frame.body, arrays))
            packed = pack_arrays(reply.arrays) if reply.arrays else None
        except FedloopError as error:
            _LOG.error("a question was not answered: %s", error)
            return Frame(frame.number, frame.node, FAILED)
        except Exception:  # noqa: BLE001  a process boundary: the peer learns nothing of it
            _LOG.exception("a question was not answered")
            return Frame(frame.number, frame.node, FAILED)
        return Frame(frame.number, frame.node, ANSWER, reply.answer, packed)

    @contextmanager
    def _in_time(self, stream: socket.socket) -> Iterator[None]:
        watchdog = threading.Timer(self._frame_seconds, _shut, (stream,))
        watchdog.daemon = True
        watchdog.start()
        try:
            yield
        finally:
            watchdog.cancel()


def peer_user(stream: socket.socket) -> int:
    """The number of the user whose process is at the other end."""
    content = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(content)[1]
    return user


def _shut(stream: socket.socket) -> None:
    try:
        stream.shutdown(socket.SHUT_RDWR)
    except OSError:  # it has ended already
        return
