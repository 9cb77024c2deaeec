"""Threads of the daemon process that go on whatever happens, and waiting between tries."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from fedloop_core.errors import FedloopError

__all__ = ["Backoff", "keep_going"]

_LOG = logging.getLogger(__name__)


class Backoff:
    """Seconds to wait after failures in a row: doubling, with a random part so that sites do not come back all at once."""

    def __init__(self, first: float = 0.5, most: float = 30.0) -> None:
        self._first = first
        self._most = most
        self._failures = 0

    def succeeded(self) -> None:
        """The next failure is the first again."""
        self._failures = 0

    def failed(self) -> float:
        """Seconds to wait now."""
        bound = min(self._first * 2.0**self._failures, self._most)
        self._failures = min(self._failures + 1, 32)
        return bound * random.uniform(0.5, 1.0)  # noqa: S311  guards nothing


def keep_going(name: str, once: Callable[[], float], stop: threading.Event) -> threading.Thread:
    """Starts a thread that calls ``once`` again and again, waiting as many seconds as it returns.

    What it raises is logged, and it is called again: a part that fails stops no other and not itself.
    """

    def loop() -> None:
        backoff = Backoff(1.0, 60.0)
        while not stop.is_set():
            try:
                seconds = once()
            except FedloopError as error:
                seconds = backoff.failed()
                _LOG.error("%s: %s", name, error)
            except Exception:  # noqa: BLE001  a thread's boundary
                seconds = backoff.failed()
                _LOG.exception("%s: an unexpected error", name)
            else:
                backoff.succeeded()
            stop.wait(seconds)

    thread = threading.Thread(target=loop, name=name, daemon=True)
    thread.start()
    return thread
