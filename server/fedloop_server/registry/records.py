"""What the registry takes and gives: frozen records. Times are seconds since 1970."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from fedloop_core.artifact import FileReference, Lineage
from fedloop_core.errors import RegistryError
from fedloop_core.privacy_statement import PrivacyStatement
from fedloop_core.task.document import ExportTarget

__all__ = [
    "ArtifactRecord",
    "GateResult",
    "RunRecord",
    "RunState",
    "Stage",
    "StageChange",
    "TaskRecord",
    "Verdict",
    "VersionMetric",
    "VersionRecord",
]


class RunState(StrEnum):
    """Where a run stands; a person may open one again that failed or was cancelled."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Stage(StrEnum):
    """Where a version stands. At most one version of a task is canary, and at most one is production."""

    CANDIDATE = "candidate"
    CANARY = "canary"
    PRODUCTION = "production"
    RETIRED = "retired"


class Verdict(StrEnum):
    """What a gate says."""

    PASS = "pass"  # noqa: S105 - a verdict, no password
    FAIL = "fail"
    UNDECIDABLE = "undecidable"


@dataclass(frozen=True)
class TaskRecord:
    """A task document; ``digest`` is the hex SHA-256 of ``document``, its canonical JSON."""

    digest: str
    name: str
    document: bytes
    registered_at: int


@dataclass(frozen=True)
class RunRecord:
    """One federated training; ``summary`` is a JSON object, ``reason`` says why it ended as it did."""

    run_id: str
    task: str
    task_digest: str
    state: RunState
    started_at: int
    finished_at: int | None
    reason: str
    parent_version: int | None
    summary: str


@dataclass(frozen=True)
class VersionMetric:
    """An estimate with its interval ``[low, high]``.

    ``scope`` is a site's name or ``all``; ``artifact`` is a kind of artifact or ``float`` for the trained model; ``total``
    is the number of rows, which may be noised and so need not be whole.

    Raises:
        RegistryError: a number is not finite, or low is above high. A metric that is undefined is left out.
    """

    scope: str
    artifact: str
    metric: str
    value: float
    low: float
    high: float
    total: float

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.value, self.low, self.high, self.total))) or self.low > self.high:
            raise RegistryError(
                f"metric {self.metric} of {self.artifact} at {self.scope} is {self.value:g} in [{self.low:g}, "
                f"{self.high:g}] over {self.total:g} rows: not a finite estimate with its interval.",
                hint="Leave out a metric that is undefined.",
            )


@dataclass(frozen=True)
class ArtifactRecord:
    """An artifact of a version: its files by digest and length, in the blob store."""

    kind: ExportTarget
    description: FileReference
    model: FileReference
    golden: FileReference
    profile: FileReference


@dataclass(frozen=True)
class GateResult:
    """What one gate said about a version, in a sentence for people."""

    name: str
    verdict: Verdict
    detail: str
    decided_at: int


@dataclass(frozen=True)
class VersionRecord:
    """A model version, numbered from 1 within its task. Metrics, artifacts and gates in the order of their coming."""

    task: str
    number: int
    run_id: str
    parent: int | None
    stage: Stage
    registered_at: int
    privacy: PrivacyStatement
    lineage: Lineage
    metrics: tuple[VersionMetric, ...]
    artifacts: tuple[ArtifactRecord, ...]
    gates: tuple[GateResult, ...]


@dataclass(frozen=True)
class StageChange:
    """A version went from one stage to another; ``before`` is None when it was registered."""

    task: str
    version: int
    before: Stage | None
    after: Stage
    reason: str
    at: int
