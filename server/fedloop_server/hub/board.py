"""Tells open streams and the front that membership changed, also when another process changed it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from fedloop_core.errors import FedloopError

__all__ = ["MembershipBoard"]

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.25


class MembershipBoard:
    """The newest revision of membership, for any number of waiting threads; one thread of its own asks for it.

    ``revision`` is called several times a second.
    """

    def __init__(self, revision: Callable[[], int]) -> None:
        self._ask = revision
        self._changed = threading.Condition()
        self._revision = revision()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="membership-board", daemon=True)

    def start(self) -> None:
        """Begins to follow."""
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether the process is stopping."""
        return self._end.is_set()

    @property
    def revision(self) -> int:
        """The newest that was seen."""
        return self._revision

    def wait(self, known: int, seconds: float) -> int:
        """Waits until the revision differs from ``known``, the board closes, or the time is over.

        It may also become lower, when the database was restored.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self._revision != known, seconds)
            return self._revision

    def wake(self) -> None:
        """Wakes everyone up to look again, though nothing changed."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Wakes everyone up and ends the thread."""
        self._end.set()
        self.wake()
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        while not self._end.wait(_POLL_SECONDS):
            try:
                newest = self._ask()
            except FedloopError as error:
                _LOG.warning("the revision of membership cannot be read: %s", error)
                continue
            if newest != self._revision:
                with self._changed:
                    self._revision = newest
                    self._changed.notify_all()
