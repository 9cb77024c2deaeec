"""The model of a run as arrays: what rounds move, and the scaler that travels beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedloop_core.arrays import NamedArrays
from fedloop_core.models import initial_model, logistic_arrays
from fedloop_core.newton import Standardisation, design_columns, logistic_coefficients
from fedloop_core.scaling import Scaler
from fedloop_core.schema import FeatureSchema
from fedloop_core.task.document import NewtonRaphson, Task

__all__ = ["AveragedModel", "NewtonModel", "RunModel", "model_of"]

Arrays = dict[str, NDArray[np.generic]]


class RunModel(Protocol):
    """Arrays of a run. ``trained`` is replaced after each round; the scaler is fixed before the first.

    ``fixed_digest``: of what the model is built with and no round moves (``TaskModel.fixed_digest``).
    """

    trained: Arrays
    fixed_digest: bytes

    @property
    def wants_moments(self) -> bool:
        """Whether sites must be asked for sums before training."""

    @property
    def scaled_columns(self) -> int:
        """Number of columns whose moments are asked for."""

    @property
    def largest_moment(self) -> float:
        """No site's sum is greater: a bound from public ranges for as many rows as the data gate lets in."""

    def set_moments(self, total: NDArray[np.float64], squares: NDArray[np.float64], count: NDArray[np.float64]) -> None:
        """Fixes the scaler from sums over all sites' training rows."""

    def all_arrays(self) -> Arrays:
        """Trained arrays, then the scaler's: what is sent, stored and exported."""

    def load(self, arrays: NamedArrays) -> None:
        """Takes over what ``all_arrays`` gave."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of ``all_arrays`` in order."""

    def deployable(self) -> Arrays:
        """Parameters of the task's torch model and its scaler: what is exported."""


class AveragedModel:
    """The trainable parameters of the task's torch model."""

    def __init__(self, task: Task, seed: int, warm: NamedArrays | None = None) -> None:
        self._schema = task.feature_schema
        self._most_rows = task.gates.data.maximum_rows
        self._scaling = task.preprocessing.scaling
        self._warm = warm is not None
        model = initial_model(task, seed)
        self.trained: Arrays = model.trainable_arrays()
        self.fixed_digest = model.fixed_digest()
        self._scaler = Scaler.from_ranges(self._schema)
        if self._scaling == "per-site":
            self._scaler = Scaler.identity(self._schema)
        if warm is not None:
            self.load(warm)

    @property
    def wants_moments(self) -> bool:
        """Only a fresh run with federated scaling asks: a warm one keeps the scaler that its weights know."""
        return self._scaling == "federated" and bool(self._schema.numeric) and not self._warm

    @property
    def scaled_columns(self) -> int:
        """Every numeric feature."""
        return len(self._schema.numeric)

    @property
    def largest_moment(self) -> float:
        """From the widest public range."""
        return _largest_moment(self._schema, self._most_rows)

    def set_moments(self, total: NDArray[np.float64], squares: NDArray[np.float64], count: NDArray[np.float64]) -> None:
        """A scaler kept inside the public ranges."""
        self._scaler = Scaler.from_moments(self._schema, total, squares, count)

    def all_arrays(self) -> Arrays:
        """Parameters in the model's order, then ``scaler.mean`` and ``scaler.deviation`` where numbers are scaled."""
        return {**self.trained, **(self._scaler.arrays() if self._schema.numeric else {})}

    def load(self, arrays: NamedArrays) -> None:
        """Takes over parameters and scaler."""
        self.trained = {name: np.array(arrays[name]) for name in self.trained}
        if self._schema.numeric:
            self._scaler = Scaler.from_arrays(arrays)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of ``all_arrays`` in order."""
        return tuple(self.all_arrays())

    def deployable(self) -> Arrays:
        """The same arrays."""
        return self.all_arrays()


class NewtonModel:
    """Coefficients of a logistic regression on the design matrix of ``fedloop_core.newton``."""

    def __init__(self, task: Task, warm: NamedArrays | None = None) -> None:
        self._schema = task.feature_schema
        self._most_rows = task.gates.data.maximum_rows
        self._scaling = task.preprocessing.scaling
        public = Scaler.from_ranges(self._schema).arrays() if self._scaling == "range" else {}
        self._standardisation = Standardisation.from_arrays(self._schema, public)
        self.fixed_digest = b""
        self.trained: Arrays = {"theta": np.zeros(1 + self.scaled_columns)}
        if warm is not None:
            self.load(warm)

    @property
    def wants_moments(self) -> bool:
        """With federated scaling every column of the design is scaled, dummies too."""
        return self._scaling == "federated"

    @property
    def scaled_columns(self) -> int:
        """Columns of the design."""
        return len(design_columns(self._schema))

    @property
    def largest_moment(self) -> float:
        """From the widest public range."""
        return _largest_moment(self._schema, self._most_rows)

    def set_moments(self, total: NDArray[np.float64], squares: NDArray[np.float64], count: NDArray[np.float64]) -> None:
        """Mean and sample deviation of every column, in float64."""
        self._standardisation = Standardisation.from_moments(total, squares, count)

    def all_arrays(self) -> Arrays:
        """``theta``, ``scaler.mean``, ``scaler.deviation``, all float64."""
        return {**self.trained, **self._standardisation.arrays()}

    def load(self, arrays: NamedArrays) -> None:
        """Takes over coefficients and scaler."""
        self.trained = {"theta": np.array(arrays["theta"])}
        self._standardisation = Standardisation.from_arrays(self._schema, arrays)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of ``all_arrays`` in order."""
        return tuple(self.all_arrays())

    def deployable(self) -> Arrays:
        """The same log odds as the parameters of the model ``logistic``, which scales numbers and leaves dummies."""
        theta = self.trained["theta"].astype(np.float64)
        coefficients = logistic_coefficients(theta, self._schema, self._standardisation)
        numeric = len(self._schema.numeric)
        scaler = Scaler(
            self._standardisation.mean[:numeric].astype(np.float32),
            self._standardisation.deviation[:numeric].astype(np.float32),
        )
        return {**logistic_arrays(coefficients), **(scaler.arrays() if numeric else {})}


def model_of(task: Task, seed: int, warm: Mapping[str, NDArray[np.generic]] | None = None) -> RunModel:
    """The run's model: fresh from ``seed``, or from the arrays of an earlier version."""
    if isinstance(task.training, NewtonRaphson):
        return NewtonModel(task, warm)
    return AveragedModel(task, seed, warm)


def _largest_moment(schema: FeatureSchema, most_rows: int) -> float:
    widest = max([1.0, *(max(abs(bound) for bound in feature.range) for feature in schema.numeric)])
    return math.ldexp(1.0, math.ceil(math.log2(most_rows * max(widest, widest**2))))
