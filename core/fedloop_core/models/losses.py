"""What training minimises, one value for each row wherever the loss is a sum over rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedloop_core.errors import UsageError
from fedloop_core.schema import ClassLabel, RegressionLabel, SurvivalLabel
from fedloop_core.task.document import Task

__all__ = ["cox_loss", "per_row_loss"]


def per_row_loss(task: Task, outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy for classes, squared error for a regression: float32 ``[rows]``.

    Errors of a regression are on a scale where the label's public range is [-1, 1], and labels are clamped to it.

    Args:
        task: decides which loss it is.
        outputs: float32 ``[rows, outputs]`` of the model.
        labels: int64 ``[rows]`` places in the classes, or float32 ``[rows]`` in the label's own unit.

    Raises:
        UsageError: the label is a survival time, whose loss is no sum over rows: see ``cox_loss``.
    """
    match task.label:
        case ClassLabel():
            return functional.cross_entropy(outputs, labels, reduction="none")
        case RegressionLabel() as label:
            low, high = label.range
            return ((outputs[:, 0] - labels.clamp(low, high)) / ((high - low) / 2)).square()
        case SurvivalLabel():
            raise UsageError(
                f"task {task.name!r} has a survival label: its loss is not a sum over rows.", hint="Use cox_loss."
            )


def cox_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Negative log partial likelihood of the proportional hazards model, mean over events (Cox 1972).

    Tied times share one risk set (Breslow 1974).

    Args:
        outputs: float32 ``[rows, 1]`` log hazards.
        labels: float32 ``[rows, 2]``: time, and 1 where the event was seen or 0 where the row is censored.

    Returns:
        One value; 0 when no event was seen.
    """
    order = torch.argsort(labels[:, 0], descending=True, stable=True)
    time, event = labels[order, 0], labels[order, 1]
    hazard = outputs[order, 0]
    # Rows at risk at a time are those with that time or a later one: in this order, all up to the last of the tie.
    last = torch.searchsorted(-time, -time, right=True) - 1
    at_risk = torch.logcumsumexp(hazard, dim=0)[last]
    return ((at_risk - hazard) * event).sum() / event.sum().clamp(min=1)
