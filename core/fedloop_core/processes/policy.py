"""When a process that has died is started again: a pure decision over how often it died in a row."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RestartPolicy"]


@dataclass(frozen=True)
class RestartPolicy:
    """Waits that double from ``first`` to ``longest`` seconds; a process that lived ``reset_after`` seconds starts afresh.

    A process is never given up: what it needs (a network, a disk, another process) may come back at any time.
    """

    first: float = 0.5
    longest: float = 30.0
    reset_after: float = 60.0
    tell_after: int = 5

    def deaths(self, before: int, alive_seconds: float) -> int:
        """Deaths in a row, this one included, of a process that had died ``before`` times and then lived so long."""
        return 1 if alive_seconds >= self.reset_after else before + 1

    def wait(self, deaths: int) -> float:
        """Seconds until the next start after so many deaths in a row (at least one)."""
        doublings = min(deaths - 1, 64)  # a float holds no more than 2**1023
        return min(self.first * 2.0**doublings, self.longest)

    def tells(self, deaths: int) -> bool:
        """Whether a person should hear of it: at ``tell_after`` deaths in a row, and at every doubling from there."""
        if deaths < self.tell_after or deaths % self.tell_after:
            return False
        times = deaths // self.tell_after
        return times & (times - 1) == 0
