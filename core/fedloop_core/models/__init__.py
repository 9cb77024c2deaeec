"""The torch models that a task can name, their losses and their starting weights.

The only part of ``fedloop_core`` that imports torch. Every model takes raw inputs as ``InputEncoder`` makes them:
clamping, scaling and encoding are part of its graph, so that what is exported needs no code beside it.
"""

from fedloop_core.models.build import build_model, initial_arrays, initial_model
from fedloop_core.models.logistic import design_matrix, logistic_arrays
from fedloop_core.models.losses import cox_loss, per_row_loss
from fedloop_core.models.model import TaskModel

__all__ = [
    "TaskModel",
    "build_model",
    "cox_loss",
    "design_matrix",
    "initial_arrays",
    "initial_model",
    "logistic_arrays",
    "per_row_loss",
]
