"""Threads that do one thing again and again; one that fails is logged and goes on, and stops no other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from fedloop_core.errors import FedloopError

__all__ = ["Loop"]

_LOG = logging.getLogger(__name__)
_LONGEST_PAUSE = 30.0


class Loop:
    """Calls an action every so many seconds; after failures more and more seldom, up to every 30 seconds.

    Args:
        name: of the thread, and in the log.
        seconds: between two calls.
        action: what is done.
    """

    def __init__(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        self._name = name
        self._seconds = seconds
        self._action = action
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Ends after the call that goes on now, or leaves it alone after ``timeout`` seconds."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        failures = 0
        while not self._end.is_set():
            failures = 0 if self._try() else failures + 1
            self._end.wait(min(_LONGEST_PAUSE, self._seconds * 2 ** min(failures, 10)))

    def _try(self) -> bool:
        try:
            self._action()
        except FedloopError as error:
            _LOG.error("%s: %s", self._name, error)
            return False
        except Exception:  # noqa: BLE001 - a thread's main loop: what nobody foresaw stops nothing else
            _LOG.exception("%s failed", self._name)
            return False
        return True
