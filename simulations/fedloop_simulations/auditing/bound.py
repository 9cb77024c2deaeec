"""From guesses to a lower bound on epsilon (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846, theorem 5.2, appendix D)."""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.stats import binom

__all__ = ["CONFIDENCE", "epsilon_lower_bound", "highest_bound", "p_value"]

CONFIDENCE = 0.95
_HIGHEST = 60.0  # no number of guesses reaches it


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The most probable that so many right guesses are under (epsilon, delta)-differential privacy.

    Args:
        canaries: coins that were tossed.
        guesses: how many of them were guessed; fixed before.
        correct: how many guesses were right.
        epsilon: claimed.
        delta: claimed.
    """
    right = 1 / (1 + math.exp(-epsilon))
    by_chance = float(binom.sf(correct - 1, guesses, right))
    if delta == 0:
        return min(by_chance, 1.0)
    below = binom.pmf(range(correct - 1, -1, -1), guesses, right).cumsum()
    by_delta = max((float(total) / at for at, total in enumerate(below, 1)), default=0.0)
    return min(by_chance + 2 * canaries * delta * by_delta, 1.0)


def epsilon_lower_bound(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float = CONFIDENCE
) -> float:
    """The largest epsilon that these guesses refute with ``confidence``; 0 when they refute none."""

    def excess(epsilon: float) -> float:
        return p_value(canaries, guesses, correct, epsilon, delta) - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    return float(brentq(excess, 0.0, _HIGHEST, xtol=1e-9))


def highest_bound(canaries: int, guesses: int, delta: float) -> float:
    """The bound when every guess is right: no audit with so few guesses can show more."""
    return epsilon_lower_bound(canaries, guesses, guesses, delta)
