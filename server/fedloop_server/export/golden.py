"""What an artifact answers on this machine, held against torch and written down for devices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedloop_core.arrays import arrays_to_bytes
from fedloop_core.encoding import Inputs
from fedloop_core.errors import ConversionFailed
from fedloop_core.schema import FeatureSchema
from fedloop_edge.agent.runtimes import Runtime
from fedloop_server.export.converter import Converter
from fedloop_server.export.source import Source
from fedloop_server.export.synthetic import synthetic_inputs

__all__ = ["answers", "check_agreement", "golden_file", "golden_inputs"]

_STREAM = 0
_LEAST_ROWS = 32
_MOST_ROWS = 1024
_TIE = 0.01  # of the range of outputs: a row whose two best outputs are nearer than that has no label to agree on


def golden_inputs(source: Source) -> Inputs:
    """32 synthetic rows, or as many as the longest vocabulary has codes, up to 1024."""
    longest = max((feature.cardinality for feature in source.schema.categorical), default=0)
    rows = min(max(_LEAST_ROWS, longest), _MOST_ROWS)
    return synthetic_inputs(source.schema, source.scaler, rows, seed=(source.seed, _STREAM))


def answers(runtime: Runtime, inputs: Inputs) -> NDArray[np.float32]:
    """The artifact's outputs, one row at a time as devices ask: float32 ``[rows, outputs]``."""
    rows = len(next(iter(inputs.values())))
    singles = [runtime.run({name: array[row : row + 1] for name, array in inputs.items()}) for row in range(rows)]
    return np.concatenate(singles)


def golden_file(inputs: Inputs, outputs: NDArray[np.float32]) -> bytes:
    """``golden.safetensors``: the encoder's inputs and ``logits``."""
    return arrays_to_bytes(inputs | {"logits": outputs})


def check_agreement(
    converter: Converter, schema: FeatureSchema, expected: NDArray[np.float32], found: NDArray[np.float32]
) -> None:
    """Holds an artifact's outputs against torch's, both float32 ``[rows, outputs]``.

    Raises:
        ConversionFailed: torch's outputs or the artifact's are not finite, or they differ beyond the converter's bounds.
    """
    if not np.isfinite(expected).all():
        raise ConversionFailed("the model's own answers to inputs in range are not finite.", hint="Train anew.")
    if not np.isfinite(found).all():
        raise ConversionFailed(f"{converter.kind} gives answers that are not finite.")
    # a constant model has no range: then 1e-3 of its size counts as one
    width = max(float(np.ptp(expected)), 1e-3 * float(np.abs(expected).max()), 1e-6)
    deviation = float(np.abs(found - expected).max()) / width
    if deviation > converter.maximum_deviation:
        raise ConversionFailed(
            f"{converter.kind} deviates from torch by {deviation:.1%} of the output range; "
            f"{converter.maximum_deviation:.1%} is allowed.",
            hint="Leave this target out, or report the model's layers.",
        )
    if schema.outputs < 2:
        return
    best = np.sort(expected, axis=1)
    decided = best[:, -1] - best[:, -2] > _TIE * width
    if not decided.any():
        return
    agreement = float((found.argmax(axis=1) == expected.argmax(axis=1))[decided].mean())
    if agreement < converter.minimum_agreement:
        raise ConversionFailed(
            f"{converter.kind} gives torch's label on {agreement:.0%} of synthetic rows; "
            f"{converter.minimum_agreement:.0%} is needed.",
            hint="Leave this target out, or choose a model that quantises better.",
        )
