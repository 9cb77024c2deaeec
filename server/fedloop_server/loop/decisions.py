"""What the loop decides, each with its reason in a sentence."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedloop_core.strict import Strict

__all__ = ["AskHuman", "Decision", "Refuse", "StartRun", "Wait"]


class Wait(Strict):
    """Nothing to do yet. ``ask_ledgers`` names sites whose headroom is what the decision waits for: ask them."""

    kind: Literal["wait"] = "wait"
    reason: str
    ask_ledgers: tuple[str, ...] = ()


class StartRun(Strict):
    """Start a run of ``rounds`` rounds, warm from ``warm_from``, with ``sites``."""

    kind: Literal["start"] = "start"
    reasons: tuple[str, ...]
    warm_from: int
    rounds: int
    sites: tuple[str, ...]

    @property
    def reason(self) -> str:
        """All reasons as one sentence."""
        return "; ".join(self.reasons) + "."


class Refuse(Strict):
    """A run is called for and cannot be paid: ``sites`` have no budget left, and without them there is no quorum."""

    kind: Literal["refuse"] = "refuse"
    reason: str
    sites: tuple[str, ...]


class AskHuman(Strict):
    """A run is called for and paid, and only a person may start it."""

    kind: Literal["ask"] = "ask"
    reason: str


Decision = Annotated[Wait | StartRun | Refuse | AskHuman, Field(discriminator="kind")]
