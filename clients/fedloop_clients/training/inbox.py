"""What a rank is told: read as it comes by a thread of its own, so that whoever tells never waits for the rank to compute."""

from __future__ import annotations

import os
import threading
import time
from multiprocessing.connection import Connection
from queue import SimpleQueue

from pydantic import BaseModel

from fedloop_clients.training.messages import Kind
from fedloop_core.arrays import NamedArrays, pack_arrays
from fedloop_core.federation.frames import Frame, receive, send

__all__ = ["Inbox"]

_ALIVE_SECONDS = 5.0


class Inbox:
    """A rank's end of the connection to its trainer. The process ends when the other end does.

    Args:
        connection: to the trainer.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._frames: SimpleQueue[Frame] = SimpleQueue()
        self._abandoned = threading.Event()
        self._said = time.monotonic()
        threading.Thread(target=self._read, name="inbox", daemon=True).start()
        self.say(Kind.ALIVE)

    def next(self) -> Frame:
        """The next frame, waited for."""
        return self._frames.get()

    def abandoned(self) -> bool:
        """Whether the round in hand was abandoned; tells from time to time that the rank is alive."""
        if time.monotonic() - self._said > _ALIVE_SECONDS:
            self.say(Kind.ALIVE)
        return self._abandoned.is_set()

    def forget_abandonment(self) -> None:
        """The round is over."""
        self._abandoned.clear()

    def say(self, kind: Kind, body: BaseModel | None = None, arrays: NamedArrays | None = None) -> None:
        """Tells the trainer something."""
        self._said = time.monotonic()
        content = b"" if body is None else body.model_dump_json().encode()
        frame = Frame(0, 0, kind.value, content, None if arrays is None else pack_arrays(arrays))
        try:
            send(self._connection, frame)
        except OSError:
            os._exit(0)

    def _read(self) -> None:
        try:
            while True:
                frame = receive(self._connection)
                if frame.kind == Kind.ABANDON:
                    self._abandoned.set()
                self._frames.put(frame)
        except (EOFError, OSError, ValueError):
            os._exit(0)  # whatever the main thread waits for: nobody wants it any more
