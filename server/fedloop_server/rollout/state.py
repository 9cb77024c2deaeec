"""The state of a rollout, what happens to it, and what it asks for: frozen and serialisable."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from fedloop_core.strict import Strict

__all__ = [
    "Abort",
    "Action",
    "AssignGroup",
    "Complete",
    "DeviceEnrolled",
    "DeviceReported",
    "Event",
    "Member",
    "Outcome",
    "Phase",
    "RolloutState",
    "Standing",
    "Stop",
    "Tick",
    "Wave",
]


class Outcome(StrEnum):
    """What a device made of the version. The gravest that it reports stays: a device that failed once has failed."""

    SERVING = "serving"
    REFUSED = "refused"
    ROLLED_BACK = "rolled-back"

    @property
    def failed(self) -> bool:
        """Whether the device does not run the version."""
        return self is not Outcome.SERVING

    def graver(self, other: Outcome | None) -> Outcome:
        """The graver of two: serving, refused, rolled back."""
        order = tuple(Outcome)
        return self if other is None or order.index(self) >= order.index(other) else other


class Phase(StrEnum):
    """Where a rollout stands; ``COMPLETE`` and ``ABORTED`` are final."""

    PLANNED = "planned"
    OPEN = "open"
    COMPLETE = "complete"
    ABORTED = "aborted"


class Member(Strict):
    """A device of a wave; ``outcome`` is None until it reports."""

    device: str
    outcome: Outcome | None = None


class Wave(Strict):
    """A group of devices; ``counter`` is that of its last assignment (0: none), ``opened_at`` None until it opens."""

    group: str
    members: tuple[Member, ...]
    counter: Annotated[int, Field(ge=0)]
    opened_at: int | None = None

    def with_outcome(self, outcome: Outcome) -> tuple[str, ...]:
        """The devices that reported this."""
        return tuple(member.device for member in self.members if member.outcome is outcome)

    @property
    def failed(self) -> tuple[str, ...]:
        """The devices that refused the version or went back from it."""
        return tuple(m.device for m in self.members if m.outcome is not None and m.outcome.failed)

    @property
    def unheard(self) -> tuple[str, ...]:
        """The devices that have not reported."""
        return tuple(member.device for member in self.members if member.outcome is None)


class RolloutState(Strict):
    """A rollout of ``version``; ``previous`` is what groups that have moved go back to. Times in seconds since 1970."""

    format: Literal[1]
    task: str
    version: int
    previous: int | None
    deadline_seconds: float
    maximum_refused: float
    waves: Annotated[tuple[Wave, ...], Field(min_length=1)]
    phase: Phase = Phase.PLANNED
    reason: str = ""

    @property
    def opened(self) -> tuple[Wave, ...]:
        """The waves that have opened, the open one last."""
        return tuple(wave for wave in self.waves if wave.opened_at is not None)

    def overdue(self, wave: Wave, now: int) -> bool:
        """Whether the wave's silent devices are no longer waited for."""
        return wave.opened_at is not None and now - wave.opened_at >= self.deadline_seconds

    def standing(self, now: int) -> Standing:
        """The rollout in numbers and names, for people."""
        opened = self.opened
        held = (
            self.phase is Phase.OPEN
            and self.overdue(opened[-1], now)
            and bool(opened[-1].members)
            and not opened[-1].with_outcome(Outcome.SERVING)
        )
        return Standing(
            phase=self.phase,
            group=opened[-1].group if self.phase is Phase.OPEN else None,
            serving=tuple(d for wave in opened for d in wave.with_outcome(Outcome.SERVING)),
            failed=tuple(d for wave in opened for d in wave.failed),
            silent=tuple(d for wave in opened if self.overdue(wave, now) for d in wave.unheard),
            waiting=tuple(d for wave in opened if not self.overdue(wave, now) for d in wave.unheard),
            held=held,
            reason=self.reason,
        )


@dataclass(frozen=True)
class Standing:
    """Devices of the opened waves by what is known of them.

    ``held``: the open wave's deadline is over and not one of its devices serves the version; that is no evidence, so the
    wave stays open until one does, or a person stops the rollout.
    """

    phase: Phase
    group: str | None
    serving: tuple[str, ...]
    failed: tuple[str, ...]
    silent: tuple[str, ...]
    waiting: tuple[str, ...]
    held: bool
    reason: str


@dataclass(frozen=True)
class DeviceReported:
    """A device says what it made of a version; ``counter`` is that of its assignment, 0 when it does not say."""

    device: str
    outcome: Outcome
    version: int
    counter: int = 0


@dataclass(frozen=True)
class DeviceEnrolled:
    """A device joined a group while the rollout runs."""

    device: str
    group: str


@dataclass(frozen=True)
class Tick:
    """Time passed; every decision is made at a tick."""

    now: int


@dataclass(frozen=True)
class Stop:
    """A person stops the rollout."""

    reason: str


Event = DeviceReported | DeviceEnrolled | Tick | Stop


class AssignGroup(Strict):
    """Assign a version to a group under a counter."""

    kind: Literal["assign"] = "assign"
    group: str
    version: int
    counter: int
    rollback_of: int | None = None


class Complete(Strict):
    """Every wave has settled: the version may go into production."""

    kind: Literal["complete"] = "complete"


class Abort(Strict):
    """The version is taken back; the assignments that take it back follow."""

    kind: Literal["abort"] = "abort"
    reason: str


Action = Annotated[AssignGroup | Complete | Abort, Field(discriminator="kind")]
