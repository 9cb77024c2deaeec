"""A run's journal as sentences."""

from __future__ import annotations

from fedloop_server.cli.run_telling import meaning_of
from fedloop_server.runs.events import (
    ArtifactMeasured,
    AttemptBroken,
    AttemptStarted,
    Event,
    GateDecided,
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

__all__ = ["sentence_of"]


def sentence_of(event: Event) -> str:
    """What happened, in one sentence."""
    match event:
        case AttemptStarted(attempt=1):
            return "The run begins."
        case AttemptStarted(attempt=attempt):
            return f"Attempt {attempt} takes the run up."
        case AttemptBroken(code=code, reason=reason):
            return f"The attempt broke off and left the run open: {reason.rstrip('.')} ({code})."
        case SiteAdmitted(member=member):
            rows = f"{'about ' if member.rows_noised else ''}{member.rows} rows"
            out = f"; {member.blocks_left_out} blocks of rows are left out, as their budget does not hold the run"
            return f"{member.site} takes part with {rows} and weight {member.weight}{out if member.blocks_left_out else ''}."
        case SiteLeftOut(left_out=out):
            where = f"round {out.round}" if out.round else "the run"
            good = " for good" if out.for_good else ""
            meaning = meaning_of(out.code).rstrip(".")
            return f"{out.site} is left out of {where}{good}: {out.reason.rstrip('.')} ({out.code}{f': {meaning}' if meaning else ''})."
        case ScalerFixed():
            return "The scaling of the features is fixed."
        case WholeSitesCharged(sites=sites, releases=releases):
            of = "without a budget" if event.budget is None else f"of {event.budget:g} for life"
            return (
                f"{releases} rounds are charged to {len(sites)} whole sites, with noise multiplier {event.noise_multiplier:.3g}; the most "
                f"that one has spent is epsilon {event.spent:.3f} {of} (delta {event.delta:g})."
            )
        case RoundOpened(round=number, asked=asked):
            return f"Round {number} asks {len(asked)} sites: {', '.join(asked)}."
        case RoundClosed(round=number, folded=folded):
            short = "".join(
                f" {u.site}'s update was shortened from a norm of {u.norm:.3g} to {u.bounded_to:.3g}."
                for u in event.updates
                if u.bounded_to is not None
            )
            hidden = (
                ""
                if event.central is None
                else f" Epsilon of whole sites in this run so far: {event.central.epsilon:.3f}."
            )
            return f"Round {number} closes with {len(folded)} answers; its model is {event.digest[:16]}.{short}{hidden}"
        case RoundLost(round=number, reason=reason):
            return f"Round {number} is trained again: {reason.rstrip('.')}."
        case VersionRegistered(version=version):
            return f"The model is registered as version {version}."
        case ArtifactMeasured(version=version, kind=kind, measured=measured):
            return f"{len(measured)} sites have evaluated {kind} of version {version}."
        case GateDecided(released=released, reasons=reasons):
            return f"The quality gate {'lets the version go' if released else 'holds the version back'}: {'; '.join(reasons)}."
        case RunFinished():
            return "The run has finished."
        case RunFailed(code=code, reason=reason):
            return f"The run has failed: {reason.rstrip('.')} ({code})."
        case RunStopped():
            return "The run was stopped."
        case RunReopened():
            return "The run is resumed."
