"""Answers rows with the version that serves, and keeps what feedback needs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import numpy as np

from fedloop_core.arrays import arrays_to_bytes
from fedloop_core.encoding import Inputs
from fedloop_core.errors import FeedbackRefused, InputRefused, NoActiveModel, PredictionUnknown, StorageError
from fedloop_edge.agent.config import AgentConfig
from fedloop_edge.agent.queue import DeviceStore
from fedloop_edge.agent.recent import RecentPrediction, RecentPredictions
from fedloop_edge.agent.serving import Answers, Prediction, ServingModel
from fedloop_edge.agent.tally import Tally
from fedloop_edge.agent.windows import SketchWindow
from fedloop_edge.streams import Stream
from fedloop_proto.fleet.v1 import fleet_pb2
from fedloop_proto.site.v1 import feedback_pb2

__all__ = ["Predictor"]

_log = logging.getLogger(__name__)
_WINDOW = "sketch-window"


class Predictor:
    """Holds the serving model; a call that began with one version ends with it, whatever is switched meanwhile."""

    def __init__(self, config: AgentConfig, store: DeviceStore, tally: Tally, clock: Callable[[], int]) -> None:
        limits = config.limits
        self._config = config
        self._store = store
        self._tally = tally
        self._clock = clock
        self._recent = RecentPredictions(
            config.folder / "recent.sqlite",
            maximum_items=limits.recent_predictions,
            maximum_bytes=limits.recent_bytes,
        )
        self._lock = threading.Lock()
        self._serving: ServingModel | None = None
        self._window: SketchWindow | None = None

    @property
    def serving(self) -> ServingModel | None:
        """The model that answers now."""
        return self._serving

    def serve(self, serving: ServingModel | None) -> None:
        """Lets another model answer; the window of the one before is closed into the queue."""
        with self._lock:
            self._close_window()
            self._serving = serving
            self._window = (
                SketchWindow(serving, self._config.sketch_rows, self._next_window, self._queue_sketch)
                if serving is not None
                else None
            )

    def predict(self, inputs: Inputs, *, keep_inputs: bool) -> tuple[Prediction, ...]:
        """Answers rows; see ``EdgeAgent.predict``."""
        serving = self._serving
        if serving is None:
            raise NoActiveModel("this device has no verified model yet.", hint="Sync it, and see why with its status.")
        started = time.perf_counter()
        try:
            rows = serving.checker.check(inputs, maximum_rows=self._config.limits.rows_at_once)
        except InputRefused:
            self._tally.refused()
            raise
        answers = serving.answer(inputs)
        seconds = time.perf_counter() - started
        ids = ("",) * rows
        with self._lock:
            try:
                first = self._store.take_numbers(rows)
                ids = tuple(_prediction_id(first + row) for row in range(rows))
                if serving is self._serving and self._window is not None:
                    self._window.add(inputs, answers)
                if keep_inputs:
                    self._keep(serving, inputs, answers, first)
            except StorageError as error:  # an answer is worth more than its feedback
                self._tally.unkept(rows)
                _log.warning("predictions are not kept for feedback: %s", error)
        self._tally.served(rows, int(serving.encoder.out_of_range(inputs).sum()), seconds)
        whole = np.issubdtype(answers.predicted.dtype, np.integer)
        return tuple(
            Prediction(
                id=ids[row],
                index=int(answers.predicted[row]) if whole else 0,
                label=label,
                confidence=float(answers.confidence[row]),
                version=serving.version,
            )
            for row, label in enumerate(answers.labels)
        )

    def give_label(self, prediction_id: str, label: str, unit: str) -> None:
        """Queues an outcome with the inputs of its prediction; see ``EdgeAgent.give_label``."""
        serving = self._serving
        if serving is None:
            raise NoActiveModel("this device has no verified model.", hint="Sync it first.")
        serving.encoder.encode_labels([label])
        with self._lock:
            kept = self._recent.find(_prediction_number(prediction_id))
            if kept is None:
                raise PredictionUnknown(
                    f"prediction {prediction_id!r} is not kept here, or has its label already.",
                    hint="Labels can be given for recent predictions of this device, once.",
                )
            example = feedback_pb2.LabelledExample(
                prediction_id=prediction_id,
                task=self._config.task,
                version=kept.version,
                predicted=kept.predicted,
                label=label,
                unit=unit,
                observed_unix=kept.observed_unix,
                inputs=kept.inputs,
            )
            body = example.SerializeToString(deterministic=True)
            if len(body) > self._config.limits.item_bytes:
                raise FeedbackRefused(
                    f"an example of {len(body)} bytes is longer than {self._config.limits.item_bytes}.",
                    hint="Raise AgentLimits.item_bytes and, above it, HubLimits.message_bytes.",
                )
            self._store.put(Stream.LABELLED, body)
            self._recent.forget(kept)

    def close(self) -> None:
        """Closes the open window into the queue, and the file of recent predictions."""
        self.serve(None)
        self._recent.close()

    def _close_window(self) -> None:
        try:
            if self._window is not None:
                self._window.close()
        except StorageError as error:  # a switch does not wait for a full disk
            _log.warning("a window of the sketch is lost: %s", error)

    def _keep(self, serving: ServingModel, inputs: Inputs, answers: Answers, first: int) -> None:
        now_unix = self._clock()
        self._recent.add(
            [
                RecentPrediction(
                    number=first + row,
                    version=serving.version,
                    predicted=label,
                    observed_unix=now_unix,
                    inputs=arrays_to_bytes({name: array[row : row + 1] for name, array in inputs.items()}),
                )
                for row, label in enumerate(answers.labels)
            ]
        )

    def _next_window(self) -> int:
        number = int(self._store.mark(_WINDOW) or 0) + 1
        self._store.set_marks(**{_WINDOW: str(number)})
        return number

    def _queue_sketch(self, sketch: fleet_pb2.Sketch) -> None:
        self._store.put(Stream.SKETCH, sketch.SerializeToString(deterministic=True))


def _prediction_id(number: int) -> str:
    return f"p{number:09d}"


def _prediction_number(prediction_id: str) -> int:
    digits = prediction_id.removeprefix("p")
    if not (digits.isascii() and digits.isdigit() and _prediction_id(int(digits)) == prediction_id):
        raise PredictionUnknown(f"{prediction_id[:40]!r} is not the id of a prediction.")
    return int(digits)
