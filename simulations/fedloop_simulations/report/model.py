"""What a report shows. Every series may be empty; a section without data says so in a sentence."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedloop_core.measure import Measure
from fedloop_core.strict import Strict
from fedloop_simulations.drift import DriftKind
from fedloop_simulations.report.spelling import spelled
from fedloop_simulations.summary import WholeSitesSummary

__all__ = [
    "ArtifactLine",
    "CardText",
    "DeviceVersion",
    "DriftScore",
    "EventLine",
    "PrivacyLine",
    "RoundPoint",
    "RunReport",
    "StreamPhase",
]

Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Natural = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class RoundPoint(Strict):
    """The measure on a site's evaluation rows in a round of the run that made ``version``, with its interval."""

    version: Count
    site: str
    round: Natural
    value: NotNegative
    low: NotNegative
    high: NotNegative


class PrivacyLine(Strict):
    """What a site's training and evaluation rows have spent for life, and may; absent without privacy or budget."""

    site: str
    epsilon: NotNegative | None
    budget: NotNegative | None
    evaluation_epsilon: NotNegative | None
    evaluation_budget: NotNegative | None = None


class ArtifactLine(Strict):
    """A file of a version: length in bytes, median latency of one prediction, and how it compares.

    ``value`` is the measure at the sites; ``agreement`` is the share of inputs on which it names the float model's class.
    """

    version: Count
    kind: str
    bytes: Natural
    latency_us: NotNegative | None = None
    value: NotNegative | None = None
    agreement: Share | None = None


class DeviceVersion(Strict):
    """From this tick on the device answers with this version; ``None``: it has none."""

    tick: Natural
    device: str
    version: Count | None


class DriftScore(Strict):
    """A site's monitor on one window: it alarms where the score reaches the threshold."""

    site: str
    tick: Natural
    window: Count
    version: Count
    score: NotNegative
    threshold: NotNegative = 1.0
    alarmed: bool


class StreamPhase(Strict):
    """The measure of what devices answered: before the shift, under it with the old version, and with the new one."""

    phase: Literal["before", "under", "after"]
    value: NotNegative
    low: NotNegative
    high: NotNegative
    rows: Natural


class EventLine(Strict):
    """Something worth knowing, in a sentence."""

    tick: Natural
    text: str


class CardText(Strict):
    """The model card of a version, as Markdown."""

    version: Count
    text: str


class RunReport(Strict):
    """The whole report. Ticks count steps of the simulation; ``last_tick`` is where it ended.

    ``epsilon`` is the task's for one run, absent without privacy; ``private`` is false whenever noise could be repeated
    or was absent. ``attack`` says that sites lied, what they did and what came of it; empty for honest ones. ``measure`` is what every value is of, ``unit`` that of an absolute error. ``drift_kind`` and ``drift_tick`` say what was injected, and when.
    """

    title: str
    attack: tuple[str, ...] = ()
    task: str
    fedloop: str
    measure: Measure = Measure.ACCURACY
    unit: str = ""
    seed: int | None
    epsilon: NotNegative | None
    private: bool
    sites: tuple[str, ...]
    last_tick: Natural
    drift_kind: DriftKind
    drift_tick: Natural | None = None
    rounds: tuple[RoundPoint, ...] = ()
    privacy: tuple[PrivacyLine, ...] = ()
    artifacts: tuple[ArtifactLine, ...] = ()
    device_versions: tuple[DeviceVersion, ...] = ()
    drift: tuple[DriftScore, ...] = ()
    stream: tuple[StreamPhase, ...] = ()
    events: tuple[EventLine, ...] = ()
    whole_sites: WholeSitesSummary | None = None
    audit: str = ""
    cards: tuple[CardText, ...] = ()

    @model_validator(mode="after")
    def _sites_are_known(self) -> Self:
        named = {line.site for series in (self.rounds, self.privacy, self.drift) for line in series}
        unknown = sorted(named - set(self.sites))
        if unknown:
            raise ValueError(f"sites {', '.join(unknown)} have lines and are not among the report's sites")
        return self

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of all devices, sorted."""
        return tuple(sorted({change.device for change in self.device_versions}))

    @property
    def serving(self) -> dict[str, int | None]:
        """The version that each device answers with at the end."""
        changes = sorted(self.device_versions, key=lambda change: change.tick)
        return {change.device: change.version for change in changes}

    def shown(self, value: float) -> str:
        """A value of the measure as text."""
        return spelled(self.measure, value, self.unit)

    def phase(self, name: Literal["before", "under", "after"]) -> StreamPhase | None:
        """A phase of the stream, if rows were streamed in it."""
        return next((phase for phase in self.stream if phase.phase == name), None)
