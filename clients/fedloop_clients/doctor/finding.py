"""What a check finds, and what a check is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fedloop_clients.doctor.scene import Scene

__all__ = ["Check", "Finding", "Level", "fine", "problem", "warning"]


class Level(StrEnum):
    """How bad it is: a site with a problem cannot work, one with a warning can."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One sentence about one thing, and what to do about it; nothing is to be done when all is well."""

    level: Level
    sentence: str
    action: str = ""


def fine(sentence: str) -> Finding:
    """All is well."""
    return Finding(Level.OK, sentence)


def warning(sentence: str, action: str) -> Finding:
    """The site works, and somebody should look at this."""
    return Finding(Level.WARNING, sentence, action)


def problem(sentence: str, action: str) -> Finding:
    """The site cannot work like this."""
    return Finding(Level.PROBLEM, sentence, action)


class Check(Protocol):
    """Looks at one thing. It changes nothing, ends within the scene's times, and may find nothing to say."""

    @property
    def name(self) -> str:
        """One or two words: what is looked at."""
        ...

    def look(self, scene: Scene) -> Iterable[Finding]:
        """What is found.

        Raises:
            FedloopError: a problem; its message is the sentence, and its hint what to do.
        """
        ...
