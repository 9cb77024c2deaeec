"""How often somebody may do something: token buckets, of one or of many."""

from __future__ import annotations

import threading
from collections import OrderedDict

__all__ = ["Bucket", "Rates"]

_LARGEST_WAIT = 3600.0


class Bucket:
    """Holds up to ``burst`` tokens and gains ``per_second``. Times are seconds of one clock; it gains nothing when that falls back."""

    def __init__(self, per_second: float, burst: float, now: float) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._tokens = float(burst)
        self._then = now

    def take(self, now: float) -> bool:
        """Takes a token when there is one."""
        self._fill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def wait(self, now: float) -> float:
        """Seconds until there is a token."""
        self._fill(now)
        if self._tokens >= 1.0:
            return 0.0
        return min((1.0 - self._tokens) / self._per_second, _LARGEST_WAIT) if self._per_second > 0 else _LARGEST_WAIT

    def _fill(self, now: float) -> None:
        if now > self._then:
            self._tokens = min(self._burst, self._tokens + (now - self._then) * self._per_second)
            self._then = now


class Rates:
    """One bucket for each name; those unused for longest are forgotten beyond ``names``. Threads may share it."""

    def __init__(self, per_second: float, burst: float, names: int = 10_000) -> None:
        self._per_second = per_second
        self._burst = burst
        self._names = names
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, name: str, now: float) -> bool:
        """Whether one more may happen now; if so, it counts."""
        with self._lock:
            return self._of(name, now).take(now)

    def wait(self, name: str, now: float) -> float:
        """Seconds until one more may happen."""
        with self._lock:
            return self._of(name, now).wait(now)

    def _of(self, name: str, now: float) -> Bucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = Bucket(self._per_second, self._burst, now)
            if len(self._buckets) > self._names:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(name)
        return bucket
