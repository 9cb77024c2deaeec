"""How anything reaches a site: one question in, one answer out, whatever carries them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fedloop_core.arrays import NamedArrays

__all__ = ["Question", "Reply", "SiteEndpoint"]


@dataclass(frozen=True)
class Question:
    """A serialised ``coordination.v1.Envelope`` and the arrays beside it."""

    envelope: bytes
    arrays: NamedArrays


@dataclass(frozen=True)
class Reply:
    """A serialised ``coordination.v1.SignedAnswer`` and the arrays beside it."""

    answer: bytes
    arrays: NamedArrays


class SiteEndpoint(Protocol):
    """A site. It never raises for bad questions or bad data: it answers with a refusal."""

    def answer(self, question: Question) -> Reply:
        """Answers one question."""
