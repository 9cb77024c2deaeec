"""Whether a model keeps the units of a batch apart: without that, clipping one unit's gradient bounds nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedloop_clients.training.rows import nobodys_rows, raw_tensors
from fedloop_core.errors import PrivacyParameterInvalid
from fedloop_core.models import TaskModel
from fedloop_core.schema import FeatureSchema

__all__ = ["require_isolated_rows"]

_ROWS = 5  # batches of one row up to so many
_HINT = "Remove statistics over the batch from the model."
_PER_ROW = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


def require_isolated_rows(model: TaskModel, schema: FeatureSchema) -> None:
    """Refuses layers that mix rows, by kind and by trial.

    Batch normalisation is refused whether its parameters are trained, frozen or absent: its statistics come from the
    batch and are kept without noise. Opacus looks at trained layers alone. The trial finds what no list of kinds knows, in
    training and in evaluation, with trained weights moved away from where they start, since a coordinator sends others: no row's
    output may move when one other row changes, or with the number of rows, and nothing may be kept of a batch.

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
    inputs = raw_tensors(nobodys_rows(schema, _ROWS + 1))
    with _trial(model):
        for training in (True, False):
            model.train(training)
            _require_apart(model, inputs)


def _require_apart(model: TaskModel, inputs: tuple[Tensor, ...]) -> None:
    """The last row is a stranger, who takes the place of each of the others in turn."""
    kept = _kept(model)
    alone = [_outputs(model, inputs, [row])[0] for row in range(_ROWS)]
    drawn = not _same(alone[0], _outputs(model, inputs, [0], seed=1)[0])  # a mask depends on the size of a batch
    for size in range(2, _ROWS + 1):
        together = _outputs(model, inputs, list(range(size)))
        moved = not drawn and not all(_same(one, other) for one, other in zip(together, alone, strict=False))
        for place in range(size):
            rows = [_ROWS if row == place else row for row in range(size)]
            changed = _outputs(model, inputs, rows)
            others = [row for row in range(size) if row != place]
            moved = moved or not _same(together[others], changed[others])
        if moved:
            raise PrivacyParameterInvalid(
                "the model's output for a row depends on the other rows of the batch, which differential privacy excludes.",
                hint=_HINT,
                parameter="model",
            )
    now, again = _kept(model), _outputs(model, inputs, [0])[0]
    if not _same(alone[0], again) or any(not torch.equal(values, now[name]) for name, values in kept.items()):
        raise PrivacyParameterInvalid(
            "the model keeps something of the rows of a batch, which differential privacy excludes.",
            hint=_HINT,
            parameter="model",
        )


def _kept(model: TaskModel) -> dict[str, Tensor]:
    return {name: values.nan_to_num().clone() for name, values in model.named_buffers()}


@contextmanager
def _trial(model: TaskModel) -> Iterator[None]:
    """Moves the trained weights, some of which start at 0 and hide what they multiply; puts everything back."""
    was_training, generator = model.training, torch.Generator().manual_seed(0)
    before = {name: values.clone() for name, values in model.state_dict().items()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
            yield
    finally:
        model.load_state_dict(before)
        model.train(was_training)


def _same(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=1e-4, atol=1e-6, equal_nan=True)


def _outputs(model: TaskModel, inputs: tuple[Tensor, ...], rows: list[int], seed: int = 0) -> Tensor:
    torch.default_generator.manual_seed(seed)  # the same dropout masks each time, inside the fork
    outputs: Tensor = model(*(values[rows] for values in inputs))
    return outputs
