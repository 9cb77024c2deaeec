"""The golden check: does this runtime on this processor give the answers that the exporter wrote down?

Int8 kernels saturate on some processors and old runtimes load operators that they compute wrongly, without an error: only
known answers show it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedloop_core.arrays import arrays_from_bytes
from fedloop_core.artifact import ArtifactDescription
from fedloop_core.encoding import InputEncoder
from fedloop_core.errors import ArtifactRefused, GoldenMismatch, InputRefused, StorageError
from fedloop_edge.agent.runtimes.runtime import Runtime

__all__ = ["LOGITS", "MINIMUM_ROWS", "check_golden"]

LOGITS = "logits"
MINIMUM_ROWS = 32


def check_golden(runtime: Runtime, description: ArtifactDescription, golden: bytes) -> float:
    """Answers the golden inputs one row at a time and compares logits.

    Args:
        runtime: the loaded model.
        description: its description, which holds the tolerance.
        golden: safetensors of the encoder's inputs and ``logits`` float32 ``[rows, outputs]``, 32 rows or more.

    Returns:
        The worst absolute deviation as a fraction of the range of the golden logits.

    Raises:
        GoldenMismatch: the deviation is above the tolerance, or an answer is not finite.
        ArtifactRefused: the golden file itself is not as described.
    """
    names = tuple(spec.name for spec in InputEncoder(description.features).inputs)
    try:
        arrays = arrays_from_bytes(golden, (*names, LOGITS))
    except StorageError as error:
        raise ArtifactRefused("the golden file cannot be read.", reason="golden") from error
    wanted = arrays.pop(LOGITS)
    rows = len(wanted) if wanted.ndim else 0
    if rows < MINIMUM_ROWS or wanted.shape != (rows, description.features.outputs) or not np.isfinite(wanted).all():
        raise ArtifactRefused(f"the golden file needs finite logits for at least {MINIMUM_ROWS} rows.", reason="golden")
    if any(array.shape[:1] != (rows,) for array in arrays.values()):
        raise ArtifactRefused("inputs and logits of the golden file differ in their number of rows.", reason="golden")
    try:
        singles = [runtime.run({name: array[row : row + 1] for name, array in arrays.items()}) for row in range(rows)]
    except InputRefused as error:
        raise ArtifactRefused("the golden inputs do not fit the model.", reason="golden") from error
    deviation = _deviation(np.concatenate(singles), wanted.astype(np.float64))
    if not deviation <= description.golden_tolerance:
        raise GoldenMismatch(
            f"{runtime.name} answers the golden inputs with a deviation of {deviation:.3%} of the output range; "
            f"{description.golden_tolerance:.3%} is allowed.",
            hint="This version is not compatible with this device; the previous one stays.",
            deviation=deviation,
            tolerance=description.golden_tolerance,
        )
    return deviation


def _deviation(found: NDArray[np.float32], wanted: NDArray[np.float64]) -> float:
    if not np.isfinite(found).all():
        return float("inf")
    worst = float(np.abs(found - wanted).max())
    width = float(wanted.max() - wanted.min())
    if width == 0:  # a constant model has no range: only its very answers will do
        return 0.0 if worst == 0 else float("inf")
    return worst / width
