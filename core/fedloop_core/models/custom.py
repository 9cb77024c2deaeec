"""A model of the user's own: what ``module:factory`` returns, checked before anything is trained with it.

The module is imported by the word of the task. A site refuses tasks with modules that it does not name (``policy.model_modules``)
before it comes to that.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedloop_core.encoding import InputEncoder
from fedloop_core.errors import TaskInvalid
from fedloop_core.models.model import TaskModel
from fedloop_core.schema import FeatureSchema
from fedloop_core.task.document import CustomModel

__all__ = ["custom_network"]

_TRIAL_ROWS = 2


def custom_network(schema: FeatureSchema, model: CustomModel) -> nn.Module:
    """Calls the factory with the schema; the module becomes the backbone of a ``TaskModel``.

    Raises:
        TaskInvalid: the factory cannot be imported or raises; it returns no module, one with BatchNorm, one whose
            parameters are not float32, one that does not give ``[rows, outputs]``, or one whose frozen weights differ from call
            to call.
    """
    factory = _factory(model)
    with _author_code(f"model factory {model.factory!r} raises"):
        network = factory(schema)
    if not isinstance(network, nn.Module):
        raise TaskInvalid(
            f"model factory {model.factory!r} returns {type(network).__name__}.", hint="Return a torch.nn.Module."
        )
    normed = [name for name, module in network.named_modules() if isinstance(module, _BatchNorm)]
    if normed:
        raise TaskInvalid(
            f"the model of {model.factory!r} has BatchNorm at {', '.join(normed)}.",
            hint="BatchNorm mixes rows, which no privacy budget covers: use GroupNorm.",
        )
    odd = [name for name, parameter in network.named_parameters() if parameter.dtype != torch.float32]
    if odd:
        raise TaskInvalid(f"the model of {model.factory!r} has parameters that are not float32: {', '.join(odd)}.")
    _try(network, schema, model)
    _require_same_everywhere(network, factory, schema, model)
    return network


def _factory(model: CustomModel) -> Callable[[FeatureSchema], object]:
    name = model.factory.partition(":")[2]
    with _author_code(f"model factory {model.factory!r} cannot be imported"):
        found = getattr(importlib.import_module(model.module), name)
    if not callable(found):
        raise TaskInvalid(f"model factory {model.factory!r} is not a function.")
    factory: Callable[[FeatureSchema], object] = found
    return factory


def _try(network: nn.Module, schema: FeatureSchema, model: CustomModel) -> None:
    inputs = [
        torch.zeros((_TRIAL_ROWS, *spec.shape), dtype=getattr(torch, spec.dtype))
        for spec in InputEncoder(schema).inputs
    ]
    with _author_code(f"the model of {model.factory!r} raises on {_TRIAL_ROWS} rows of zeros"), torch.no_grad():
        outputs = TaskModel(schema, network)(*inputs)
    shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if shape != (_TRIAL_ROWS, schema.outputs):
        raise TaskInvalid(
            f"the model of {model.factory!r} gives {shape} for {_TRIAL_ROWS} rows; "
            f"{(_TRIAL_ROWS, schema.outputs)} is needed."
        )


def _require_same_everywhere(
    network: nn.Module, factory: Callable[[FeatureSchema], object], schema: FeatureSchema, model: CustomModel
) -> None:
    """What is not trained does not travel: were it drawn at random, each site would adapt another network."""
    fixed = _fixed(network)
    if not fixed:
        return
    with _author_code(f"model factory {model.factory!r} raises"), torch.random.fork_rng(devices=[]):
        torch.default_generator.seed()
        again = factory(schema)
    others = _fixed(again) if isinstance(again, nn.Module) else {}
    drawn = [name for name, values in fixed.items() if name not in others or not _same(values, others[name])]
    if drawn:
        raise TaskInvalid(
            f"the model of {model.factory!r} is not trained at {', '.join(drawn)}, and has other values there at each call.",
            hint="Load what is frozen from a file that is the same everywhere, or train it.",
        )


def _fixed(network: nn.Module) -> dict[str, torch.Tensor]:
    frozen = {name: values.detach() for name, values in network.named_parameters() if not values.requires_grad}
    return frozen | dict(network.named_buffers())


def _same(values: torch.Tensor, others: torch.Tensor) -> bool:
    return values.shape == others.shape and bool(torch.equal(values, others))


@contextmanager
def _author_code(what: str) -> Iterator[None]:
    """The author's code may raise anything: whatever it is, the task is at fault."""
    try:
        yield
    except Exception as error:
        raise TaskInvalid(f"{what}: {type(error).__name__}: {error}") from error
