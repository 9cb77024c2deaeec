"""A task's model: preprocessing without parameters, then a backbone that holds every trainable parameter."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedloop_core.arrays import ArraySpec, NamedArrays
from fedloop_core.models.preprocessing import NumericScaling, RangeRestoring, RangeScaling
from fedloop_core.scaling import Scaler
from fedloop_core.schema import FeatureSchema, RegressionLabel

__all__ = ["TaskModel", "preprocessing"]


class TaskModel(nn.Module):
    """Takes raw inputs in the order of ``InputEncoder.inputs`` and gives float32 ``[rows, outputs]``.

    Outputs are logits for classes, the predicted number in the label's own unit for a regression, a log hazard for
    survival. The backbone gets the same inputs in the same order, numbers, images and signals scaled, categories as
    codes; its output for a regression is on a scale where the label's range is [-1, 1].
    """

    def __init__(self, schema: FeatureSchema, backbone: nn.Module) -> None:
        super().__init__()
        self.preprocessing = preprocessing(schema)
        self.backbone = backbone
        label = schema.label
        self.postprocessing = RangeRestoring(label.range) if isinstance(label, RegressionLabel) else nn.Identity()

    def forward(self, *inputs: Tensor) -> Tensor:
        """Scores rows."""
        outputs: Tensor = self.postprocessing(self.backbone(*self.prepared(*inputs)))
        return outputs

    def prepared(self, *inputs: Tensor) -> list[Tensor]:
        """What the backbone gets for these raw inputs."""
        return [step(values) for step, values in zip(self.preprocessing, inputs, strict=True)]

    def trainable_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Float32 copies of the trainable parameters in their order."""
        return {name: parameter.detach().cpu().numpy().copy() for name, parameter in self._trainable().items()}

    def load_trainable_arrays(self, arrays: NamedArrays) -> None:
        """Sets the trainable parameters.

        Raises:
            UpdateRefused: other names, another order, other shapes or dtypes, or values that are not finite.
        """
        parameters = self._trainable()
        ArraySpec(
            tuple(parameters),
            tuple(tuple(parameter.shape) for parameter in parameters.values()),
            ("float32",) * len(parameters),
        ).check(arrays)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(torch.from_numpy(np.array(arrays[name])))

    def fixed_digest(self) -> bytes:
        """SHA-256 over what the backbone is built with and training does not move; nothing where there is nothing of it.

        Frozen parameters, and buffers that its state names. A buffer that is computed anew at each place
        (``persistent=False``) may differ in its last bits and is not among them.
        """
        trained = {name for name, parameter in self.backbone.named_parameters() if parameter.requires_grad}
        fixed = {name: values for name, values in self.backbone.state_dict().items() if name not in trained}
        if not fixed:
            return b""
        state = hashlib.sha256()
        for name in sorted(fixed):
            values = fixed[name].detach().cpu().contiguous()
            state.update(f"{name}\0{values.dtype}\0{tuple(values.shape)}\0".encode())
            state.update(values.reshape(-1).view(torch.uint8).numpy().data)
        return state.digest()

    def set_scaler(self, scaler: Scaler) -> None:
        """Sets the scaling of numeric features; without any there is nothing to set.

        Raises:
            UpdateRefused: the scaler does not fit the schema.
        """
        for step in self.preprocessing:
            if isinstance(step, NumericScaling):
                step.set_scaler(scaler)

    def _trainable(self) -> dict[str, nn.Parameter]:
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}


def preprocessing(schema: FeatureSchema) -> nn.ModuleList:
    """One module for each input of ``InputEncoder.inputs``, in that order; codes pass unchanged."""
    steps: list[nn.Module] = []
    if schema.numeric:
        steps.append(NumericScaling(schema))
    if schema.categorical:
        steps.append(nn.Identity())
    steps.extend(RangeScaling(feature.range) for feature in schema.tensors)
    return nn.ModuleList(steps)
