"""Sketches in windows of a fixed number of predictions."""

from __future__ import annotations

from collections.abc import Callable

from fedloop_core.encoding import Inputs
from fedloop_core.sketch import Sketch
from fedloop_edge.agent.serving import Answers, ServingModel
from fedloop_proto.fleet.v1 import fleet_pb2

__all__ = ["SketchWindow"]


class SketchWindow:
    """Counts the predictions of one version and hands over a message for each full window.

    Args:
        model: whose predictions are counted.
        rows: predictions in a window.
        next_number: gives each window its number.
        hand_over: takes the closed window.
    """

    def __init__(
        self,
        model: ServingModel,
        rows: int,
        next_number: Callable[[], int],
        hand_over: Callable[[fleet_pb2.Sketch], None],
    ) -> None:
        self._model = model
        self._rows = rows
        self._next_number = next_number
        self._hand_over = hand_over
        self._sketch = Sketch.empty(model.profile)

    def add(self, inputs: Inputs, answers: Answers) -> None:
        """Counts rows; a batch may close several windows."""
        rows = len(answers.labels)
        start = 0
        while start < rows:
            end = min(rows, start + self._rows - self._sketch.rows)
            part = {name: array[start:end] for name, array in inputs.items()}
            self._sketch = self._sketch.add(part, answers.predicted[start:end], answers.confidence[start:end])
            start = end
            if self._sketch.rows == self._rows:
                self.close()

    def close(self) -> None:
        """Hands over what was counted, even if the window is not full; nothing when nothing was."""
        if self._sketch.rows == 0:
            return
        message = self._sketch.to_message(
            task=self._model.description.task, version=self._model.version, window=self._next_number()
        )
        self._sketch = Sketch.empty(self._model.profile)
        self._hand_over(message)
