"""What every converter starts from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloop_core.encoding import InputEncoder, Inputs, InputSpec
from fedloop_core.models import TaskModel, build_model
from fedloop_core.scaling import Scaler
from fedloop_core.schema import FeatureSchema
from fedloop_server.export.request import ExportRequest
from fedloop_server.export.synthetic import synthetic_inputs

__all__ = ["Source"]

_CALIBRATION_ROWS = 96
_CALIBRATION_STREAM = 1


@dataclass(frozen=True)
class Source:
    """A loaded model in evaluation mode, its schema and scaler, and a folder for files in between."""

    model: TaskModel
    schema: FeatureSchema
    scaler: Scaler
    seed: int
    folder: Path

    @classmethod
    def of(cls, request: ExportRequest, folder: Path) -> Source:
        """Builds and loads the model.

        Raises:
            TaskInvalid: a custom model does not do what a model must.
            UpdateRefused: the arrays do not fit the model.
        """
        model = build_model(request.task).eval()
        model.load_trainable_arrays(request.trainable)
        model.set_scaler(request.scaler)
        return cls(model, request.task.feature_schema, request.scaler, request.seed, folder)

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The encoder's inputs, in order."""
        return InputEncoder(self.schema).inputs

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """Inputs to trace the model with: zeros."""
        return tuple(
            torch.zeros((rows, *spec.shape), dtype=torch.from_numpy(np.zeros(0, spec.dtype)).dtype)
            for spec in self.inputs
        )

    def calibration(self) -> list[Inputs]:
        """Single rows from which ranges of activations are read."""
        inputs = synthetic_inputs(self.schema, self.scaler, _CALIBRATION_ROWS, seed=(self.seed, _CALIBRATION_STREAM))
        return [{name: array[row : row + 1] for name, array in inputs.items()} for row in range(_CALIBRATION_ROWS)]

    def torch_outputs(self, inputs: Inputs) -> NDArray[np.float32]:
        """The float model's answers, float32 ``[rows, outputs]``."""
        with torch.no_grad():
            outputs = self.model(*(torch.from_numpy(inputs[spec.name]) for spec in self.inputs))
        result: NDArray[np.float32] = outputs.numpy()
        return result
