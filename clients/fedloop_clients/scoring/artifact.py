"""An artifact's answers, one row at a time, in the runtime that devices use."""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from fedloop_clients.scoring.onnx_graph import check_onnx
from fedloop_clients.scoring.tflite_graph import check_tflite
from fedloop_clients.training.rows import nobodys_rows
from fedloop_core.artifact import ArtifactDescription
from fedloop_core.encoding import Inputs
from fedloop_core.errors import ArtifactRefused, InputRefused
from fedloop_edge.agent.runtimes import Runtime, load_runtime

__all__ = ["ArtifactApart"]

_LOG = logging.getLogger(__name__)


class ArtifactApart:
    """An artifact that keeps rows apart: each is answered alone, and nothing is kept from one to the next.

    Made before any row of a site is touched, so that whatever it raises depends on the artifact alone.

    Args:
        description: of the artifact.
        model: its bytes, already checked against the description.

    Raises:
        ArtifactRefused: the bytes are no graph of operators that keep nothing, or cannot answer a row that is nobody's.
        RuntimeUnavailable: no installed runtime takes this kind of artifact, or it cannot load this one.
    """

    def __init__(self, description: ArtifactDescription, model: bytes) -> None:
        if description.kind.startswith("tflite"):
            check_tflite(model)
        else:
            check_onnx(model)
        self._description = description
        self._model = model
        self._runtime: Runtime | None = load_runtime(description, model)
        try:
            self._runtime.run(nobodys_rows(description.features, 1))
        except InputRefused as error:
            raise ArtifactRefused(
                "the artifact gives no answer to a row drawn from the public ranges.", reason="trial"
            ) from error

    def outputs(self, inputs: Inputs) -> NDArray[np.float32]:
        """Logits, float32 ``[rows, outputs]``: not a number where the artifact gives none that is described.

        Each row is copied to the same place: kernels may round differently by where in memory a row lies. After a row on
        which the runtime fails the artifact is loaded anew, since a runtime may stay as it was when it failed.
        """
        rows = len(next(iter(inputs.values())))
        found = np.full((rows, self._description.features.outputs), np.nan, dtype=np.float32)
        place = {name: np.empty((1, *array.shape[1:]), dtype=array.dtype) for name, array in inputs.items()}
        failed = 0
        for row in range(rows):
            for name, kept in place.items():
                kept[0] = inputs[name][row]
            try:
                if self._runtime is None:
                    self._runtime = load_runtime(self._description, self._model)
                found[row] = self._runtime.run(place)[0]
            except Exception:  # noqa: BLE001  whatever a row makes a runtime raise must not leave the site
                self._runtime = None
                failed += 1
        if failed:
            _LOG.warning(
                "an artifact failed on %d of %d rows, which count as wrong; only this log says so", failed, rows
            )
        return found
