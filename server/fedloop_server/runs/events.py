"""The events of a run: what its journal holds, line by line, and the records they are made of."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from fedloop_core.strict import Strict
from fedloop_core.task.document import ExportTarget

__all__ = [
    "AnswersMeasured",
    "ArtifactMeasured",
    "AttemptBroken",
    "AttemptStarted",
    "CentralRelease",
    "ErrorsMeasured",
    "Event",
    "EventAdapter",
    "GateDecided",
    "LeftOut",
    "Measured",
    "Member",
    "PairsMeasured",
    "RoundClosed",
    "RoundLost",
    "RoundOpened",
    "RunFailed",
    "RunFinished",
    "RunReopened",
    "RunStopped",
    "ScalerFixed",
    "SiteAdmitted",
    "SiteLeftOut",
    "SiteSpend",
    "SiteTook",
    "UpdateFolded",
    "VersionRegistered",
    "WholeSitesCharged",
]

Finite = Annotated[float, Field(allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Member(Strict):
    """A site that may take part: its agreed weight, and what it said of its data.

    ``blocks_left_out``: blocks of its training rows that it does not train on, since their budget does not hold the run.
    """

    site: str
    weight: Annotated[int, Field(ge=1)]
    rows: int
    rows_noised: bool
    data_fingerprint: str
    blocks_left_out: Annotated[int, Field(ge=0)] = 0


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


class UpdateFolded(Strict):
    """What became of a site's update: its L2 norm as it came, and the share of what moved the model that is its own.

    ``bounded_to``: the norm that it was scaled down to; None when it was no longer than the bound. By the mean a share is that of
    the agreed weight; by a robust rule it is 0 where the rule took nothing.
    """

    site: str
    norm: NotNegative
    bounded_to: NotNegative | None = None
    share: Annotated[float, Field(ge=0, le=1)]

    @property
    def folded_norm(self) -> float:
        """Its norm as it was folded."""
        return self.norm if self.bounded_to is None else self.bounded_to


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


class CentralRelease(Strict):
    """A round's model under differential privacy of whole sites, and what the run has cost each site with it.

    ``releases`` are the models that left the coordinator so, this one among them. Noise of ``deviation`` lay on the sum of updates of norm
    at most ``clipping_norm``; ``next_clipping_norm`` is that of the next round.
    """

    epsilon: NotNegative
    releases: Annotated[int, Field(ge=1)]
    noise_multiplier: NotNegative
    clipping_norm: NotNegative
    deviation: NotNegative
    next_clipping_norm: NotNegative


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


class WholeSitesCharged(Strict):
    """All rounds that the run plans are charged to these whole sites, in the coordinator's record over all runs.

    ``spent``: the highest epsilon for life among them, at ``delta``, of ``budget``; None: no budget is kept.
    """

    event: Literal["whole-sites-charged"] = "whole-sites-charged"
    sites: tuple[str, ...]
    noise_multiplier: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    releases: Annotated[int, Field(ge=1)]
    spent: NotNegative
    budget: NotNegative | None
    delta: Annotated[float, Field(gt=0, lt=1)]
    unix: float


class RoundOpened(Strict):
    """The question of a round is about to be asked."""

    event: Literal["round-opened"] = "round-opened"
    round: Annotated[int, Field(ge=1)]
    asked: tuple[str, ...]
    unix: float


class RoundClosed(Strict):
    """A round ended and its model is safe: ``checkpoint`` is the file, ``digest`` the arrays' own.

    ``folded`` are the sites whose answers count, ``updates`` what became of their updates and ``took`` what each took; ``left_out``
    are the others of ``asked``, each with its reason. Sums that are no updates have none. Seconds: waiting for answers, folding them and moving the model, and writing the checkpoint.
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
    updates: tuple[UpdateFolded, ...] = ()
    central: CentralRelease | None = None
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
    | WholeSitesCharged
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
