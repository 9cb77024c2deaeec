"""How often one address may fail to enrol."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque

from fedloop_core.errors import EnrollmentRefused

__all__ = ["FailedTries"]

_ADDRESSES = 1024


class FailedTries:
    """Counts failures of each address within a window; the oldest addresses are forgotten first."""

    def __init__(self, limit: int, window_seconds: int) -> None:
        self._limit = limit
        self._window_seconds = window_seconds
        self._failures: OrderedDict[str, deque[int]] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, address: str, now_unix: int) -> None:
        """Refuses an address with too many failures.

        Raises:
            EnrollmentRefused: the address has to wait.
        """
        with self._lock:
            failures = self._failures.get(address, deque())
            while failures and failures[0] <= now_unix - self._window_seconds:
                failures.popleft()
            if len(failures) >= self._limit:
                raise EnrollmentRefused("too many tries from this address.", hint="Wait a minute.", reason="tries")

    def failed(self, address: str, now_unix: int) -> None:
        """Counts a failure."""
        with self._lock:
            self._failures.setdefault(address, deque(maxlen=self._limit)).append(now_unix)
            self._failures.move_to_end(address)
            while len(self._failures) > _ADDRESSES:
                self._failures.popitem(last=False)
