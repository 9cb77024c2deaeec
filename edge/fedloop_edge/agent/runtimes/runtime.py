"""The interface of a runtime and the checks that all runtimes share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedloop_core.artifact import ArtifactDescription, TensorSpec
from fedloop_core.encoding import InputEncoder, Inputs, InputSpec
from fedloop_core.errors import ArtifactRefused, InputRefused

__all__ = ["Feed", "Runtime"]

Feed = dict[str, NDArray[np.generic]]
INT32 = np.iinfo(np.int32)


class Runtime(ABC):
    """One loaded model on one thread.

    ``run`` takes inputs by the encoder's names and checks names, dtypes and shapes exactly: runtimes themselves resize,
    wrap or read past what they were given. Implementations see tensors by the artifact's names only.

    Raises:
        ArtifactRefused: the description does not fit its own feature schema, or the model does not fit the description.
        RuntimeUnavailable: the runtime is not installed or cannot load the model.
    """

    name: ClassVar[str]

    def __init__(self, description: ArtifactDescription, model: bytes) -> None:
        self.description = description
        self._pairs = _pair(InputEncoder(description.features).inputs, description.inputs)
        self._outputs = description.features.outputs
        self._load(model)

    @abstractmethod
    def _load(self, model: bytes) -> None:
        """Loads the model and checks its signature against ``self.description``."""

    @abstractmethod
    def _answer(self, feed: Feed) -> NDArray[np.generic]:
        """The output tensor for tensors whose names, dtypes and shapes have been checked."""

    def run(self, inputs: Inputs) -> NDArray[np.float32]:
        """Logits float32 ``[rows, outputs]``; a model that takes one row at a time is called once for each.

        Args:
            inputs: the encoder's arrays, one entry for each row.

        Raises:
            InputRefused: names, dtypes, shapes or numbers of rows do not fit, or there is no row.
            ArtifactRefused: the model's output has another shape or dtype than described.
        """
        rows = self._check(inputs)
        feed = {tensor.name: _convert(inputs[spec.name], spec, tensor) for spec, tensor in self._pairs}
        if self.description.rows == "batch" or rows == 1:
            return self._checked_answer(feed, rows)
        singles = ({name: array[row : row + 1] for name, array in feed.items()} for row in range(rows))
        return np.concatenate([self._checked_answer(single, 1) for single in singles])

    def _check(self, inputs: Inputs) -> int:
        names = [spec.name for spec, _ in self._pairs]
        if sorted(inputs) != sorted(names):
            raise InputRefused(f"inputs are {', '.join(sorted(inputs)) or 'none'}; {', '.join(names)} are needed.")
        rows = len(inputs[names[0]]) if inputs[names[0]].ndim else 0
        if rows == 0:
            raise InputRefused("there is no row to answer.")
        for spec, _ in self._pairs:
            array = inputs[spec.name]
            if array.dtype != np.dtype(spec.dtype):
                raise InputRefused(f"input {spec.name!r} is {array.dtype}; {spec.dtype} is needed.", column=spec.name)
            if array.shape != (rows, *spec.shape):
                raise InputRefused(
                    f"input {spec.name!r} has shape {array.shape}; {(rows, *spec.shape)} is needed.", column=spec.name
                )
        return rows

    def _checked_answer(self, feed: Feed, rows: int) -> NDArray[np.float32]:
        answer = self._answer(feed)
        if answer.dtype != np.float32 or answer.shape != (rows, self._outputs):
            raise ArtifactRefused(
                f"the model answers {answer.dtype} {answer.shape}; float32 {(rows, self._outputs)} is described.",
                reason="signature",
            )
        return answer.astype(np.float32)  # a copy: interpreters reuse their own memory


def _pair(specs: tuple[InputSpec, ...], tensors: tuple[TensorSpec, ...]) -> tuple[tuple[InputSpec, TensorSpec], ...]:
    if len(specs) != len(tensors):
        raise ArtifactRefused(
            f"artifact.json describes {len(tensors)} inputs; its features need {len(specs)}.", reason="signature"
        )
    for spec, tensor in zip(specs, tensors, strict=True):
        narrowed = spec.dtype == "int64" and tensor.dtype == "int32"
        if tensor.shape != spec.shape or not (tensor.dtype == spec.dtype or narrowed):
            raise ArtifactRefused(
                f"input {tensor.name!r} is described as {tensor.dtype} {tensor.shape}; "
                f"its features need {spec.dtype} {spec.shape}.",
                reason="signature",
            )
    return tuple(zip(specs, tensors, strict=True))


def _convert(array: NDArray[np.generic], spec: InputSpec, tensor: TensorSpec) -> NDArray[np.generic]:
    if tensor.dtype == spec.dtype:
        return np.ascontiguousarray(array)
    codes = array.astype(np.int64)
    if ((codes < INT32.min) | (codes > INT32.max)).any():
        raise InputRefused(f"input {spec.name!r} holds a code beyond 32 bits.", column=spec.name)
    return np.ascontiguousarray(codes, dtype=np.int32)
