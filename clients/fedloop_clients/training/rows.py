"""Rows as torch takes them, prepared once, and how they are cut into batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloop_core.dataset import Dataset
from fedloop_core.encoding import CATEGORICAL, NUMERIC, InputEncoder, Inputs
from fedloop_core.models import TaskModel
from fedloop_core.schema import FeatureSchema

__all__ = ["PreparedRows", "TrainingRows", "UnitIndex", "nobodys_rows", "prepare", "raw_tensors", "shuffled_batches"]


@dataclass(frozen=True)
class PreparedRows:
    """What the backbone takes, and the labels; the model's preprocessing has no parameters, so once is enough."""

    inputs: tuple[Tensor, ...]
    labels: Tensor

    def take(self, places: Tensor) -> PreparedRows:
        """The rows at these places."""
        return PreparedRows(tuple(values[places] for values in self.inputs), self.labels[places])


@dataclass(frozen=True)
class UnitIndex:
    """Which rows are each unit's: ``rows`` sorted by unit, ``starts`` of each unit in it, with the end at the end."""

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, units: tuple[str, ...]) -> UnitIndex:
        """Units in order of first appearance; a row with an empty unit is a unit of its own."""
        places: dict[str, int] = {}
        owner = np.array(
            [places.setdefault(unit or f"\0{row}", len(places)) for row, unit in enumerate(units)], dtype=np.int64
        )
        rows = np.argsort(owner, kind="stable").astype(np.int64)
        starts = np.searchsorted(owner[rows], np.arange(len(places) + 1)).astype(np.int64)
        return cls(rows, starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of rows of each unit."""
        return np.diff(self.starts)

    def rows_of(self, units: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of these units, and for each row the place of its unit among them."""
        if len(units) == 0:
            return units, units
        spans = [self.rows[self.starts[unit] : self.starts[unit + 1]] for unit in units]
        return np.concatenate(spans), np.repeat(np.arange(len(units)), [len(span) for span in spans])


@dataclass(frozen=True)
class TrainingRows:
    """A site's training rows, and whose they are."""

    prepared: PreparedRows
    units: UnitIndex


def raw_tensors(inputs: Inputs) -> tuple[Tensor, ...]:
    """Encoded inputs as tensors, in their order."""
    return tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in inputs.values())


def nobodys_rows(schema: FeatureSchema, count: int) -> Inputs:
    """Rows within the public ranges that are no one's: the same at each call."""
    generator = np.random.default_rng(0)
    rows: Inputs = {}
    for spec in InputEncoder(schema).inputs:
        if spec.name == NUMERIC:
            low, high = np.array([feature.range for feature in schema.numeric], dtype=np.float64).T
            rows[spec.name] = generator.uniform(low, high, (count, len(low))).astype(np.float32)
        elif spec.name == CATEGORICAL:
            top = [feature.cardinality for feature in schema.categorical]
            rows[spec.name] = generator.integers(0, top, (count, len(top)))
        else:
            bounds = next(feature.range for feature in schema.tensors if feature.name == spec.name)
            rows[spec.name] = generator.uniform(*bounds, (count, *spec.shape)).astype(np.float32)
    return rows


def prepare(model: TaskModel, rows: Dataset) -> PreparedRows:
    """Runs the model's preprocessing, with the scaler it holds, over all rows."""
    with torch.no_grad():
        inputs = tuple(model.prepared(*raw_tensors(rows.inputs)))
    return PreparedRows(inputs, torch.from_numpy(np.ascontiguousarray(rows.labels)))


def shuffled_batches(rows: int, batch_size: int, steps: int, seed: int) -> Iterator[Tensor]:
    """Places of the rows of each of ``steps`` batches: a fresh random order for each pass, its last batch shorter."""
    generator = torch.Generator().manual_seed(seed)
    done = 0
    while done < steps:
        order = torch.randperm(rows, generator=generator)
        for start in range(0, rows, batch_size):
            yield order[start : start + batch_size]
            done += 1
            if done == steps:
                return
