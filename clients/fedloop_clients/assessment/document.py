"""The assessment as data. It holds names of columns and kinds, numbers that were charged for, and no value of any row."""

from __future__ import annotations

from typing import Literal

from fedloop_clients.retention.held import HeldStore
from fedloop_core.disclosure import Disclosure
from fedloop_core.privacy_statement import ReleaseMade
from fedloop_core.strict import Strict

__all__ = [
    "AssessedRun",
    "AssessedTask",
    "Assessment",
    "Blank",
    "BlockSpending",
    "Column",
    "Measure",
    "Recipient",
    "Rights",
    "RunSpending",
]


class Column(Strict):
    """A column of the site's table that a task reads: ``role`` says what for."""

    name: str
    kind: str
    unit: str
    role: Literal["input", "label", "names the person", "names the unit of privacy"]


class AssessedTask(Strict):
    """What is asked of the site. ``purpose`` and ``purpose_text`` are empty where the task names none."""

    name: str
    digest: str
    description: str
    purpose: str
    purpose_text: str
    columns: tuple[Column, ...]
    model: str
    rounds: int
    unit: str
    mechanism: str
    private: bool
    epsilon: float | None
    delta: float | None
    evaluation_epsilon: float | None
    clipping_norm: float | None


class RunSpending(Strict):
    """What the run has cost at this site so far, at the task's delta; None where no epsilon bounds it."""

    run_id: str
    epsilon: float | None
    evaluation_epsilon: float | None
    blocks_left_out: int


class BlockSpending(Strict):
    """A block of rows for life, by all runs together: in words, and in numbers (None: no number bounds it)."""

    name: str
    words: str
    epsilon: float | None
    budget: float | None
    delta: float
    runs: int
    runs_left: float | None


class Recipient(Strict):
    """Who gets what from the site; ``address``: where to."""

    who: str
    gets: str
    address: str = ""


class Rights(Strict):
    """What people can ask for: how many were erased, since when, and what follows and what does not."""

    people_erased: int
    first_erased_unix: int | None
    sentences: tuple[str, ...]


class Measure(Strict):
    """A protection: whether it holds for this task at this site, and how."""

    name: str
    holds: bool
    how: str


class AssessedRun(Strict):
    """A run that the site has begun, by its audit log; purposes are empty where none was named."""

    run_id: str
    begun_unix: int
    task: str
    purpose: str


class Blank(Strict):
    """What fedloop cannot know, and a person must fill in."""

    section: str
    what: str


class Assessment(Strict):
    """The whole document; times are seconds since 1970."""

    format: Literal["fedloop-assessment-1"] = "fedloop-assessment-1"
    made_unix: int
    site: str
    software: dict[str, str]
    task: AssessedTask
    run: RunSpending | None
    blocks: tuple[BlockSpending, ...]
    runs: tuple[AssessedRun, ...]
    recipients: tuple[Recipient, ...]
    disclosures: tuple[Disclosure, ...]
    releases: tuple[ReleaseMade, ...]
    retention: tuple[HeldStore, ...]
    rights: Rights
    policy: tuple[str, ...]
    measures: tuple[Measure, ...]
    risks: tuple[str, ...]
    blanks: tuple[Blank, ...]
