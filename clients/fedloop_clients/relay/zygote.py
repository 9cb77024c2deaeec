"""The relay server's one thread: it listens, forks a child for each call, and says how the child ended."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

from pydantic import ValidationError

from fedloop_clients.relay.child import Call, become
from fedloop_clients.socket_server import peer_user

__all__ = ["Zygote"]

_LOG = logging.getLogger(__name__)
_LARGEST_CALL = 192 * 1024  # bytes of one packet: arguments and environment
_FILES = 3
_CONNECTIONS = 64
_CALL_SECONDS = 5.0  # for a peer to say what it wants
_TICK = 1.0
_END_SECONDS = 5.0


@dataclass
class _Connection:
    stream: socket.socket
    since: float


@dataclass
class _Child:
    pid: int
    handle: int  # a pidfd, readable when the child has ended
    connection: _Connection | None  # None: the caller has gone


@dataclass
class _State:
    waiting: dict[int, _Connection] = field(default_factory=dict)  # by file descriptor
    children: dict[int, _Child] = field(default_factory=dict)  # by pidfd
    callers: dict[int, _Child] = field(default_factory=dict)  # by the caller's file descriptor


class Zygote:
    """Forks a child for each call; a child runs ``entry`` with the caller's arguments, environment, folder and files.

    Args:
        path: a unix socket of packets; one that a killed process left is replaced.
        entry: what a child does, as a console script.
        allowed_users: numbers of users whose processes may call.
    """

    def __init__(self, path: Path, entry: Callable[[], object], *, allowed_users: frozenset[int]) -> None:
        self._path = path
        self._entry = entry
        self._allowed = allowed_users
        self._selector = DefaultSelector()
        self._state = _State()
        self._stopping = False
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        path.chmod(0o600)
        self._listener.listen(_CONNECTIONS)
        self._listener.setblocking(False)
        self._selector.register(self._listener, EVENT_READ, self._accept)

    def serve(self) -> None:
        """Runs until SIGTERM or SIGINT; then its children are ended."""
        wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(woken)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop())
        self._selector.register(wake, EVENT_READ, lambda: os.read(wake, 64))
        gc.collect()
        gc.freeze()  # what is loaded now is shared with all children
        while not self._stopping:
            self._turn(_TICK)
        self._end_children()
        self._path.unlink(missing_ok=True)

    def _stop(self) -> None:
        self._stopping = True

    def _turn(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            if key.fd in self._selector.get_map():
                key.data()
        late = time.monotonic() - _CALL_SECONDS
        for connection in [c for c in self._state.waiting.values() if c.since < late]:
            self._drop(connection)

    def _accept(self) -> None:
        try:
            stream, _ = self._listener.accept()
        except OSError as error:
            _LOG.warning("a call was lost: %s", error)
            return
        if peer_user(stream) not in self._allowed or len(self._state.waiting) >= _CONNECTIONS:
            _LOG.warning("a call of user %d is refused", peer_user(stream))
            stream.close()
            return
        stream.setblocking(False)
        connection = _Connection(stream, time.monotonic())
        self._state.waiting[stream.fileno()] = connection
        self._selector.register(stream, EVENT_READ, lambda: self._take(connection))

    def _take(self, connection: _Connection) -> None:
        stream = connection.stream
        files: list[int] = []
        try:
            content, files, flags, _ = socket.recv_fds(stream, _LARGEST_CALL, _FILES)
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(files) != _FILES:
                raise ValueError("a call is too long, or without its files")
            call = Call.model_validate_json(content)
            self._start(connection, call, files)
        except (OSError, ValueError, ValidationError) as error:
            _LOG.warning("a call cannot be served: %s", error)
            self._drop(connection)
        finally:
            for number in files:
                os.close(number)

    def _start(self, connection: _Connection, call: Call, files: list[int]) -> None:
        pid = os.fork()
        if pid == 0:
            become(call, files, self._entry)  # never returns
        child = _Child(pid, os.pidfd_open(pid), connection)
        descriptor = connection.stream.fileno()
        del self._state.waiting[descriptor]
        self._state.callers[descriptor] = child
        self._state.children[child.handle] = child
        self._selector.register(child.handle, EVENT_READ, lambda: self._reap(child))
        self._selector.modify(connection.stream, EVENT_READ, lambda: self._lose(child))
        _tell(connection, f"started {pid}")

    def _reap(self, child: _Child) -> None:
        status = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        self._selector.unregister(child.handle)
        os.close(child.handle)
        del self._state.children[child.handle]
        if status < 0:
            _LOG.warning("a call was ended by signal %d", -status)
        if child.connection is not None:
            connection = child.connection
            _tell(connection, f"ended {status if status >= 0 else 128 - status}")
            self._forget(connection)

    def _lose(self, child: _Child) -> None:
        """The caller was ended without being able to say so: its call ends too."""
        connection, child.connection = child.connection, None
        if connection is not None:
            self._forget(connection)
        os.kill(child.pid, signal.SIGTERM)

    def _forget(self, connection: _Connection) -> None:
        self._state.callers.pop(connection.stream.fileno(), None)
        self._selector.unregister(connection.stream)
        connection.stream.close()

    def _drop(self, connection: _Connection) -> None:
        self._state.waiting.pop(connection.stream.fileno(), None)
        self._selector.unregister(connection.stream)
        connection.stream.close()

    def _end_children(self) -> None:
        for child in self._state.children.values():
            os.kill(child.pid, signal.SIGTERM)
        end = time.monotonic() + _END_SECONDS
        while self._state.children and time.monotonic() < end:
            self._turn(0.1)
        for child in self._state.children.values():
            os.kill(child.pid, signal.SIGKILL)
        while self._state.children:
            self._turn(0.1)


def _tell(connection: _Connection, text: str) -> None:
    try:
        connection.stream.send(text.encode())
    except OSError:  # the caller has gone, which its descriptor tells next
        return
