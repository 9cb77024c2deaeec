"""The driving process's side of one worker: what it was asked, what it has answered, and its end."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from flwr.app import Error, Message

from fedloop_core.errors import RunError
from fedloop_core.federation.frames import Frame, receive, send
from fedloop_simulations.record_frames import frame_of, records_of
from fedloop_simulations.site_worker import ANSWER, READY, SiteFactory, serve

__all__ = ["WorkerProcess"]

_LOG = logging.getLogger(__name__)
_AHEAD = (
    4  # questions that lie in a worker at once: it is never idle, and a large model is not there once for each site
)
_NODE_UNAVAILABLE = 5  # flwr.common.constant.ErrorCode.NODE_UNAVAILABLE
_ENDS_WITHIN = 5.0  # seconds that a worker may take for the question in hand when the run is over


class WorkerProcess:
    """Starts a process for the sites, given as names by node id."""

    def __init__(self, sites: Mapping[int, str], factory: SiteFactory) -> None:
        context = multiprocessing.get_context("forkserver")
        # Workers are forked from a process that has loaded Flower once.
        context.set_forkserver_preload([serve.__module__])
        self.sites = dict(sites)
        self.connection, far = context.Pipe()
        self._process = context.Process(target=serve, args=(far, self.sites, factory), daemon=True)
        self._asked: dict[int, Message] = {}  # by number, until the reply is here
        self._queued: deque[Frame] = deque()  # those of them that are not sent yet
        self.alive = True
        with _one_thread(), far:  # our copy of the far end must go, or the pipe would outlive the worker
            self._process.start()

    def wait_until_ready(self, seconds: float) -> None:
        """Waits for the sites.

        Raises:
            RunError: they could not be made, or not in time; names them.
        """
        try:
            said = receive(self.connection) if self.connection.poll(seconds) else None
        except (EOFError, OSError):
            raise RunError(self._ended()) from None
        if said is None or said.kind != READY:
            why = f"are not ready after {seconds:g} s" if said is None else f"cannot be made: {said.body.decode()}"
            raise RunError(f"sites {self._names()} {why}.")

    def ask(self, number: int, message: Message) -> None:
        """Sends a question, now or when the worker has answered others.

        Raises:
            RunError: it is too long.
            UpdateRefused: its records are not ours.
        """
        metadata = message.metadata
        self._queued.append(frame_of(number, metadata.dst_node_id, metadata.message_type, message.content))
        self._asked[number] = message
        self._send()

    def take_replies(self) -> list[Message]:
        """Waits for the next reply; when the worker has died, error replies to all that it was asked."""
        try:
            frame = receive(self.connection)
        except (EOFError, OSError):
            return self._lose()
        question = self._asked.pop(frame.number)
        self._send()
        if frame.kind != ANSWER:
            return [Message(Error(int(frame.kind)), reply_to=question)]
        return [Message(records_of(frame), reply_to=question)]

    def refuse(self, message: Message) -> Message:
        """The reply to a question to a worker that has died."""
        return Message(Error(_NODE_UNAVAILABLE), reply_to=message)

    def end(self) -> None:
        """Waits for the process to end, after its connection was closed, and ends it if it does not."""
        self._process.join(_ENDS_WITHIN)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()

    def _send(self) -> None:
        while self._queued and len(self._asked) - len(self._queued) < _AHEAD:
            try:
                send(self.connection, self._queued.popleft())
            except OSError:  # it has died, which reading will find out
                return

    def _lose(self) -> list[Message]:
        self.alive = False
        _LOG.warning("%s", self._ended())
        replies = [self.refuse(question) for question in self._asked.values()]
        self._asked.clear()
        self._queued.clear()
        return replies

    def _ended(self) -> str:
        self._process.join(_ENDS_WITHIN)
        return f"a worker process ended with status {self._process.exitcode}; with it went sites {self._names()}."

    def _names(self) -> str:
        return ", ".join(sorted(self.sites.values()))


@contextmanager
def _one_thread() -> Iterator[None]:
    """What is started meanwhile computes on one thread: libraries read this when they are loaded."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
