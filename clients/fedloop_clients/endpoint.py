"""The one door of a site: questions in, replies out, whoever carries them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fedloop_core.arrays import NamedArrays

__all__ = ["Question", "Reply", "SiteEndpoint"]


@dataclass(frozen=True)
class Question:
    """A serialised ``coordination.v1.Envelope`` and the arrays that it binds by digest."""

    envelope: bytes
    arrays: NamedArrays


@dataclass(frozen=True)
class Reply:
    """A serialised ``coordination.v1.Answer`` and the arrays that it binds by digest."""

    answer: bytes
    arrays: NamedArrays


class SiteEndpoint(Protocol):
    """Answers questions; a bad question or bad data is a refusal in the answer and never an exception."""

    def answer(self, question: Question) -> Reply:
        """Answers one question."""
