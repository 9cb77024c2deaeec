"""The state of a run as a pure fold over its events.

``apply(state, event)`` is the only way that a state changes; it knows no network, disk or clock. The journal is the list of
events, so a run that lost its process is exactly the fold of what was journalled.

Order of events::

    AttemptStarted  SiteAdmitted* SiteLeftOut*  ScalerFixed
    ( SiteAdmitted* SiteLeftOut*  RoundOpened  SiteLeftOut*  RoundClosed )*
    VersionRegistered  ArtifactMeasured*  GateDecided
    RunFinished | RunFailed | RunStopped

A new ``AttemptStarted`` may come anywhere: a round that was open then is opened again. ``RunReopened`` may follow
``RunFailed`` and ``RunStopped``: the run goes on where it was. ``AttemptBroken`` may come anywhere before the end, and
``RoundLost`` while rounds are trained: the round that closed last is trained again.
"""

from __future__ import annotations

import enum
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from fedloop_core.strict import Strict
from fedloop_core.task.document import ExportTarget

__all__ = [
    "AnswersMeasured",
    "ArtifactMeasured",
    "AttemptBroken",
    "AttemptStarted",
    "ErrorsMeasured",
    "Event",
    "EventAdapter",
    "GateDecided",
    "LeftOut",
    "Measured",
    "Member",
    "PairsMeasured",
    "Phase",
    "RoundClosed",
    "RoundLost",
    "RoundOpened",
    "RunFailed",
    "RunFinished",
    "RunReopened",
    "RunState",
    "RunStopped",
    "ScalerFixed",
    "SiteAdmitted",
    "SiteLeftOut",
    "SiteSpend",
    "SiteTook",
    "VersionRegistered",
    "apply",
]

Finite = Annotated[float, Field(allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Phase(enum.StrEnum):
    """Where a run is."""

    GATHERING = "gathering"
    TRAINING = "training"
    RELEASING = "releasing"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


class Member(Strict):
    """A site that may take part: its agreed weight, and what it said of its data."""

    site: str
    weight: Annotated[int, Field(ge=1)]
    rows: int
    rows_noised: bool
    data_fingerprint: str


class LeftOut(Strict):
    """A site that was left out of a round (0: of the run) and why, as a code and a sentence.

    ``for_good``: it is not asked again unless a person opens the run again. Seconds and bytes are those of the question
    that came to nothing.
    """

    site: str
    round: int
    code: str
    reason: str
    for_good: bool = False
    seconds: NotNegative = 0.0
    bytes_out: Annotated[int, Field(ge=0)] = 0
    bytes_in: Annotated[int, Field(ge=0)] = 0


class SiteTook(Strict):
    """What a site's answer took: seconds from the question's sending, and bytes of messages and arrays there and back."""

    site: str
    seconds: NotNegative
    bytes_out: Annotated[int, Field(ge=0)]
    bytes_in: Annotated[int, Field(ge=0)]


class AnswersMeasured(Strict):
    """Counts of right and wrong answers at one site, noised by discrete Laplace of scale ``noise_scale`` when above 0."""

    kind: Literal["classes"] = "classes"
    site: str
    right: Finite
    wrong: Finite
    noise_scale: NotNegative = 0.0


class ErrorsMeasured(Strict):
    """Rows at one site and the sums of their absolute and squared errors, in the label's unit.

    No error is above ``width``, the label's range. When ``noise_scale`` is above 0, discrete Laplace noise of that scale
    lies on each of three sums of which these are made, s being errors as shares of the range: ``s^2``, ``s - s^2``, ``1 - s``.
    """

    kind: Literal["regression"] = "regression"
    site: str
    rows: Finite
    absolute: Finite
    squared: Finite
    width: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    noise_scale: NotNegative = 0.0


class PairsMeasured(Strict):
    """Concordant and comparable pairs of rows at one site, and how they are spread over its rows.

    With c and n the pairs of each row that are concordant and comparable, the last three are the sums over rows of c * c,
    c * n and n * n: pairs that share a row are not independent, and these say how little.
    """

    kind: Literal["survival"] = "survival"
    site: str
    rows: NotNegative
    concordant: NotNegative
    comparable: NotNegative
    concordant_squared: NotNegative
    concordant_comparable: NotNegative
    comparable_squared: NotNegative


Measured = Annotated[AnswersMeasured | ErrorsMeasured | PairsMeasured, Field(discriminator="kind")]
"""What an evaluation found at one site, by kind of label."""


class SiteSpend(Strict):
    """Epsilon that a site has spent: on training rows in this run and for life, and on evaluation rows for life."""

    site: str
    run_epsilon: float
    lifetime_epsilon: float
    budget: float | None
    delta: float
    evaluation_epsilon: float


class AttemptStarted(Strict):
    """A process took the run up."""

    event: Literal["attempt-started"] = "attempt-started"
    attempt: Annotated[int, Field(ge=1)]
    unix: float


class AttemptBroken(Strict):
    """A process left the run open, since the coordinator's database or disk failed for longer than it waits."""

    event: Literal["attempt-broken"] = "attempt-broken"
    code: str
    reason: str
    unix: float


class SiteAdmitted(Strict):
    """A site passed its data gate and takes part."""

    event: Literal["site-admitted"] = "site-admitted"
    member: Member


class SiteLeftOut(Strict):
    """A site does not take part in the run or in the open round."""

    event: Literal["site-left-out"] = "site-left-out"
    left_out: LeftOut


class ScalerFixed(Strict):
    """The features' scaling is known; the checkpoint of round 0 holds it with the initial weights.

    ``digest`` is the arrays' own; journals of earlier releases have none.
    """

    event: Literal["scaler-fixed"] = "scaler-fixed"
    checkpoint: str
    digest: str = ""


class RoundOpened(Strict):
    """The question of a round is about to be asked."""

    event: Literal["round-opened"] = "round-opened"
    round: Annotated[int, Field(ge=1)]
    asked: tuple[str, ...]
    unix: float


class RoundClosed(Strict):
    """A round ended and its model is safe: ``checkpoint`` is the file, ``digest`` the arrays' own.

    ``folded`` are the sites whose answers count and ``took`` what each took; ``left_out`` are the others of ``asked``, each
    with its reason. Seconds: waiting for answers, folding them and moving the model, and writing the checkpoint.
    """

    event: Literal["round-closed"] = "round-closed"
    round: Annotated[int, Field(ge=1)]
    folded: tuple[str, ...]
    checkpoint: str
    digest: str
    measured: tuple[Measured, ...] = ()
    spends: tuple[SiteSpend, ...] = ()
    asked: tuple[str, ...] = ()
    took: tuple[SiteTook, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    waiting_seconds: NotNegative = 0.0
    aggregating_seconds: NotNegative = 0.0
    checkpointing_seconds: NotNegative = 0.0
    unix: float


class RoundLost(Strict):
    """The checkpoint of the round that closed last is damaged: the run goes back to the one before and trains it again."""

    event: Literal["round-lost"] = "round-lost"
    round: Annotated[int, Field(ge=1)]
    reason: str
    unix: float


class VersionRegistered(Strict):
    """The registry holds the version and its artifacts."""

    event: Literal["version-registered"] = "version-registered"
    version: Annotated[int, Field(ge=1)]


class ArtifactMeasured(Strict):
    """An artifact, of this version or of the one in production, was evaluated at the sites as the file that ships."""

    event: Literal["artifact-measured"] = "artifact-measured"
    version: Annotated[int, Field(ge=1)]
    kind: ExportTarget
    measured: tuple[Measured, ...]


class GateDecided(Strict):
    """The quality gate decided on the version."""

    event: Literal["gate-decided"] = "gate-decided"
    released: bool
    reasons: tuple[str, ...]


class RunFinished(Strict):
    """The run is over and did what it was asked."""

    event: Literal["run-finished"] = "run-finished"
    unix: float


class RunFailed(Strict):
    """The run is over and did not."""

    event: Literal["run-failed"] = "run-failed"
    code: str
    reason: str
    unix: float


class RunStopped(Strict):
    """A person stopped the run."""

    event: Literal["run-stopped"] = "run-stopped"
    unix: float


class RunReopened(Strict):
    """A person lets a run go on that had failed or was stopped; whoever was left out for good may be asked again."""

    event: Literal["run-reopened"] = "run-reopened"
    unix: float


Event = Annotated[
    AttemptStarted
    | AttemptBroken
    | SiteAdmitted
    | SiteLeftOut
    | ScalerFixed
    | RoundOpened
    | RoundClosed
    | RoundLost
    | VersionRegistered
    | ArtifactMeasured
    | GateDecided
    | RunFinished
    | RunFailed
    | RunStopped
    | RunReopened,
    Field(discriminator="event"),
]
EventAdapter: TypeAdapter[Event] = TypeAdapter(Event)


class RunState(Strict):
    """Everything that is known of a run.

    ``lost`` is the round that is trained again since its checkpoint was damaged, as it had closed; ``trouble`` why the last
    attempt broke off, until a round closes.
    """

    phase: Phase = Phase.GATHERING
    attempt: int = 0
    members: tuple[Member, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    barred: tuple[LeftOut, ...] = ()
    rounds: tuple[RoundClosed, ...] = ()
    open_round: RoundOpened | None = None
    beginning: ScalerFixed | None = None
    checkpoint: str | None = None
    lost: RoundClosed | None = None
    trouble: AttemptBroken | None = None
    version: int | None = None
    artifacts: tuple[ArtifactMeasured, ...] = ()
    gate: GateDecided | None = None
    failure: RunFailed | None = None

    @property
    def completed_rounds(self) -> int:
        """Rounds whose model is safe."""
        return len(self.rounds)

    @property
    def checkpoint_before(self) -> str | None:
        """The checkpoint before the newest; None when there is none."""
        if len(self.rounds) > 1:
            return self.rounds[-2].checkpoint
        return self.beginning.checkpoint if self.rounds and self.beginning is not None else None

    @property
    def ended(self) -> bool:
        """Whether nothing more happens."""
        return self.phase in {Phase.FINISHED, Phase.FAILED, Phase.STOPPED}

    @property
    def barred_sites(self) -> frozenset[str]:
        """Sites that were left out for good, by ``barred``, and are not asked again."""
        return frozenset(out.site for out in self.barred)

    def measured(self, version: int, kind: str) -> tuple[Measured, ...] | None:
        """What was found of an artifact that was evaluated; None when it was not."""
        found = (m.measured for m in self.artifacts if (m.version, m.kind) == (version, kind))
        return next(found, None)

    def member(self, site: str) -> Member | None:
        """The member of that name, if it is one."""
        return next((member for member in self.members if member.site == site), None)


def apply(state: RunState, event: Event) -> RunState:
    """The state after an event.

    Raises:
        ValueError: the event cannot come here: the journal was altered or a caller is wrong.
    """
    reopens = isinstance(event, RunReopened)
    if state.ended != reopens or (reopens and state.phase is Phase.FINISHED):
        raise ValueError(f"{event.event} {'after the end' if state.ended else 'before the end'} of a run")
    match event:
        case AttemptStarted(attempt=attempt):
            if attempt <= state.attempt:
                raise ValueError(f"attempt {attempt} after attempt {state.attempt}")
            change: dict[str, object] = {"attempt": attempt, "open_round": None}
        case SiteAdmitted(member=member):
            others = tuple(m for m in state.members if m.site != member.site)
            change = {"members": (*others, member)}
        case SiteLeftOut(left_out=left_out):
            change = {"left_out": (*state.left_out, left_out)}
            if left_out.for_good:
                change["barred"] = (*(out for out in state.barred if out.site != left_out.site), left_out)
        case AttemptBroken():
            change = {"trouble": event}
        case ScalerFixed(checkpoint=checkpoint):
            change = {"phase": Phase.TRAINING, "checkpoint": checkpoint, "beginning": event}
        case RoundOpened(round=number):
            if state.phase is not Phase.TRAINING or number != state.completed_rounds + 1:
                raise ValueError(f"round {number} opened after {state.completed_rounds} in phase {state.phase}")
            change = {"open_round": event}
        case RoundClosed(round=number, checkpoint=checkpoint):
            if state.open_round is None or state.open_round.round != number:
                raise ValueError(f"round {number} closed and not open")
            change = {"rounds": (*state.rounds, event), "open_round": None, "checkpoint": checkpoint}
            change |= {"lost": None, "trouble": None}
        case RoundLost(round=number):
            if state.phase is not Phase.TRAINING or number != state.completed_rounds or state.checkpoint_before is None:
                raise ValueError(f"round {number} lost after {state.completed_rounds} in phase {state.phase}")
            change = {"rounds": state.rounds[:-1], "open_round": None, "lost": state.rounds[-1]}
            change |= {"checkpoint": state.checkpoint_before}
        case VersionRegistered(version=version):
            change = {"phase": Phase.RELEASING, "version": version}
        case ArtifactMeasured():
            change = {"artifacts": (*state.artifacts, event)}
        case GateDecided():
            change = {"gate": event}
        case RunFinished():
            change = {"phase": Phase.FINISHED, "open_round": None}
        case RunFailed():
            change = {"phase": Phase.FAILED, "failure": event, "open_round": None}
        case RunStopped():
            change = {"phase": Phase.STOPPED, "open_round": None}
        case RunReopened():
            change = {"phase": _phase_before_end(state), "failure": None, "barred": (), "lost": None, "trouble": None}
    return state.model_copy(update=change)


def _phase_before_end(state: RunState) -> Phase:
    if state.version is not None:
        return Phase.RELEASING
    return Phase.GATHERING if state.checkpoint is None else Phase.TRAINING
