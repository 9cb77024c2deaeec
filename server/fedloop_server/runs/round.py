"""When a round closes: a pure decision over who was asked, who answered and the clock."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

__all__ = ["RoundProgress", "Verdict"]


class Verdict(enum.Enum):
    """What to do with an open round."""

    WAIT = enum.auto()
    CLOSE = enum.auto()
    FAIL = enum.auto()


@dataclass
class RoundProgress:
    """One open round.

    ``quorum`` is the share of the asked sites whose answers a round needs, and ``least`` how many it needs however few are asked;
    ``deadline`` is seconds on the same clock as the ``now`` of ``decide``.
    """

    asked: frozenset[str]
    quorum: float
    deadline: float
    answered: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    least: int = 1

    @property
    def needed(self) -> int:
        """Number of answers that the round needs."""
        return max(self.least, math.ceil(self.quorum * len(self.asked)))

    @property
    def pending(self) -> frozenset[str]:
        """Sites that neither answered nor refused."""
        return self.asked - self.answered - self.refused

    def decide(self, now: float) -> Verdict:
        """Close when nobody is pending or the deadline has passed, with the quorum; fail when it cannot be reached."""
        if len(self.answered) + len(self.pending) < self.needed:
            return Verdict.FAIL
        if self.pending and now < self.deadline:
            return Verdict.WAIT
        return Verdict.CLOSE if len(self.answered) >= self.needed else Verdict.FAIL
