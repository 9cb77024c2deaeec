"""What every source gives: columns by the names that the site uses, row numbers, and what could not be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedloop_core.errors import ColumnMissing, SourceInvalid

__all__ = ["BrokenRow", "Fact", "Known", "RowSource", "SourceBatch", "SourceDescription", "check_columns"]


class Known(StrEnum):
    """Where a fact about a source comes from."""

    DECLARED = "declared"
    DETECTED = "detected"
    READ = "read"


@dataclass(frozen=True)
class Fact:
    """One thing about how a source is written, as people would say it: ``delimiter``, ``';'``, detected."""

    name: str
    value: str
    known: Known


@dataclass(frozen=True)
class SourceDescription:
    """What a source is and where, without passwords, and how it is written."""

    kind: str
    where: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class BrokenRow:
    """A row that is none: its number from 1, and why, without what it holds."""

    number: int
    why: str


@dataclass(frozen=True)
class SourceBatch:
    """Some rows that follow one another.

    ``columns``: Arrow arrays under the site's names: text from text files, typed where the source has types.
    ``numbers``: int64 ``[rows]``, each row's number in the source from 1, broken ones counted. ``broken``: rows
    among these, or after the last of all, that could not be read.
    """

    columns: pa.RecordBatch
    numbers: NDArray[np.int64]
    broken: tuple[BrokenRow, ...] = ()


class RowSource(Protocol):
    """Rows as they lie. Reading twice gives the same batches while nobody changes them."""

    def describe(self) -> SourceDescription:
        """What the source is, with all that was declared or detected about its form.

        Raises:
            FileMissing: it is not there or cannot be read.
            SourceInvalid: its form is not as declared, or cannot be told.
        """

    def columns(self) -> tuple[str, ...]:
        """The names of its columns, in its order.

        Raises:
            FileMissing, SourceInvalid: as ``describe``.
        """

    def batches(self, columns: Sequence[str]) -> Iterator[SourceBatch]:
        """All rows, these columns only, in the source's order.

        Args:
            columns: names among ``columns()``, each once.

        Raises:
            FileMissing, SourceInvalid: as ``describe``; also in the middle, when what follows cannot be read.
            ColumnMissing: there is no such column.
        """

    def places(self, numbers: Sequence[int]) -> dict[int, str]:
        """Where rows stand, for people, by their numbers: ``patients.csv:17``."""


def check_columns(where: str, wanted: Sequence[str], names: Sequence[str]) -> None:
    """Goes on only when a source has each column once.

    Raises:
        ColumnMissing: names all that are missing, and what may be meant.
        SourceInvalid: there are two of that name.
    """
    missing = [column for column in wanted if column not in names]
    if missing:
        same = {name.strip().casefold(): name for name in names}
        meant = [same[column.casefold()] for column in missing if column.casefold() in same]
        told = f" Did you mean {', '.join(map(repr, meant))}?" if meant else ""
        raise ColumnMissing(
            f"{where} has no column {', '.join(map(repr, missing))}.",
            hint=f"It has: {', '.join(names[:20])}{', …' if len(names) > 20 else ''}.{told} [data.map] in site.toml renames columns.",
            column=missing[0],
        )
    twice = next((column for column in wanted if list(names).count(column) > 1), None)
    if twice is not None:
        raise SourceInvalid(f"{where} has two columns {twice!r}.", hint="Give each a name of its own.", column=twice)
