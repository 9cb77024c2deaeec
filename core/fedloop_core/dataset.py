"""Rows as a site trains on them: encoded inputs, labels, and whose they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedloop_core.encoding import Inputs

__all__ = ["Dataset"]


@dataclass(frozen=True)
class Dataset:
    """Encoded rows. ``labels`` has one entry for each row; ``units`` names whose privacy each row is.

    Labels are int64 places in the classes, float32 numbers of a regression, or float32 ``[rows, 2]`` of time and event
    for survival.
    """

    inputs: Inputs
    labels: NDArray[np.generic]
    units: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuses columns of unequal length: a programming error, never a user's."""
        lengths = {name: len(array) for name, array in self.inputs.items()} | {"units": len(self.units)}
        if any(length != len(self.labels) for length in lengths.values()):
            raise ValueError(f"{len(self.labels)} labels beside {lengths}")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.integer] | Sequence[int]) -> Dataset:
        """The rows at these places, in this order."""
        places = np.asarray(rows, dtype=np.int64)
        return Dataset(
            {name: array[places] for name, array in self.inputs.items()},
            self.labels[places],
            tuple(self.units[place] for place in places),
        )

    def concatenate(self, other: Dataset) -> Dataset:
        """These rows, then the other's."""
        return Dataset.join([self, other])

    @staticmethod
    def join(parts: Sequence[Dataset]) -> Dataset:
        """The rows of all parts, at least one, in order."""
        return Dataset(
            {name: np.concatenate([part.inputs[name] for part in parts]) for name in parts[0].inputs},
            np.concatenate([part.labels for part in parts]),
            tuple(unit for part in parts for unit in part.units),
        )
