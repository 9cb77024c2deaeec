"""ONNX artifacts by onnxruntime, on one thread of the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedloop_core.errors import ArtifactRefused, InputRefused, RuntimeUnavailable
from fedloop_edge.agent.runtimes.runtime import Feed, Runtime

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["OnnxRuntime"]

ELEMENT_TYPES = {"float32": "tensor(float)", "int64": "tensor(int64)", "int32": "tensor(int32)"}
SILENT = 4  # onnxruntime's severity "fatal": refusals are raised, not printed


class OnnxRuntime(Runtime):
    """A single-threaded session: answers do not depend on the number of cores, and nothing spins between them."""

    name: ClassVar[str] = "onnxruntime"
    _session: onnxruntime.InferenceSession

    def _load(self, model: bytes) -> None:
        try:
            import onnxruntime
            from onnxruntime.capi import onnxruntime_pybind11_state as states
        except ImportError as error:
            raise RuntimeUnavailable("onnxruntime is not installed.", hint=_HINT, runtime=self.name) from error
        self._failures = (
            states.Fail,
            states.InvalidArgument,
            states.InvalidGraph,
            states.InvalidProtobuf,
            states.NoSuchFile,
            states.NotImplemented,
            states.RuntimeException,
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = SILENT
        try:
            self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except self._failures as error:
            raise RuntimeUnavailable(
                f"onnxruntime {onnxruntime.__version__} cannot load the model.",
                hint="Is the runtime older than the model's operators?",
                runtime=self.name,
            ) from error
        self._check_signature()

    def _answer(self, feed: Feed) -> NDArray[np.generic]:
        try:
            answer: NDArray[np.generic] = self._session.run([self.description.output.name], feed)[0]
        except self._failures as error:
            raise InputRefused("onnxruntime cannot answer this input.") from error
        return answer

    def _check_signature(self) -> None:
        found = {tensor.name: tensor.type for tensor in self._session.get_inputs()}
        described = {tensor.name: ELEMENT_TYPES[tensor.dtype] for tensor in self.description.inputs}
        if found != described:
            raise ArtifactRefused(f"the model takes {found}; {described} is described.", reason="signature")
        if self.description.output.name not in {tensor.name for tensor in self._session.get_outputs()}:
            raise ArtifactRefused(
                f"the model has no output {self.description.output.name!r}, which is described.", reason="signature"
            )


_HINT = "Install fedloop[edge], or choose a TFLite artifact with fedloop[edge-litert]."
