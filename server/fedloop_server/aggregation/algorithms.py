"""What the server does with the answers of a round: a pure step from one model to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedloop_core.arrays import ArraySpec, NamedArrays
from fedloop_core.errors import RunError, UpdateRefused
from fedloop_core.task.aggregation import RobustRule
from fedloop_core.task.document import FederatedAveraging, NewtonRaphson, Task
from fedloop_server.aggregation.central import Noised
from fedloop_server.aggregation.fixed_point import FixedPointSum
from fedloop_server.aggregation.held import HeldUpdates

__all__ = ["Algorithm", "Averaging", "Fold", "Newton", "Robust", "algorithm_of"]

# Sums of Newton's derivatives: values of scaled features are of order 1 to 100, so sums over a million rows stay below
# 2**34, which leaves 28 bits (4e-9 of one row's term) even then. For small federations the bound follows their rows.
_LARGEST_TERM = 2.0**10
_LEAST_BITS_OF_SUMS = 8  # a step of 1/256 of one row's term, in sums over all rows
_LEAST_BITS_OF_UPDATES = 16  # a step of 1.5e-5 of a weight


class Fold(Protocol):
    """What one round gathers of its answers."""

    @property
    def clip(self) -> float | None:
        """The norm to which it shortens each update itself; None: it does not."""

    @property
    def noised(self) -> Noised | None:
        """What noise has moved the model with the answers; None: none."""

    @property
    def spec(self) -> ArraySpec:
        """Of every answer's arrays."""

    def add(self, arrays: NamedArrays, weight: int = 1, *, norm: float | None = None) -> None:
        """Takes one answer; a refused one changes nothing. ``norm`` is the arrays' where the caller has computed it.

        Raises:
            UpdateRefused: arrays or weight do not fit.
        """

    def add_whole(self, whole: NDArray[np.int64], weights: Sequence[int]) -> None:
        """Takes the sum of all answers, made whole and summed where nobody saw one of them, and their weights.

        Raises:
            UpdateRefused: it cannot be such a sum, or single answers are needed here.
        """

    def move(self, model: NamedArrays) -> tuple[dict[str, NDArray[np.generic]], tuple[float, ...]]:
        """The model after the round, and the share that each answer has in it, in the order in which they were added.

        What was gathered may be let go by it.

        Raises:
            RunError: the answers do not give a step.
        """


class Algorithm(Protocol):
    """One way of learning: what it gathers in a round, and how that moves the model."""

    def begin(self, model: NamedArrays, total_weight: int) -> Fold:
        """Begins a round.

        Raises:
            RunError: the sites' rows and the task's bounds leave too little of each value.
        """


class _Summed:
    """Sums in whole numbers, which a step turns into the next model; shares are those of the agreed weights."""

    clip: float | None = None
    noised: Noised | None = None

    def __init__(
        self, sums: FixedPointSum, step: Callable[[NamedArrays, FixedPointSum], dict[str, NDArray[np.generic]]]
    ) -> None:
        self._sums = sums
        self._step = step
        self._weights: list[int] = []

    @property
    def spec(self) -> ArraySpec:
        return self._sums.spec

    def add(self, arrays: NamedArrays, weight: int = 1, *, norm: float | None = None) -> None:
        self._sums.add(arrays, weight, norm=norm)
        self._weights.append(weight)

    def add_whole(self, whole: NDArray[np.int64], weights: Sequence[int]) -> None:
        self._sums.add_whole(whole, sum(weights))
        self._weights.extend(weights)

    def move(self, model: NamedArrays) -> tuple[dict[str, NDArray[np.generic]], tuple[float, ...]]:
        total = sum(self._weights)
        return self._step(model, self._sums), tuple(weight / total for weight in self._weights)


class _Compared:
    """All updates, which a robust rule makes one of."""

    clip: float | None = None
    noised: Noised | None = None

    def __init__(self, held: HeldUpdates, rule: RobustRule, rate: float) -> None:
        self._held = held
        self._rule = rule
        self._rate = rate

    @property
    def spec(self) -> ArraySpec:
        return self._held.spec

    def add(self, arrays: NamedArrays, weight: int = 1, *, norm: float | None = None) -> None:
        self._held.add(arrays, weight, norm=norm)

    def add_whole(self, whole: NDArray[np.int64], weights: Sequence[int]) -> None:
        raise UpdateRefused(
            f"{self._rule.rule} compares {len(weights)} updates; a sum of {whole.size} values tells none of them.",
            reason="rule",
        )

    def move(self, model: NamedArrays) -> tuple[dict[str, NDArray[np.generic]], tuple[float, ...]]:
        return self._held.moved(model, self._rule, self._rate)


class Averaging:
    """FedAvg and FedProx (McMahan 2017, arXiv 1602.05629): the model moves by the weighted mean of the updates."""

    def __init__(self, training: FederatedAveraging, maximum_norm: float) -> None:
        self._rate = training.server_learning_rate
        self._maximum_norm = maximum_norm

    def begin(self, model: NamedArrays, total_weight: int) -> Fold:
        """Begins with empty sums.

        Raises:
            RunError: as ``accumulator``.
        """
        return _Summed(self.accumulator(model, total_weight), self.step)

    def accumulator(self, model: NamedArrays, total_weight: int) -> FixedPointSum:
        """Values of an update are bounded by its norm, which the update gate bounds.

        Raises:
            RunError: weights and norm leave steps above 1.5e-5.
        """
        return FixedPointSum(
            ArraySpec.of(model),
            largest_value=self._maximum_norm,
            total_weight=total_weight,
            least_bits=_LEAST_BITS_OF_UPDATES,
        )

    def step(self, model: NamedArrays, sums: FixedPointSum) -> dict[str, NDArray[np.generic]]:
        """``model + server_learning_rate * mean`` in float64, then rounded to the model's dtype."""
        return sums.moved(model, self._rate)


class Robust:
    """Like ``Averaging``, with a robust rule in place of the mean. Holds all updates of a round."""

    def __init__(self, training: FederatedAveraging, rule: RobustRule) -> None:
        self._rate = training.server_learning_rate
        self._rule = rule

    def begin(self, model: NamedArrays, total_weight: int) -> Fold:
        """Begins with no update."""
        return _Compared(HeldUpdates(ArraySpec.of(model), total_weight=total_weight), self._rule, self._rate)


class Newton:
    """Newton-Raphson by exact sums: ``theta + solve(H + ridge * I, g)``."""

    def __init__(self, training: NewtonRaphson, rows: int) -> None:
        self._ridge = training.ridge
        self._rows = rows

    def begin(self, model: NamedArrays, total_weight: int) -> Fold:
        """Begins with empty sums.

        Raises:
            RunError: as ``accumulator``.
        """
        return _Summed(self.accumulator(model, total_weight), self.step)

    def accumulator(self, model: NamedArrays, total_weight: int) -> FixedPointSum:
        """Sums of ``gradient`` [k] and ``hessian`` [k, k]; every site has weight 1.

        Raises:
            RunError: the rows leave steps above 1/256 of one row's term.
        """
        size = model["theta"].size
        spec = ArraySpec(("gradient", "hessian"), ((size,), (size, size)), ("float64", "float64"))
        return FixedPointSum(
            spec,
            largest_value=_LARGEST_TERM * max(self._rows, 1),
            total_weight=total_weight,
            least_bits=_LEAST_BITS_OF_SUMS,
        )

    def step(self, model: NamedArrays, sums: FixedPointSum) -> dict[str, NDArray[np.generic]]:
        """One Newton step.

        Raises:
            RunError: the Hessian is singular, which a ridge above 0 prevents.
        """
        total = sums.sum()
        hessian = total["hessian"] + self._ridge * np.eye(model["theta"].size)
        try:
            move = np.linalg.solve(hessian, total["gradient"])
        except np.linalg.LinAlgError as error:
            raise RunError("the Hessian is singular.", hint="Set training.ridge above 0.") from error
        return {"theta": model["theta"].astype(np.float64) + move}


def algorithm_of(task: Task, rows: int) -> Algorithm:
    """The algorithm that a task asks for; ``rows`` is the number of training rows over all sites."""
    if isinstance(task.training, NewtonRaphson):
        return Newton(task.training, rows)
    if isinstance(task.aggregation, RobustRule):
        return Robust(task.training, task.aggregation)
    return Averaging(task.training, task.gates.update.maximum_norm)
