"""``summary.json``: what a simulation ended with, for machines. The schema is versioned by ``format``.

With a seed everything but ``timings`` is the same twice. Fields are only ever added within one format; ``docs/summary.md``
explains them one by one.
"""

from __future__ import annotations

from typing import Literal, Self

from fedloop_core.measure import Measure
from fedloop_core.strict import Strict
from fedloop_core.task.document import ExportTarget
from fedloop_simulations.drift import DriftKind

__all__ = [
    "ArtifactSummary",
    "AttackSummary",
    "AttackerSummary",
    "AuditSummary",
    "BackdoorSummary",
    "BoundedSummary",
    "DeviceSummary",
    "DriftSummary",
    "LeftOutSummary",
    "Metric",
    "RunSummary",
    "SiteSummary",
    "StreamSummary",
    "Summary",
    "Timings",
    "VersionSummary",
    "WholeSitesSummary",
]


class Metric(Strict):
    """A value of the task's measure with its 95 per cent interval; ``rows`` may be noised and so need not be whole.

    An absolute error is in the label's unit. ``accuracy`` repeats the value where it is one.
    """

    measure: Measure
    value: float
    low: float
    high: float
    rows: float
    accuracy: float | None = None

    @classmethod
    def of(cls, measure: Measure, *, value: float, low: float, high: float, rows: float) -> Self:
        """With ``accuracy`` where that is the measure."""
        accuracy = value if measure is Measure.ACCURACY else None
        return cls(measure=measure, value=value, low=low, high=high, rows=rows, accuracy=accuracy)


class SiteSummary(Strict):
    """A site: its rows as they were at the start, and its privacy at the end.

    ``epsilon`` and ``evaluation_epsilon`` are what its training and evaluation rows have spent for life, ``budget`` what the
    training rows may spend for life; none of them without privacy.
    """

    name: str
    rows: int
    evaluation_rows: int
    stream_rows: int
    skipped_rows: int
    feedback_rows: int
    metrics: Metric | None
    epsilon: float | None
    evaluation_epsilon: float | None
    delta: float | None
    budget: float | None


class LeftOutSummary(Strict):
    """A site that was left out of a run or of one of its rounds (``round`` 0: of the run)."""

    run: str
    site: str
    round: int
    code: str
    reason: str


class ArtifactSummary(Strict):
    """A file that can be deployed, with what sites measured of it.

    ``agreement`` is the share of rows on which it names the same class as the artifact in float, over rows that training
    never saw; absent where the label is no class.
    """

    kind: ExportTarget
    bytes: int
    sha256: str
    metrics: Metric | None
    agreement: float | None


class BoundedSummary(Strict):
    """An update that was longer than earlier rounds allow: its norm as it came, and what it was scaled down to."""

    site: str
    round: int
    norm: float
    bounded_to: float


class WholeSitesSummary(Strict):
    """What a run that hides whole sites costs each of them, and what they have spent for life with it.

    ``epsilon`` is what the task claims for the run at ``delta``, ``spent`` what its ``releases`` models have cost so far.
    """

    epsilon: float
    delta: float
    releases: int
    spent: float
    lifetime_epsilon: float | None
    lifetime_budget: float | None

    @property
    def sentence(self) -> str:
        """For people."""
        told = (
            f"Noise at the coordinator hides whole sites: the newest run claims epsilon {self.epsilon:g} (delta {self.delta:g}) for each "
            f"and has spent {self.spent:.3f}"
        )
        if self.lifetime_epsilon is None:
            return f"{told}."
        of = "" if self.lifetime_budget is None else f" of {self.lifetime_budget:g} for life"
        return f"{told}; all runs together are charged at {self.lifetime_epsilon:.3f}{of}."


class RunSummary(Strict):
    """A run.

    ``held_out`` is the simulator's own measurement, which only a rehearsal can take: the task's measure of the trained
    model on all rows of each site that training never saw. Empty for a run that starts from an earlier version.
    """

    id: str
    rounds: int
    version: int | None
    held_out: dict[str, float]
    bounded: tuple[BoundedSummary, ...]
    whole_sites: WholeSitesSummary | None = None


class AttackerSummary(Strict):
    """A site that lied, or all honest ones (``site`` empty), over all rounds of all runs.

    ``norm`` is the median of the updates' norms as they came, ``share`` the mean share that one of them has in what moved the
    model; none where no update was folded.
    """

    site: str
    folded: int
    refused: int
    codes: tuple[str, ...]
    bounded: int
    norm: float | None
    share: float | None


class BackdoorSummary(Strict):
    """How well a backdoor opens in the first run's model: shares of ``rows`` of other classes that are taken for the target."""

    target: str
    trigger: str
    rows: int
    success: float
    without_trigger: float


class AttackSummary(Strict):
    """Sites lied in this rehearsal: nothing in it tells how an honest federation would fare."""

    kind: str
    strength: float
    does: str
    sites: tuple[AttackerSummary, ...]
    honest: AttackerSummary
    rule: str
    faulty_sites: int | None
    norm_bound: float | None
    backdoor: BackdoorSummary | None


class VersionSummary(Strict):
    """A version. ``float_metrics`` and ``int8_metrics`` are measured at the sites on the artifacts themselves."""

    number: int
    parent: int | None
    run: str
    released: bool
    reasons: tuple[str, ...]
    float_metrics: Metric | None
    int8_metrics: Metric | None
    artifacts: tuple[ArtifactSummary, ...]
    card: str


class DeviceSummary(Strict):
    """A device at the end."""

    id: str
    site: str
    runtime: str
    version: int | None
    predictions: int


class DriftSummary(Strict):
    """What was injected and what was noticed: ``detected_window`` counts a site's windows since the version went live."""

    kind: DriftKind
    injected_at_tick: int | None
    detected: bool
    detected_at_tick: int | None
    detected_window: int | None
    detected_by: str | None


class StreamSummary(Strict):
    """The task's measure of what devices answered, by phase; none where no row was streamed.

    The simulator knows every outcome, also of rows whose outcome never comes back to the devices.
    """

    before: Metric | None
    under: Metric | None
    after: Metric | None


class AuditSummary(Strict):
    """What an audit of the task's training found, where its result was given."""

    claimed: float
    bound: float
    delta: float
    confidence: float
    canaries: int
    refuted: bool
    private: bool


class Timings(Strict):
    """Seconds of each stage and of the whole; ``latency_us`` is the median of one prediction by artifact."""

    seconds: dict[str, float]
    total_seconds: float
    latency_us: dict[str, float]
    peak_memory_bytes: int


class Summary(Strict):
    """The whole document.

    ``measure`` is what every metric is a value of, and ``unit`` that of an absolute error. ``stream_accuracy`` repeats
    ``stream`` where the measure is accuracy. ``attack`` is there when sites lied.
    """

    format: Literal[1] = 1
    fedloop: str
    task: str
    measure: Measure
    unit: str
    seed: int | None
    private: bool
    epsilon: float | None
    attack: AttackSummary | None = None
    audit: AuditSummary | None = None
    sites: tuple[SiteSummary, ...]
    left_out: tuple[LeftOutSummary, ...]
    runs: tuple[RunSummary, ...]
    versions: tuple[VersionSummary, ...]
    devices: tuple[DeviceSummary, ...]
    drift: DriftSummary
    retrained: bool
    decisions: tuple[str, ...]
    stream: StreamSummary
    stream_accuracy: StreamSummary | None
    timings: Timings
