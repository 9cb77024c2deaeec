"""From a task to its model and its starting weights."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedloop_core.models.convolution import image_network, signal_network
from fedloop_core.models.custom import custom_network
from fedloop_core.models.logistic import Logistic
from fedloop_core.models.mlp import Mlp
from fedloop_core.models.model import TaskModel
from fedloop_core.schema import FeatureSchema
from fedloop_core.task.document import CnnModel, CustomModel, LogisticModel, MlpModel, Model, SignalCnnModel, Task

__all__ = ["build_model", "initial_arrays", "initial_model"]


def build_model(task: Task) -> TaskModel:
    """The task's model, scaled by public ranges, with weights that are yet to be loaded.

    Raises:
        TaskInvalid: a custom model does not do what a model must.
    """
    return TaskModel(task.feature_schema, _backbone(task.feature_schema, task.model))


def initial_arrays(task: Task, seed: int) -> dict[str, NDArray[np.generic]]:
    """Trainable arrays of ``initial_model``.

    Raises:
        TaskInvalid: a custom model does not do what a model must.
    """
    return initial_model(task, seed).trainable_arrays()


def initial_model(task: Task, seed: int) -> TaskModel:
    """The model to start from: the same for the same task and seed, whatever other threads draw.

    torch's default initialisation; a custom model keeps its author's own, for which torch's global generator is seeded
    and put back.

    Raises:
        TaskInvalid: a custom model does not do what a model must.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = build_model(task)
    if not isinstance(task.model, CustomModel):
        generator = torch.Generator().manual_seed(seed)
        for module in model.backbone.modules():
            _draw(module, generator)
    return model


def _backbone(schema: FeatureSchema, model: Model) -> nn.Module:
    match model:
        case LogisticModel():
            return Logistic(schema)
        case MlpModel():
            return Mlp(schema, model)
        case CnnModel():
            return image_network(schema, model)
        case SignalCnnModel():
            return signal_network(schema, model)
        case CustomModel():
            return custom_network(schema, model)


def _draw(module: nn.Module, generator: torch.Generator) -> None:
    """Draws torch's defaults for the layers that our backbones have; GroupNorm starts at 1 and 0 without drawing."""
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, generator=generator)
    elif isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
        bound = 1 / math.sqrt(module.weight[0].numel())
        nn.init.uniform_(module.weight, -bound, bound, generator=generator)
        if module.bias is not None:
            nn.init.uniform_(module.bias, -bound, bound, generator=generator)
