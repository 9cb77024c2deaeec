"""A site's rows by block.

Blocks partition the units whose privacy is protected: a unit's first block is its home, and rows of it that come later
join it there and inherit its spend. Training and evaluation rows are different units, in different blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedloop_clients.data.fingerprint import fingerprint
from fedloop_core.dataset import Dataset
from fedloop_core.errors import DataError, UsageError
from fedloop_core.noise import NoiseSource
from fedloop_core.task.document import Task

__all__ = [
    "EVALUATION",
    "ORIGINAL",
    "FeedbackAdded",
    "NewestRows",
    "RowChoice",
    "SiteData",
    "SiteRows",
    "is_evaluation_block",
]

ORIGINAL = "original"
EVALUATION = "evaluation"
_FEEDBACK = "feedback-"
_FEEDBACK_EVALUATION = "feedback-evaluation-"
_NONE = np.empty(0, dtype=np.int64)


def is_evaluation_block(block: str) -> bool:
    """Whether a block holds rows that are only evaluated on, by its name."""
    return block == EVALUATION or block.startswith(_FEEDBACK_EVALUATION)


class RowChoice(Enum):
    """Which evaluation rows are meant."""

    ALL = "all"
    ORIGINAL = "original"
    FEEDBACK = "feedback"


@dataclass(frozen=True)
class FeedbackAdded:
    """Where rows that came back from devices went: counts of rows, and the new blocks, empty names when not needed."""

    training_rows: int
    evaluation_rows: int
    returned_rows: int
    training_block: str
    evaluation_block: str


@dataclass(frozen=True)
class NewestRows:
    """Training and evaluation rows that came together, and the blocks that they are of."""

    blocks: tuple[str, ...]
    training: Dataset
    evaluation: Dataset


class SiteRows(Protocol):
    """Where a daemon takes a run's rows from."""

    def for_task(self, task: Task) -> SiteData:
        """The site's rows as the task's schema reads them; the same object for as long as they are the same.

        Raises:
            DataError: they cannot be read.
        """


class SiteData:
    """Rows of one site for one schema, in memory.

    Args:
        training: rows to train on: block ``original``.
        evaluation: rows of other units to evaluate on: block ``evaluation``.
        secret: the site's own, for fingerprints; at least 16 bytes.
        skipped: rows that the source held and that could not be read.
        read: rows of the source that could be read, where that is more than training and evaluation rows together.

    Raises:
        DataError: a unit is in both parts.
        UsageError: the secret is too short.
    """

    def __init__(
        self, training: Dataset, evaluation: Dataset, *, secret: bytes, skipped: int = 0, read: int | None = None
    ) -> None:
        if len(secret) < 16:
            raise UsageError(f"a fingerprint secret has at least 16 bytes, not {len(secret)}.")
        self._training: dict[str, Dataset] = {ORIGINAL: training}
        self._evaluation: dict[str, Dataset] = {EVALUATION: evaluation}
        self._secret = secret
        self._admissions = 0
        read = len(training) + len(evaluation) if read is None else read
        self.skipped = skipped
        self.skipped_share = skipped / max(read + skipped, 1)
        self._home = dict.fromkeys(training.units, ORIGINAL)
        both = sum(unit in self._home for unit in evaluation.units)
        if both:
            raise DataError(
                f"{both} evaluation rows belong to units that are trained on.",
                hint="Split the site's rows by unit, not by row.",
            )
        self._home |= dict.fromkeys(evaluation.units, EVALUATION)
        self._home.pop("", None)
        self._joined: dict[tuple[str, ...], Dataset] = {}

    def for_task(self, task: Task) -> SiteData:  # noqa: ARG002  whoever has rows of one schema has them for every task
        """These rows: they are in memory already."""
        return self

    @property
    def admissions(self) -> int:
        """How many times feedback opened new blocks."""
        return self._admissions

    @property
    def next_feedback_blocks(self) -> tuple[str, str]:
        """The blocks, of training and of evaluation rows, that the next feedback of new units will open."""
        return _blocks_of(self._admissions + 1)

    @property
    def training_blocks(self) -> tuple[str, ...]:
        """Blocks that are trained on, oldest first."""
        return tuple(self._training)

    def evaluation_blocks(self, choice: RowChoice = RowChoice.ALL) -> tuple[str, ...]:
        """Blocks that are evaluated on, oldest first; feedback blocks may be none."""
        match choice:
            case RowChoice.ALL:
                return tuple(self._evaluation)
            case RowChoice.ORIGINAL:
                return (EVALUATION,)
            case RowChoice.FEEDBACK:
                return tuple(block for block in self._evaluation if block != EVALUATION)

    def training(self, blocks: Iterable[str] | None = None) -> Dataset:
        """Training rows of these blocks, of all by default, oldest first."""
        return self._join(self._training, tuple(self._training if blocks is None else blocks))

    def evaluation(self, choice: RowChoice = RowChoice.ALL) -> Dataset:
        """Evaluation rows of the choice."""
        return self._join(self._evaluation, self.evaluation_blocks(choice))

    def home_block(self, unit: str) -> str | None:
        """The block that a unit is at home in; None for one that is not known yet."""
        return self._home.get(unit)

    def newest(self, among: Collection[str] | None = None) -> NewestRows:
        """The newest training rows and the evaluation rows that came with them: of feedback, or else the original ones.

        Args:
            among: blocks that may be read, all by default; without a training block of them there are no rows.
        """
        for number in range(self._admissions, -1, -1):
            training, evaluation = _blocks_of(number)
            if training not in self._training or evaluation not in self._evaluation:
                continue
            if among is None or training in among:
                readable = among is None or evaluation in among
                rows = self._evaluation[evaluation]
                blocks = (training, evaluation) if readable else (training,)
                return NewestRows(blocks, self._training[training], rows if readable else rows.take(_NONE))
        nothing = self._training[ORIGINAL].take(_NONE)
        return NewestRows((), nothing, nothing)

    def fingerprint(self, rows: Dataset | None = None) -> bytes:
        """Digest of these rows, of all training rows by default, keyed with the site's secret; order does not matter."""
        return fingerprint(self.training() if rows is None else rows, self._secret)

    def add_feedback(self, rows: Dataset, evaluation_share: float, noise: NoiseSource) -> FeedbackAdded:
        """Takes rows with outcomes that devices sent; splits those of new units between two new blocks, by unit.

        Args:
            rows: labelled rows; a row with an empty unit is a unit of its own.
            evaluation_share: fraction of the new units that are evaluated on.
            noise: decides which.
        """
        home = np.array([self._home.get(unit, "") for unit in rows.units], dtype=object)
        for block in dict.fromkeys(name for name in home if name):
            store = self._training if block in self._training else self._evaluation
            store[block] = store[block].concatenate(rows.take(np.flatnonzero(home == block)))
        fresh = rows.take(np.flatnonzero(home == ""))
        to_evaluate = _choose_by_unit(fresh.units, evaluation_share, noise)
        self._admissions += int(len(fresh) > 0)
        training = self._open(self._training, _FEEDBACK, fresh.take(np.flatnonzero(~to_evaluate)))
        evaluation = self._open(self._evaluation, _FEEDBACK_EVALUATION, fresh.take(np.flatnonzero(to_evaluate)))
        self._joined.clear()
        counted = int(to_evaluate.sum())
        return FeedbackAdded(len(fresh) - counted, counted, len(rows) - len(fresh), training, evaluation)

    def _open(self, store: dict[str, Dataset], prefix: str, rows: Dataset) -> str:
        if len(rows) == 0:
            return ""
        block = f"{prefix}{self._admissions}"
        store[block] = rows
        self._home |= {unit: block for unit in rows.units if unit}
        return block

    def _join(self, store: dict[str, Dataset], blocks: tuple[str, ...]) -> Dataset:
        if len(blocks) == 1:
            return store[blocks[0]]
        if blocks not in self._joined:
            joined = next(iter(store.values())).take(_NONE)
            for block in blocks:
                joined = joined.concatenate(store[block])
            self._joined[blocks] = joined
        return self._joined[blocks]


def _blocks_of(number: int) -> tuple[str, str]:
    """The blocks, of training and of evaluation rows, of feedback by its number, or of the original rows."""
    return (ORIGINAL, EVALUATION) if number == 0 else (f"{_FEEDBACK}{number}", f"{_FEEDBACK_EVALUATION}{number}")


def _choose_by_unit(units: tuple[str, ...], share: float, noise: NoiseSource) -> NDArray[np.bool_]:
    """Which rows belong to the chosen share of units; empty units are one each."""
    groups = [unit or f"\0{at}" for at, unit in enumerate(units)]
    distinct = list(dict.fromkeys(groups))
    order = noise.permutation(len(distinct))
    chosen = {distinct[at] for at in order[: round(share * len(distinct))]}
    return np.array([group in chosen for group in groups], dtype=np.bool_)
