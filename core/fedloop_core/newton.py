"""The design of federated Newton-Raphson for logistic regression: columns, their standardisation, and the way back.

Columns are the numeric features, clamped to their public ranges, then a 0/1 column for each category of each
categorical feature except the first, which the intercept stands for. All columns, dummies too, can be standardised.
Sums of gradient and Hessian over sites equal those over the pooled rows, so that federated and centralised training give
the same coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedloop_core.arrays import NamedArrays
from fedloop_core.encoding import CATEGORICAL, NUMERIC, Inputs
from fedloop_core.errors import UpdateRefused
from fedloop_core.scaling import SCALER_DEVIATION, SCALER_MEAN
from fedloop_core.schema import FeatureSchema

__all__ = ["Standardisation", "design_columns", "design_matrix", "logistic_coefficients"]

_LEAST_DEVIATION = 1e-9  # added to every deviation, so that a constant column gives 0


@dataclass(frozen=True)
class Standardisation:
    """``(value - mean) / deviation`` of each column of the design: float64 ``[columns]`` each."""

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    @classmethod
    def from_moments(
        cls, total: NDArray[np.float64], total_of_squares: NDArray[np.float64], count: NDArray[np.float64]
    ) -> Self:
        """From exact sums over training rows, with ``count - 1`` degrees of freedom."""
        rows = np.maximum(count, 2.0)
        mean = total / rows
        variance = (total_of_squares - rows * mean**2) / (rows - 1)
        return cls(mean, np.sqrt(np.maximum(variance, 0.0)) + _LEAST_DEVIATION)

    @classmethod
    def from_arrays(cls, schema: FeatureSchema, arrays: NamedArrays) -> Self:
        """From the arrays beside an instruction; when they cover numeric features alone, dummies stay 0 and 1.

        Raises:
            UpdateRefused: the arrays do not fit the design, or hold something that cannot divide.
        """
        numeric, columns = len(schema.numeric), len(design_columns(schema))
        if SCALER_MEAN not in arrays and SCALER_DEVIATION not in arrays:
            return cls(np.zeros(columns), np.ones(columns))
        try:
            mean, deviation = arrays[SCALER_MEAN].astype(np.float64), arrays[SCALER_DEVIATION].astype(np.float64)
        except (KeyError, ValueError) as error:
            raise UpdateRefused("the scaler is not two arrays of numbers.", reason="scaler") from error
        if mean.shape != deviation.shape or mean.shape not in {(numeric,), (columns,)}:
            raise UpdateRefused(f"the scaler has shape {mean.shape}; the design has {columns} columns.", reason="shape")
        if not (np.isfinite(mean).all() and np.isfinite(deviation).all() and (deviation > 0).all()):
            raise UpdateRefused("the scaler holds values that are not finite or not above 0.", reason="scaler")
        extra = columns - len(mean)
        return cls(np.append(mean, np.zeros(extra)), np.append(deviation, np.ones(extra)))

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """As named arrays that travel beside the coefficients."""
        return {SCALER_MEAN: self.mean, SCALER_DEVIATION: self.deviation}


def design_columns(schema: FeatureSchema) -> tuple[str, ...]:
    """Names of the columns in order, without the intercept."""
    dummies = [
        f"{feature.name}={_category(feature.values, code)}"
        for feature in schema.categorical
        for code in range(1, feature.cardinality)
    ]
    return (*(feature.name for feature in schema.numeric), *dummies)


def design_matrix(
    inputs: Inputs, schema: FeatureSchema, standardisation: Standardisation | None = None
) -> NDArray[np.float64]:
    """Columns of encoded rows: float64 ``[rows, columns]``, without the intercept.

    Missing numbers stay NaN when nothing is standardised and become 0, the mean, otherwise.
    """
    rows = len(next(iter(inputs.values())))
    parts: list[NDArray[np.float64]] = []
    if schema.numeric:
        low, high = np.array([feature.range for feature in schema.numeric], dtype=np.float64).T
        parts.append(np.clip(inputs[NUMERIC].astype(np.float64), low, high))
    for at, feature in enumerate(schema.categorical):
        codes = inputs[CATEGORICAL][:, at]
        parts.append((codes[:, None] == np.arange(1, feature.cardinality)).astype(np.float64))
    matrix = np.concatenate(parts, axis=1) if parts else np.empty((rows, 0))
    if standardisation is None:
        return matrix
    scaled = (matrix - standardisation.mean) / standardisation.deviation
    scaled[np.isnan(scaled)] = 0.0
    return scaled


def logistic_coefficients(
    theta: NDArray[np.float64], schema: FeatureSchema, standardisation: Standardisation
) -> NDArray[np.float64]:
    """The same log odds over scaled numbers and *all* categories, unscaled, as the model ``logistic`` has its columns.

    Args:
        theta: intercept, then one coefficient for each column of the design.
        schema: the task's.
        standardisation: with which ``theta`` was found.

    Returns:
        Intercept, one coefficient for each numeric feature scaled by ``standardisation``, then one for each category of
        each categorical feature, 0 for the first of each.
    """
    numeric = len(schema.numeric)
    per_unit = theta[1 + numeric :] / standardisation.deviation[numeric:]
    intercept = theta[0] - per_unit @ standardisation.mean[numeric:]
    parts = [np.array([intercept]), theta[1 : 1 + numeric]]
    at = 0
    for feature in schema.categorical:
        width = feature.cardinality - 1
        parts += [np.zeros(1), per_unit[at : at + width]]
        at += width
    return np.concatenate(parts)


def _category(values: tuple[str, ...], code: int) -> str:
    return values[code] if code < len(values) else f"({code})"
