"""How often something may happen: a bucket that fills with time. Pure but for its own count."""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = ["Rates"]


@dataclass
class _Bucket:
    left: float
    at: float


class Rates:
    """Buckets by name, at most ``names`` of them; the oldest is forgotten first.

    Args:
        per_second: how fast a bucket fills.
        burst: what it holds.
        names: how many buckets are kept.
    """

    def __init__(self, per_second: float, burst: int, names: int = 1024) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._names = names
        self._buckets: dict[str, _Bucket] = {}
        self._lock = threading.Lock()

    def take(self, name: str, now: float) -> bool:
        """Whether one more may happen now; ``now`` is in seconds of any clock that does not jump."""
        with self._lock:
            bucket = self._buckets.pop(name, None) or _Bucket(self._burst, now)
            self._buckets[name] = bucket  # the newest is last
            while len(self._buckets) > self._names:
                self._buckets.pop(next(iter(self._buckets)))
            bucket.left = min(self._burst, bucket.left + max(0.0, now - bucket.at) * self._per_second)
            bucket.at = now
            if bucket.left < 1.0:
                return False
            bucket.left -= 1.0
            return True
