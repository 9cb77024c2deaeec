"""Somebody who looks on while a round is trained, and may end it."""

from __future__ import annotations

from typing import Protocol

__all__ = ["TrainingWatch", "Unwatched"]


class TrainingWatch(Protocol):
    """Told of each optimisation step before it is taken; whatever it raises ends the training there."""

    def at_step(self, step: int, steps: int) -> None:
        """Step ``step`` of ``steps`` is about to be taken; they count from 1."""

    def between_batches(self) -> None:
        """A part of a batch that does not fit the memory whole has been computed."""


class Unwatched:
    """Nobody looks."""

    def at_step(self, step: int, steps: int) -> None:
        """Nothing."""

    def between_batches(self) -> None:
        """Nothing."""
