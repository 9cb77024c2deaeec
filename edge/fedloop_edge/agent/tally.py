"""Counts and latencies of a serving process."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from statistics import median

__all__ = ["Tally", "Totals"]

_LATENCIES = 256


@dataclass(frozen=True)
class Totals:
    """Counts since the process started.

    ``bookkeeping_failures`` counts rows that were answered but could not be kept for feedback; ``latency_p50_us`` is the
    median time of the last calls, 0 before the first.
    """

    predictions_served: int
    inputs_refused: int
    rows_out_of_range: int
    bookkeeping_failures: int
    latency_p50_us: float


class Tally:
    """Adds up from any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._served = self._refused = self._outside = self._unkept = 0
        self._latencies: deque[float] = deque(maxlen=_LATENCIES)

    def served(self, rows: int, outside: int, seconds: float) -> None:
        """A call answered so many rows, ``outside`` of them with a number outside its public range."""
        with self._lock:
            self._served += rows
            self._outside += outside
            self._latencies.append(seconds * 1e6)

    def refused(self) -> None:
        """A call was refused."""
        with self._lock:
            self._refused += 1

    def unkept(self, rows: int) -> None:
        """Rows were answered but not kept."""
        with self._lock:
            self._unkept += rows

    @property
    def totals(self) -> Totals:
        """The counts now."""
        with self._lock:
            latency = median(self._latencies) if self._latencies else 0.0
            return Totals(self._served, self._refused, self._outside, self._unkept, latency)
