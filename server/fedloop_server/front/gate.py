"""Where connections come in: each counts from the moment it is accepted, long before it has said who it is.

asyncio's own listener starts TLS for whoever connects, and tells its protocol only when that has succeeded: a stranger who
never says a word would hold sockets that nobody counts.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable

from fedloop_server.front.addresses import address_key
from fedloop_server.front.protocol import GuardedProtocol
from fedloop_server.front.refusals import Caller, Denial, Reason, RefusalBook
from fedloop_server.rates import Bucket

__all__ = ["Door", "Gate"]

_LOG = logging.getLogger(__name__)
_AT_ONCE = 64  # accepted before others have their turn
_PAUSE = 1.0  # seconds, when the system has no descriptor or memory for one more
_TOLD_PER_SECOND = 1 / 60
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)
_ORDERLY_CLOSE = struct.pack("ii", 0, 0)


class Door:
    """Counts open connections, in all and by address.

    Args:
        total: connections at once.
        each: connections of one address at once.
        book: takes down who is not let in.
    """

    def __init__(self, total: int, each: int, book: RefusalBook) -> None:
        self._total = total
        self._each = each
        self._open: Counter[str] = Counter()
        self._book = book

    @property
    def open(self) -> int:
        """How many are open now."""
        return self._open.total()

    def enter(self, peer: str) -> bool:
        """Whether one more is let in; if so, ``leave`` must follow."""
        key = address_key(peer)
        if self._open.total() >= self._total or self._open[key] >= self._each:
            self.refuse(peer, Reason.CONNECTIONS)
            return False
        self._open[key] += 1
        return True

    def leave(self, peer: str) -> None:
        """A connection has ended."""
        key = address_key(peer)
        self._open[key] -= 1
        if self._open[key] <= 0:
            del self._open[key]

    def refuse(self, peer: str, reason: Reason) -> None:
        """Notes what never became a request."""
        self._book.note(Caller(peer, "", ""), Denial(400, reason))


class Gate:
    """Accepts the connections of one listener and hands those that are let in to a protocol.

    Who is not let in, or does not finish TLS in time, is reset and not closed in good order: a SuperNode (flwr 1.42) tries
    again after a reset, but gives up for ever when TLS ends in its middle.

    Args:
        listener: listens already, and does not block.
        door: says who is let in.
        certificate: for TLS; None on a local socket.
        seconds: for the TLS handshake, and for its end.
    """

    def __init__(self, listener: socket.socket, door: Door, certificate: ssl.SSLContext | None, seconds: float) -> None:
        self._listener = listener
        self._door = door
        self._certificate = certificate
        self._seconds = seconds if certificate is not None else None
        self._serving: set[asyncio.Task[None]] = set()
        self._paused: asyncio.TimerHandle | None = None
        self._told = Bucket(_TOLD_PER_SECOND, 1, 0.0)
        self._make: Callable[[], GuardedProtocol] | None = None

    def open(self, make: Callable[[], GuardedProtocol]) -> None:
        """Accepts from now on; ``make`` is called for each connection. Needs a running event loop."""
        self._make = make
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Accepts no more, and breaks off who has not finished TLS; connections that are served go on."""
        asyncio.get_running_loop().remove_reader(self._listener)
        if self._paused is not None:
            self._paused.cancel()
        self._listener.close()
        for task in self._serving:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue  # it has gone before its turn came
            except OSError as error:
                self._pause(error)
                return
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            peer = address[0] if address else ""  # callers of a unix socket have none
            if not self._door.enter(peer):
                connection.close()
                continue
            task = asyncio.get_running_loop().create_task(self._serve(connection, peer))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    def _pause(self, error: OSError) -> None:
        """The listener stays ready to be read while the system has no descriptor: asking on would keep a core busy."""
        loop = asyncio.get_running_loop()
        if self._told.take(loop.time()):
            _LOG.error("no connection can be accepted, this is tried again each second: %s", error)
        loop.remove_reader(self._listener)
        self._paused = loop.call_later(_PAUSE, loop.add_reader, self._listener, self._accept)

    async def _serve(self, connection: socket.socket, peer: str) -> None:
        try:
            _, protocol = await asyncio.get_running_loop().connect_accepted_socket(
                self._new_protocol,
                connection,
                ssl=self._certificate,
                ssl_handshake_timeout=self._seconds,
                ssl_shutdown_timeout=self._seconds,
            )
            if protocol.begun:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ORDERLY_CLOSE)
                await protocol.ended.wait()
        except ConnectionAbortedError:  # so asyncio calls a handshake that takes too long
            self._door.refuse(peer, Reason.HANDSHAKE)
        except OSError:
            return  # TLS has failed, or the caller has gone: nothing was asked
        finally:
            self._door.leave(peer)

    def _new_protocol(self) -> GuardedProtocol:
        if self._make is None:
            raise RuntimeError("the gate is not open")
        return self._make()
