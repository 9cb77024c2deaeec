"""What the loop learns. Everything here has been charged at its site, is public, or was said by a person."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedloop_core.strict import Strict

__all__ = ["Approval", "Clock", "Event", "LabelCount", "LedgerHeadroom", "RunEnded", "SiteSilent", "SiteVerdict"]

Natural = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class SiteVerdict(Strict):
    """A site's monitor says of one window whether the world has drifted; ``drift`` tells what, if the site may tell."""

    kind: Literal["verdict"] = "verdict"
    site: str
    version: Count
    window: Count
    drifted: bool
    drift: Literal["covariate", "prediction", "quality"] | None = None

    def __str__(self) -> str:
        told = f"{self.drift or 'some'} drift" if self.drifted else "no drift"
        return f"{self.site} reports {told} in window {self.window} of version {self.version}"


class LabelCount(Strict):
    """Labelled examples at a site that no run has trained on yet."""

    kind: Literal["labels"] = "labels"
    site: str
    count: Natural

    def __str__(self) -> str:
        return f"{self.site} holds {self.count} new labelled examples"


class LedgerHeadroom(Strict):
    """Whether a site's ledger would admit a whole run as planned, and the coordinator's record of what whole sites have spent too."""

    kind: Literal["headroom"] = "headroom"
    site: str
    affordable: bool
    hidden: bool = True

    def __str__(self) -> str:
        if self.affordable and not self.hidden:
            return f"the budget for whole sites does not admit another run with {self.site}"
        return f"{self.site}'s ledger {'admits' if self.affordable else 'does not admit'} another run"


class SiteSilent(Strict):
    """A site tells nothing more ``about`` a version, or about labels, since what it would tell of has no budget left."""

    kind: Literal["silent"] = "silent"
    site: str
    version: Count
    about: Literal["drift", "labels"]

    def __str__(self) -> str:
        what = f"drift under version {self.version}" if self.about == "drift" else "labels"
        return f"{self.site} has no privacy budget left to tell of {what}"


class Clock(Strict):
    """The time, in seconds since 1970 or in ticks of a simulation; it only stamps explanations."""

    kind: Literal["clock"] = "clock"
    now: Natural

    def __str__(self) -> str:
        return f"it is {self.now}"


class RunEnded(Strict):
    """A run that the loop or a person started is over; ``version`` is what it released, absent when it released none."""

    kind: Literal["ended"] = "ended"
    version: Count | None

    def __str__(self) -> str:
        return "the run released nothing" if self.version is None else f"the run released version {self.version}"


class Approval(Strict):
    """A person allows the next run, and starts the count of runs without a person anew."""

    kind: Literal["approval"] = "approval"
    by: Annotated[str, Field(min_length=1, max_length=200)]

    def __str__(self) -> str:
        return f"{self.by} approves the next run"


Event = Annotated[
    SiteVerdict | LabelCount | LedgerHeadroom | SiteSilent | Clock | RunEnded | Approval, Field(discriminator="kind")
]
