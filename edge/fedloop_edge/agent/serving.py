"""The model that answers: a runtime, the checks before it, and what its logits mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedloop_core.encoding import InputEncoder, Inputs
from fedloop_core.errors import OutputRefused
from fedloop_core.profile import Profile
from fedloop_core.schema import ClassLabel
from fedloop_edge.agent.runtimes import Runtime, check_golden, load_runtime
from fedloop_edge.agent.slots import SlotName, StoredArtifact
from fedloop_edge.inputs import InputChecker

__all__ = ["Answers", "Prediction", "ServingModel"]


@dataclass(frozen=True)
class Prediction:
    """One row's answer.

    ``index`` and ``label`` are the predicted class and its place, ``confidence`` its softmax probability. Where the
    label is a number, ``label`` spells the predicted number, ``index`` is 0 and ``confidence`` 1. An empty ``id`` means
    that the device's disk failed: no label can be given.
    """

    id: str
    index: int
    label: str
    confidence: float
    version: int


@dataclass(frozen=True)
class Answers:
    """Answers to some rows: what sketches count (class or number, confidence), and the labels as text."""

    predicted: NDArray[np.generic]
    confidence: NDArray[np.float32]
    labels: tuple[str, ...]


class ServingModel:
    """An artifact that gave its golden answers in this runtime on this processor.

    Raises:
        RuntimeUnavailable: the runtime cannot load the model.
        ArtifactRefused: the artifact contradicts itself.
        GoldenMismatch: it answers differently here.
    """

    def __init__(self, artifact: StoredArtifact, runtime: str) -> None:
        self.slot: SlotName = artifact.slot
        self.description = artifact.description
        self.profile = Profile.from_bytes(artifact.profile)
        self.encoder = InputEncoder(artifact.description.features)
        self.checker = InputChecker(artifact.description.features)
        self._runtime: Runtime = load_runtime(artifact.description, artifact.model, runtime)
        self.golden_deviation = check_golden(self._runtime, artifact.description, artifact.golden)

    @property
    def version(self) -> int:
        """The model version."""
        return self.description.version

    def answer(self, inputs: Inputs) -> Answers:
        """Answers rows that ``checker`` has passed.

        Raises:
            OutputRefused: the model's answer is not finite.
        """
        logits = self._runtime.run(inputs)
        if not np.isfinite(logits).all():
            raise OutputRefused(
                f"version {self.version} answers with numbers that are not finite.", hint="Report the input's origin."
            )
        label = self.description.features.label
        if not isinstance(label, ClassLabel):
            numbers = logits[:, 0]
            return Answers(numbers, np.ones(len(numbers), dtype=np.float32), tuple(f"{n:.9g}" for n in numbers))
        places = logits.argmax(axis=1).astype(np.int64)
        shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        confidence = (shifted.max(axis=1) / shifted.sum(axis=1)).astype(np.float32)
        return Answers(places, confidence, tuple(label.classes[place] for place in places))
