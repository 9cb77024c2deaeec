"""Splitting rows at random, by unit, with the same mix of outcomes in every part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from fedloop_core.dataset import Dataset
from fedloop_core.errors import UsageError
from fedloop_core.schema import ClassLabel, FeatureSchema, SurvivalLabel

__all__ = ["DEFAULT_SHARES", "Shares", "divide", "units_in"]


@dataclass(frozen=True)
class Shares:
    """How a site's rows are shared out: rows to train on, to evaluate on, and for its devices to see; they sum to 1.

    Raises:
        UsageError: a share is negative, nothing is left to train on, or the sum is not 1.
    """

    train: float = 0.35
    evaluation: float = 0.08
    stream: float = 0.57

    def __post_init__(self) -> None:
        """Checks the sum."""
        shares: tuple[float, ...] = astuple(self)
        if not (all(share >= 0 for share in shares) and self.train > 0 and math.isclose(sum(shares), 1)):
            raise UsageError(f"shares of train, evaluation and stream must sum to 1, not {shares}.")


DEFAULT_SHARES = Shares()


def units_in(rows: Dataset) -> int:
    """Number of distinct units."""
    return len(set(rows.units))


def divide(
    rows: Dataset, schema: FeatureSchema, shares: Sequence[float], generator: np.random.Generator
) -> tuple[Dataset, ...]:
    """Divides rows into parts of these shares: all rows of a unit in one part, each part in random order.

    Units are dealt like cards, outcome by outcome: the part that is furthest behind its share gets the next one. So the
    numbers of units are off their shares by less than the number of parts, and outcomes are mixed alike in all parts.

    Args:
        rows: rows to divide.
        schema: says whether outcomes are classes, events, or numbers, which are not balanced.
        shares: of the parts, summing to 1; a part with the share 0 gets nothing.
        generator: decides who goes where, and the order.
    """
    numbers = {unit: number for number, unit in enumerate(dict.fromkeys(rows.units))}
    unit_of_row = np.array([numbers[unit] for unit in rows.units], dtype=np.int64)
    outcomes = _outcomes(rows, schema)
    outcome_of_unit = np.zeros(len(numbers), dtype=np.int64)
    outcome_of_unit[unit_of_row[::-1]] = outcomes[::-1]  # a unit counts by its first row
    part_of_unit = _deal(outcome_of_unit, np.asarray(shares, dtype=np.float64), generator)
    part_of_row = part_of_unit[unit_of_row]
    return tuple(rows.take(generator.permutation(np.flatnonzero(part_of_row == part))) for part in range(len(shares)))


def _deal(
    outcomes: NDArray[np.int64], shares: NDArray[np.float64], generator: np.random.Generator
) -> NDArray[np.int64]:
    """Part of each unit."""
    parts = np.zeros(len(outcomes), dtype=np.int64)
    given = np.zeros(len(shares))
    for turn, unit in enumerate(np.lexsort((generator.random(len(outcomes)), outcomes)), start=1):
        part = int(np.argmax(shares * turn - given))
        given[part] += 1
        parts[unit] = part
    return parts


def _outcomes(rows: Dataset, schema: FeatureSchema) -> NDArray[np.int64]:
    if isinstance(schema.label, ClassLabel):
        return rows.labels.astype(np.int64)
    if isinstance(schema.label, SurvivalLabel):
        return rows.labels[:, 1].astype(np.int64)
    return np.zeros(len(rows), dtype=np.int64)
