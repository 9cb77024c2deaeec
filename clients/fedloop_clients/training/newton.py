"""Exact sums for Newton-Raphson logistic regression at one site."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fedloop_core.arrays import NamedArrays
from fedloop_core.dataset import Dataset
from fedloop_core.errors import TooFewRows, UpdateRefused
from fedloop_core.newton import Standardisation, design_columns, design_matrix
from fedloop_core.task.document import Task

__all__ = ["Derivatives", "log_odds", "sum_derivatives"]

THETA = "theta"


@dataclass(frozen=True)
class Derivatives:
    """Of the log likelihood over a site's rows: gradient float64 ``[k]`` and negated Hessian float64 ``[k, k]``."""

    gradient: NDArray[np.float64]
    hessian: NDArray[np.float64]

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """As named arrays that travel beside the answer."""
        return {"gradient": self.gradient, "hessian": self.hessian}


def sum_derivatives(task: Task, arrays: NamedArrays, rows: Dataset) -> Derivatives:
    """Sums over rows: ``X^T (y - p)`` and ``X^T diag(p (1 - p)) X`` with an intercept column first.

    Args:
        task: its scaling decides whether the columns are standardised by the arrays received or by the site's own rows.
        arrays: ``theta`` float64 ``[1 + columns]``, then the scaler's.
        rows: training rows.

    Raises:
        TooFewRows: there is no row.
        UpdateRefused: arrays that do not fit the design.
    """
    if len(rows) == 0:
        raise TooFewRows("there is no training row.", hint="Add data, or leave the run.")
    theta = _theta(task, arrays)
    matrix = _matrix(task, arrays, rows, rows)
    probability = expit(matrix @ theta)
    gradient = matrix.T @ (rows.labels.astype(np.float64) - probability)
    hessian = (matrix * (probability * (1 - probability))[:, None]).T @ matrix
    return Derivatives(gradient, hessian)


def log_odds(task: Task, arrays: NamedArrays, rows: Dataset, scaler_rows: Dataset) -> NDArray[np.float32]:
    """Logits of the two classes, the first always 0: float32 ``[rows, 2]``.

    Raises:
        UpdateRefused: arrays that do not fit the design.
    """
    scores = _matrix(task, arrays, rows, scaler_rows) @ _theta(task, arrays)
    return np.stack([np.zeros_like(scores), scores], axis=1).astype(np.float32)


def _theta(task: Task, arrays: NamedArrays) -> NDArray[np.float64]:
    wanted = 1 + len(design_columns(task.feature_schema))
    theta = arrays.get(THETA)
    if theta is None or theta.shape != (wanted,) or theta.dtype != np.float64 or not np.isfinite(theta).all():
        raise UpdateRefused(f"theta must be {wanted} finite float64 numbers.", reason="shape")
    return theta.astype(np.float64)


def _matrix(task: Task, arrays: NamedArrays, rows: Dataset, scaler_rows: Dataset) -> NDArray[np.float64]:
    """The design with the intercept's column of ones first."""
    schema = task.feature_schema
    if task.preprocessing.scaling == "per-site":
        scaler = _own_standardisation(task, scaler_rows)
    else:
        scaler = Standardisation.from_arrays(schema, arrays)
    matrix = design_matrix(rows.inputs, schema, scaler)
    return np.concatenate([np.ones((len(matrix), 1)), matrix], axis=1)


def _own_standardisation(task: Task, rows: Dataset) -> Standardisation:
    matrix = design_matrix(rows.inputs, task.feature_schema)
    count = np.isfinite(matrix).sum(axis=0).astype(np.float64)
    return Standardisation.from_moments(np.nansum(matrix, axis=0), np.nansum(matrix**2, axis=0), count)
