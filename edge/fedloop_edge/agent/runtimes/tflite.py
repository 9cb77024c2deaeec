"""TFLite artifacts by LiteRT or the older tflite-runtime: two packages with the same interpreter interface."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedloop_core.errors import ArtifactRefused, InputRefused, RuntimeUnavailable
from fedloop_edge.agent.runtimes.runtime import Feed, Runtime

__all__ = ["LiteRt", "TfliteRuntime"]

SIGNATURE = "serving_default"


class _InterpreterRuntime(Runtime):
    """What both packages share; a subclass names its package."""

    module: ClassVar[str]
    _runner: Callable[..., dict[str, NDArray[np.generic]]]

    def _load(self, model: bytes) -> None:
        try:
            interpreter_class = importlib.import_module(self.module).Interpreter
            # Kept: the signature's runner holds no reference to its interpreter's memory.
            self._interpreter = interpreter_class(model_content=model, num_threads=1)
            runner: Any = self._interpreter.get_signature_runner(SIGNATURE)
        except (ImportError, SystemError) as error:  # SystemError: tflite-runtime 2.14 beside numpy 2
            raise RuntimeUnavailable(
                f"{self.name} is not installed or cannot start.",
                hint="Install fedloop[edge-litert]; tflite-runtime needs numpy below 2.",
                runtime=self.name,
            ) from error
        except (ValueError, RuntimeError) as error:
            raise RuntimeUnavailable(
                f"{self.name} cannot load the model.",
                hint="Is the runtime older than the model's operators?",
                runtime=self.name,
            ) from error
        self._check_signature(runner)
        self._runner = runner

    def _answer(self, feed: Feed) -> NDArray[np.generic]:
        try:
            return self._runner(**feed)[self.description.output.name]
        except (ValueError, RuntimeError) as error:
            raise InputRefused(f"{self.name} cannot answer this input.") from error

    def _check_signature(self, runner: Any) -> None:
        found = {
            name: (np.dtype(detail["dtype"]).name, tuple(map(int, detail["shape"])))
            for name, detail in runner.get_input_details().items()
        }
        described = {tensor.name: (tensor.dtype, (1, *tensor.shape)) for tensor in self.description.inputs}
        if found != described:
            raise ArtifactRefused(f"the model takes {found}; {described} is described.", reason="signature")
        if self.description.output.name not in runner.get_output_details():
            raise ArtifactRefused(
                f"the model has no output {self.description.output.name!r}, which is described.", reason="signature"
            )
        if self.description.rows != "one":
            raise ArtifactRefused("a TFLite model takes one row at a time; batches are described.", reason="signature")


class LiteRt(_InterpreterRuntime):
    """LiteRT (``ai_edge_litert``)."""

    name: ClassVar[str] = "litert"
    module: ClassVar[str] = "ai_edge_litert.interpreter"


class TfliteRuntime(_InterpreterRuntime):
    """tflite-runtime 2.14, the one with wheels for 32-bit ARM."""

    name: ClassVar[str] = "tflite-runtime"
    module: ClassVar[str] = "tflite_runtime.interpreter"
