"""Threads that do one thing again and again; one that fails is logged and goes on, and stops no other."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from fedloop_core.errors import FedloopError

__all__ = ["Loop"]

_LOG = logging.getLogger(__name__)
_SAID_AGAIN_SECONDS = 60.0


class Loop:
    """Calls an action every so many seconds; after failures more and more seldom, up to ``longest`` seconds.

    The same failure is told once a minute.

    Args:
        name: of the thread, and in the log.
        seconds: between two calls.
        action: what is done.
        longest: pause after failures, in seconds.
    """

    def __init__(self, name: str, seconds: float, action: Callable[[], object], *, longest: float = 30.0) -> None:
        self._name = name
        self._seconds = seconds
        self._action = action
        self._longest = longest
        self._told = ("", 0.0)
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
            self._end.wait(min(max(self._longest, self._seconds), self._seconds * 2 ** min(failures, 10)))

    def _try(self) -> bool:
        try:
            self._action()
        except FedloopError as error:
            if self._is_news(str(error)):
                _LOG.error("%s: %s", self._name, error)
            return False
        except Exception as error:  # noqa: BLE001 - a thread's main loop: what nobody foresaw stops nothing else
            if self._is_news(repr(error)):
                _LOG.exception("%s failed", self._name)
            return False
        self._told = ("", 0.0)
        return True

    def _is_news(self, text: str) -> bool:
        now = time.monotonic()
        told, at = self._told
        if text == told and now - at < _SAID_AGAIN_SECONDS:
            return False
        self._told = (text, now)
        return True
