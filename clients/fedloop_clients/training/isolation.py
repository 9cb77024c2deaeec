"""Whether a model keeps the units of a batch apart: without that, clipping one unit's gradient bounds nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedloop_clients.training.rows import nobodys_rows, raw_tensors
from fedloop_core.errors import PrivacyParameterInvalid
from fedloop_core.models import TaskModel
from fedloop_core.schema import FeatureSchema

__all__ = ["require_isolated_rows"]


def require_isolated_rows(model: TaskModel, schema: FeatureSchema) -> None:
    """Refuses layers that mix rows, by kind and by trial.

    Batch normalisation is refused whether its parameters are trained, frozen or absent: its statistics come from the
    batch and are kept without noise. Opacus looks at trained layers alone. The trial finds what no list of kinds knows:
    one row's output must not move when the other row changes.

    Args:
        model: the task's.
        schema: the task's; the trial's rows are drawn from its public ranges and are no one's.

    Raises:
        PrivacyParameterInvalid: names the layer, or says that outputs moved.
    """
    for name, module in model.named_modules():
        if isinstance(module, _NormBase) and (module.track_running_stats or not isinstance(module, _PER_ROW)):
            raise PrivacyParameterInvalid(
                f"layer {name} ({type(module).__name__}) mixes the rows of a batch, which differential privacy excludes.",
                hint="Use GroupNorm instead.",
                parameter="model",
            )
    inputs = raw_tensors(nobodys_rows(schema, 3))
    was_training = model.training
    model.train()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        first = _first_row_of(model, inputs, (0, 1))
        second = _first_row_of(model, inputs, (0, 2))
    model.train(was_training)
    if not torch.allclose(first, second, rtol=1e-4, atol=1e-6, equal_nan=True):
        raise PrivacyParameterInvalid(
            "the model's output for a row depends on the other rows of the batch, which differential privacy excludes.",
            hint="Remove statistics over the batch from the model.",
            parameter="model",
        )


_PER_ROW = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


def _first_row_of(model: TaskModel, inputs: tuple[Tensor, ...], rows: tuple[int, int]) -> Tensor:
    torch.default_generator.manual_seed(0)  # the same dropout mask both times, inside the fork
    outputs: Tensor = model(*(values[list(rows)] for values in inputs))
    return outputs[0]
