"""Logistic regression (linear regression for a number): one linear layer on scaled numbers and one-hot categories."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedloop_core.models.model import TaskModel
from fedloop_core.models.preprocessing import OneHot
from fedloop_core.schema import FeatureSchema

__all__ = ["Logistic", "TabularColumns", "design_matrix", "logistic_arrays"]


class TabularColumns(nn.Module):
    """Scaled numbers and one-hot categories side by side: float32 ``[rows, width]``."""

    def __init__(self, schema: FeatureSchema) -> None:
        super().__init__()
        self.one_hot = OneHot(schema.categorical) if schema.categorical else None
        self.width = len(schema.numeric) + (self.one_hot.width if self.one_hot is not None else 0)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Takes the numbers, if the schema has any, then the codes, if it has any."""
        if self.one_hot is None:
            return inputs[0]
        return torch.cat([*inputs[:-1], self.one_hot(inputs[-1])], dim=1)


class Logistic(nn.Module):
    """``linear(columns)``: one row of weights for each output, two for two classes."""

    def __init__(self, schema: FeatureSchema) -> None:
        super().__init__()
        self.columns = TabularColumns(schema)
        self.linear = nn.Linear(self.columns.width, schema.outputs)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Scores prepared inputs."""
        outputs: Tensor = self.linear(self.columns(*inputs))
        return outputs


def design_matrix(model: TaskModel, *inputs: Tensor) -> NDArray[np.float64]:
    """Scaled and one-hot columns of raw inputs, without an intercept: float64 ``[rows, columns]``.

    Raises:
        TypeError: the model is not a logistic regression.
    """
    if not isinstance(model.backbone, Logistic):
        raise TypeError(f"only a logistic model has a design matrix, not {type(model.backbone).__name__}")
    with torch.no_grad():
        columns: Tensor = model.backbone.columns(*model.prepared(*inputs))
    return columns.cpu().numpy().astype(np.float64)


def logistic_arrays(theta: NDArray[np.float64]) -> dict[str, NDArray[np.generic]]:
    """Trainable arrays of a two-class model whose log odds are ``theta[0] + columns @ theta[1:]``.

    Args:
        theta: intercept, then one weight for each column of ``design_matrix``.
    """
    weight = np.zeros((2, len(theta) - 1), dtype=np.float32)
    bias = np.zeros(2, dtype=np.float32)
    weight[1], bias[1] = theta[1:], theta[0]
    return {"backbone.linear.weight": weight, "backbone.linear.bias": bias}
