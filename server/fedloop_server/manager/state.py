"""What the manager knows of its runs, what it sees of them, and what it decides: frozen and serialisable."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from fedloop_core.strict import Strict

__all__ = [
    "AttemptRefused",
    "AttemptStopped",
    "AttemptTaken",
    "CancelPosted",
    "Decision",
    "End",
    "FlowerPhase",
    "Job",
    "KillDriver",
    "Limits",
    "NoteFailed",
    "NoteStopped",
    "Outcome",
    "PlanNext",
    "PostCancel",
    "Seen",
    "StartAttempt",
    "Status",
    "StopAttempt",
    "Wish",
]

Natural = Annotated[int, Field(ge=0)]


class Status(StrEnum):
    """Where a run stands in the queue."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    FINISHED = "finished"

    @property
    def waiting(self) -> bool:
        """Whether nothing of it has begun, or it waits to begin again."""
        return self in {Status.SCHEDULED, Status.QUEUED}

    @property
    def alive(self) -> bool:
        """Whether it holds the place of the run that goes on."""
        return self in {Status.STARTING, Status.RUNNING, Status.STOPPING}

    @property
    def over(self) -> bool:
        """Whether nothing more happens unless a person wishes it."""
        return self in {Status.STOPPED, Status.FAILED, Status.FINISHED}


class Wish(StrEnum):
    """What a person wishes of a run and the manager has not taken up yet."""

    NONE = "none"
    STOP = "stop"
    RESUME = "resume"
    RESUME_NOW = "resume-now"

    @property
    def resumes(self) -> bool:
        """Whether the run is wanted to go on, at its time or at once."""
        return self in {Wish.RESUME, Wish.RESUME_NOW}


End = Literal["stopped", "failed", "finished"]
"""How a run ended, as its journal says."""


class FlowerPhase(StrEnum):
    """What Flower says of an attempt; ``UNKNOWN`` when nobody asked or nobody answered."""

    UNKNOWN = "unknown"
    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


class Job(Strict):
    """One run in the queue. Times are seconds since 1970.

    A run of a series (``every_seconds``) is the ``turn``-th; the next is submitted when it starts for the first time.
    ``due`` is the time of its own that it had before a person let it begin at once: the series goes by that.

    ``flower_runs`` are Flower's ids of all attempts, ``flower_run`` that of the one that is or may be alive, ``stale`` those
    that Flower is still to be told to stop. ``journal_attempt`` and ``rounds_at_start`` are what the journal held when the
    attempt was asked for. ``fruitless`` counts attempts that died one after another without a round that closed in between;
    ``refused`` starts in a row that Flower did not take. ``ending`` is how a run that is being stopped is to end;
    ``cancelled`` the attempt up to which sites were told to drop it, ``to_cancel`` that of which they are still to be told.
    ``since`` is when the status was entered, ``reason`` a sentence about it. Bytes are Flower's count
    over all attempts that ended, as the SuperLink received and sent them.
    """

    run_id: str
    task: str
    status: Status = Status.QUEUED
    not_before: float = 0.0
    every_seconds: Annotated[float, Field(gt=0)] | None = None
    due: float | None = None
    series: str | None = None
    turn: Annotated[int, Field(ge=1)] = 1
    submitted_unix: float = 0.0
    started_unix: float | None = None
    ended_unix: float | None = None
    flower_runs: tuple[int, ...] = ()
    flower_run: int | None = None
    stale: tuple[int, ...] = ()
    journal_attempt: Natural = 0
    rounds: Natural = 0
    rounds_at_start: Natural = 0
    fruitless: Natural = 0
    refused: Natural = 0
    since: float = 0.0
    retry_at: float = 0.0
    ending: Literal["stopped", "failed"] | None = None
    cancelled: Natural = 0
    to_cancel: int | None = None
    reason: str = ""
    bytes_in: Natural = 0
    bytes_out: Natural = 0

    @property
    def attempts(self) -> int:
        """Attempts that Flower took."""
        return len(self.flower_runs)

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do for it."""
        return self.status.over and not self.stale and self.to_cancel is None


@dataclass(frozen=True)
class Seen:
    """What is seen of a run at one moment: first the lock, then the journal, then Flower.

    ``driven``: a process holds the driver's lock; ``attempt`` and ``rounds``: the last attempt and the closed rounds in the
    journal; ``end``: how the journal ends, None while it is open or not there. ``trouble``: why the last attempt broke off;
    ``problem``: why plan or journal cannot be read, with which no attempt can begin or go on.
    """

    driven: bool = False
    attempt: int = 0
    rounds: int = 0
    end: End | None = None
    flower: FlowerPhase = FlowerPhase.UNKNOWN
    trouble: str = ""
    problem: str = ""


@dataclass(frozen=True)
class StartAttempt:
    """Ask Flower for the next attempt; one whose journal had ended is opened again first."""

    run_id: str


@dataclass(frozen=True)
class StopAttempt:
    """Tell Flower that an attempt is over."""

    run_id: str
    flower_run: int


@dataclass(frozen=True)
class PostCancel:
    """Tell every site to drop what it does for this run, up to and with ``attempt``."""

    run_id: str
    attempt: int


@dataclass(frozen=True)
class KillDriver:
    """End the process that still drives a run which is to stop; ``force`` when it did not go by itself."""

    run_id: str
    force: bool


@dataclass(frozen=True)
class NoteStopped:
    """Note in the journal that the run was stopped, since no driver is there to do it."""

    run_id: str


@dataclass(frozen=True)
class NoteFailed:
    """Note in the journal that the run is given up, and why."""

    run_id: str
    reason: str


@dataclass(frozen=True)
class PlanNext:
    """Submit the next run of a series; it starts at ``not_before``."""

    run_id: str
    not_before: float


Decision = StartAttempt | StopAttempt | PostCancel | KillDriver | NoteStopped | NoteFailed | PlanNext


@dataclass(frozen=True)
class AttemptTaken:
    """Flower took an attempt under this id."""

    run_id: str
    flower_run: int


@dataclass(frozen=True)
class AttemptRefused:
    """Flower did not take an attempt, and why."""

    run_id: str
    reason: str


@dataclass(frozen=True)
class AttemptStopped:
    """Flower no longer has this attempt going; what crossed the SuperLink for it, in bytes."""

    run_id: str
    flower_run: int
    bytes_in: int = 0
    bytes_out: int = 0


@dataclass(frozen=True)
class CancelPosted:
    """The notices to sites are kept for them."""

    run_id: str
    attempt: int


Outcome = AttemptTaken | AttemptRefused | AttemptStopped | CancelPosted


@dataclass(frozen=True)
class Limits:
    """How patient the manager is, in seconds and counts.

    ``silent_seconds`` is how long Flower may call an attempt running while nobody drives it, ``go_seconds`` how long a
    driver that is to stop may take until it is told to end, and again until it is killed.
    """

    parallel: int = 1
    fruitless: int = 5
    refused: int = 30
    backoff_seconds: float = 1.0
    longest_backoff_seconds: float = 30.0
    silent_seconds: float = 120.0
    go_seconds: float = 15.0

    def backoff(self, failures: int) -> float:
        """Seconds before the next start after so many failures in a row: at once, then doubling."""
        if failures <= 1:
            return 0.0
        return min(self.backoff_seconds * 2.0 ** min(failures - 2, 30), self.longest_backoff_seconds)
