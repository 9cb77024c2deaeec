"""All updates of a round, held until it closes: what a rule needs that compares them.

Takes as much memory as the model's arrays for each update; the mean takes eight bytes a value for all of them together.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedloop_core.arrays import ArraySpec, NamedArrays
from fedloop_core.errors import UpdateRefused
from fedloop_core.task.aggregation import RobustRule
from fedloop_core.update_gate import norm as norm_of
from fedloop_server.aggregation.rules import combine

__all__ = ["HeldUpdates"]


@dataclass(frozen=True)
class _Held:
    values: NDArray[np.floating]
    weight: int
    norm: float


class HeldUpdates:
    """Updates as they came, each as one vector; float32 where all of the model is, and otherwise float64."""

    def __init__(self, spec: ArraySpec, *, total_weight: int) -> None:
        self.spec = spec
        self._total_weight = total_weight
        self._dtype = np.dtype("float32" if set(spec.dtypes) == {"float32"} else "float64")
        self._held: list[_Held] = []

    def add(self, arrays: NamedArrays, weight: int = 1, *, norm: float | None = None) -> None:
        """Keeps a copy of one update; a refused one changes nothing.

        ``norm`` is its L2 norm where the caller has computed it.

        Raises:
            UpdateRefused: names, shapes, dtypes or values do not fit, or the weight exceeds what was agreed.
        """
        self.spec.check_layout(arrays)
        if weight < 1 or self.weight + weight > self._total_weight:
            left = self._total_weight - self.weight
            raise UpdateRefused(f"weight {weight} does not fit: {left} of the agreed weight is left.", reason="weight")
        length = norm_of(arrays) if norm is None else norm
        if not math.isfinite(length):
            raise UpdateRefused("the update holds values that are not finite.", reason="not-finite")
        values = np.empty(sum(array.size for array in arrays.values()), dtype=self._dtype)
        start = 0
        for array in arrays.values():
            np.copyto(values[start : start + array.size], array.reshape(-1), casting="same_kind")
            start += array.size
        self._held.append(_Held(values, weight, length))

    @property
    def weight(self) -> int:
        """Of all updates together."""
        return sum(held.weight for held in self._held)

    def moved(
        self, model: NamedArrays, rule: RobustRule, rate: float
    ) -> tuple[dict[str, NDArray[np.generic]], tuple[float, ...]]:
        """``model + rate * combined`` in float64, rounded to the model's dtypes, and each update's share, as they were added.

        The updates are let go; nothing can be asked afterwards.

        Raises:
            TooFewUpdates: the rule's condition does not hold.
            RunError: the updates are too long to be compared.
        """
        held, self._held = self._held, []
        order = _order(held)
        found = combine(rule, [held[place].values for place in order], [held[place].weight for place in order])
        shares = [0.0] * len(held)
        for place, share in zip(order, found.shares, strict=True):
            shares[place] = share
        return dict(_moved(model, found.value, rate)), tuple(shares)


def _order(held: list[_Held]) -> list[int]:
    """An order that follows from the updates alone: by weight and length, and those that are equal in both by their bytes."""

    def key(place: int) -> tuple[int, float]:
        return held[place].weight, held[place].norm

    keys = [key(place) for place in range(len(held))]
    return sorted(
        range(len(held)),
        key=lambda place: (
            *keys[place],
            hashlib.sha256(held[place].values.data).digest() if keys.count(keys[place]) > 1 else b"",
        ),
    )


def _moved(model: NamedArrays, combined: NDArray[np.float64], rate: float) -> Iterator[tuple[str, NDArray[np.generic]]]:
    start = 0
    for name, array in model.items():
        move = combined[start : start + array.size].reshape(array.shape)
        start += array.size
        yield name, np.add(array, rate * move, dtype=np.float64).astype(array.dtype)
