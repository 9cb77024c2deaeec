"""The state of a run as a pure fold over its events.

``apply(state, event)`` is the only way that a state changes; it knows no network, disk or clock. The journal is the list of
events, so a run that lost its process is exactly the fold of what was journalled.

Order of events::

    AttemptStarted  SiteAdmitted* SiteLeftOut*  ScalerFixed
    ( SiteAdmitted* SiteLeftOut*  WholeSitesCharged?  RoundOpened  SiteLeftOut*  RoundClosed )*
    VersionRegistered  ArtifactMeasured*  GateDecided
    RunFinished | RunFailed | RunStopped

A new ``AttemptStarted`` may come anywhere: a round that was open then is opened again. ``RunReopened`` may follow
``RunFailed`` and ``RunStopped``: the run goes on where it was. ``AttemptBroken`` may come anywhere before the end, and
``RoundLost`` while rounds are trained: the round that closed last is trained again.
"""

from __future__ import annotations

import enum

from fedloop_core.strict import Strict
from fedloop_server.runs.events import (
    ArtifactMeasured,
    AttemptBroken,
    AttemptStarted,
    Event,
    GateDecided,
    LeftOut,
    Measured,
    Member,
    RoundClosed,
    RoundLost,
    RoundOpened,
    RunFailed,
    RunFinished,
    RunReopened,
    RunStopped,
    ScalerFixed,
    SiteAdmitted,
    SiteLeftOut,
    VersionRegistered,
    WholeSitesCharged,
)

__all__ = [
    "Phase",
    "RunState",
    "apply",
]


class Phase(enum.StrEnum):
    """Where a run is."""

    GATHERING = "gathering"
    TRAINING = "training"
    RELEASING = "releasing"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


class RunState(Strict):
    """Everything that is known of a run.

    ``lost`` is the round that is trained again since its checkpoint was damaged, as it had closed; ``trouble`` why the last
    attempt broke off, until a round closes. ``sent``: whether the model of the newest round may have left the coordinator, which it does
    when the next one opens; ``lost_releases``: how many models had when they were lost.
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
    sent: bool = False
    lost_releases: int = 0
    trouble: AttemptBroken | None = None
    charged: tuple[WholeSitesCharged, ...] = ()
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
    def charged_sites(self) -> frozenset[str]:
        """Whole sites to which the run was charged."""
        return frozenset(site for charged in self.charged for site in charged.sites)

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
        case WholeSitesCharged():
            change = {"charged": (*state.charged, event)}
        case RoundOpened(round=number):
            if state.phase is not Phase.TRAINING or number != state.completed_rounds + 1:
                raise ValueError(f"round {number} opened after {state.completed_rounds} in phase {state.phase}")
            change = {"open_round": event, "sent": True}
        case RoundClosed(round=number, checkpoint=checkpoint):
            if state.open_round is None or state.open_round.round != number:
                raise ValueError(f"round {number} closed and not open")
            change = {"rounds": (*state.rounds, event), "open_round": None, "checkpoint": checkpoint}
            change |= {"lost": None, "trouble": None, "sent": False}
        case RoundLost(round=number):
            if state.phase is not Phase.TRAINING or number != state.completed_rounds or state.checkpoint_before is None:
                raise ValueError(f"round {number} lost after {state.completed_rounds} in phase {state.phase}")
            change = {"rounds": state.rounds[:-1], "open_round": None, "lost": state.rounds[-1]}
            change |= {"checkpoint": state.checkpoint_before, "sent": True}
            change |= {"lost_releases": state.lost_releases + state.sent}
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
