"""What ``fedloop run … --json`` prints. Keys are never renamed or removed; new ones may come.

Times are seconds since 1970, durations seconds, epsilons those of add-or-remove neighbours. None (``null``) stands for what
is not known or does not apply.
"""

from __future__ import annotations

from fedloop_core.strict import Strict
from fedloop_server.runs.events import CentralRelease

__all__ = [
    "ArtifactDocument",
    "EstimateDocument",
    "LeftOutDocument",
    "RoundDocument",
    "RunDocument",
    "RunLine",
    "SiteDocument",
    "UpdateDocument",
]


class EstimateDocument(Strict):
    """An estimate of the task's measure with its interval ``[low, high]`` over ``rows`` rows, possibly noised."""

    value: float
    low: float
    high: float
    rows: float


class LeftOutDocument(Strict):
    """A site that does not count, in round ``round`` (0: the run; above the planned rounds: an evaluation of an artifact).

    ``code`` is one of ``fedloop_core.errors`` or of the exchange, ``reason`` says what happened in this case, and
    ``meaning`` what the code stands for.
    """

    site: str
    round: int
    code: str
    reason: str
    meaning: str
    for_good: bool


class UpdateDocument(Strict):
    """What became of a site's update: its L2 norm as it came, and its share of what moved the model.

    ``bounded_to`` is the norm that it was scaled down to, None when it was short enough.
    """

    site: str
    norm: float
    bounded_to: float | None
    share: float


class RoundDocument(Strict):
    """One round: whom it asked, who answered, who did not count, what was measured on the model that it began with.

    ``measured`` is over all sites, ``measured_by_site`` of each; ``seconds`` from opening to closing, of which
    ``waiting_seconds`` for answers. ``updates`` are there where the sites sent some, ``central`` where the coordinator hides whole sites. Bytes are of messages and arrays, over all sites.
    """

    round: int
    asked: tuple[str, ...]
    answered: tuple[str, ...]
    left_out: tuple[LeftOutDocument, ...]
    updates: tuple[UpdateDocument, ...]
    closed: bool
    seconds: float | None
    waiting_seconds: float
    aggregating_seconds: float
    checkpointing_seconds: float
    bytes_out: int
    bytes_in: int
    measured: EstimateDocument | None
    measured_by_site: dict[str, EstimateDocument]
    digest: str
    central: CentralRelease | None


class SiteDocument(Strict):
    """One site in the whole run. ``measured`` is the last that it measured of the model, ``budget`` None without a limit.

    ``share`` is the mean share that its updates had in what moved the model, ``shortened`` how many were longer than the bound.

    ``epsilon`` is what the run spent on its training rows, ``lifetime_epsilon`` and ``evaluation_epsilon`` what training
    and evaluation rows have spent for life.
    """

    site: str
    member: bool
    rows: int | None
    rows_noised: bool
    answered: int
    asked: int
    left_out: int
    measured: EstimateDocument | None
    epsilon: float | None
    lifetime_epsilon: float | None
    evaluation_epsilon: float | None
    budget: float | None
    delta: float | None
    share: float | None
    shortened: int
    seconds: float
    bytes_out: int
    bytes_in: int


class ArtifactDocument(Strict):
    """An artifact that the sites evaluated as the file that ships."""

    version: int
    kind: str
    measured: EstimateDocument
    measured_by_site: dict[str, EstimateDocument]


class RunLine(Strict):
    """A run in ``fedloop run list``: ``round`` of ``rounds`` are closed, ``sites`` take part, ``took`` seconds so far."""

    run: str
    task: str
    status: str
    reason: str
    round: int
    rounds: int
    sites: int
    expected_sites: int
    version: int | None
    submitted_unix: float | None
    not_before_unix: float | None
    every_seconds: float | None
    started_unix: float | None
    ended_unix: float | None
    took: float | None


class RunDocument(Strict):
    """Everything of one run, as ``fedloop run show`` tells it.

    ``next_step`` is a sentence for the reader; ``aggregation`` the task's rule; ``measure`` is accuracy, absolute_error or concordance. ``superlink_bytes_in``
    and ``superlink_bytes_out`` are Flower's count over the attempts that ended.
    """

    line: RunLine
    phase: str
    attempts: int
    driver: int | None
    wish: str
    problem: str
    task_digest: str
    seed: int
    warm_from: int | None
    private: bool
    planned_epsilon: float | None
    planned_evaluation_epsilon: float | None
    aggregation: str
    quorum: int
    deadline_seconds: float
    measure: str
    measured: EstimateDocument | None
    rounds: tuple[RoundDocument, ...]
    sites: tuple[SiteDocument, ...]
    left_out: tuple[LeftOutDocument, ...]
    artifacts: tuple[ArtifactDocument, ...]
    released: bool | None
    gate_reasons: tuple[str, ...]
    failure_code: str | None
    failure: str | None
    seconds: float
    bytes_out: int
    bytes_in: int
    superlink_bytes_in: int
    superlink_bytes_out: int
    folder: str
    next_step: str
