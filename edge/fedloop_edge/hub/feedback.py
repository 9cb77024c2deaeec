"""Sketches from any device, and labelled examples from a site's own devices."""

from __future__ import annotations

import grpc

from fedloop_core.arrays import arrays_from_bytes
from fedloop_core.encoding import InputEncoder, Inputs
from fedloop_core.errors import FeedbackRefused, InputRefused, StorageError
from fedloop_core.schema import FeatureSchema
from fedloop_edge.hub.boundary import answering
from fedloop_edge.hub.intake import Item, QueueKey
from fedloop_edge.hub.services import HubParts
from fedloop_edge.hub.sink import ReceivedExample, ReceivedSketch
from fedloop_edge.inputs import InputChecker
from fedloop_edge.streams import Stream
from fedloop_proto.fleet.v1 import fleet_pb2, fleet_pb2_grpc
from fedloop_proto.site.v1 import feedback_pb2, feedback_pb2_grpc

__all__ = ["SharedFeedbackService", "SiteFeedbackService"]

_LONGEST_TEXT = 200


class SharedFeedbackService(fleet_pb2_grpc.SharedFeedbackServicer):
    """Takes sketches."""

    def __init__(self, parts: HubParts) -> None:
        self._parts = parts

    def SendSketches(  # noqa: N802
        self, request: fleet_pb2.SketchBatch, context: grpc.ServicerContext
    ) -> fleet_pb2.Acknowledgement:
        """A batch of closed windows, numbered on from the first."""
        with answering(context):
            device_id = self._parts.caller.device(context, self._parts.clock()).device_id
            if len(request.sketches) > self._parts.config.limits.sketches_per_batch:
                raise FeedbackRefused("a batch holds too many sketches.")
            items = [
                self._item(device_id, ReceivedSketch(request.queue_id, request.sequence + at, message))
                for at, message in enumerate(request.sketches)
            ]
            key = QueueKey(device_id, request.queue_id, Stream.SKETCH)
            settled = self._parts.intake.take(key, request.oldest, items)
            return fleet_pb2.Acknowledgement(queue_id=request.queue_id, sequence=settled.acknowledged)

    def _item(self, device_id: str, sketch: ReceivedSketch) -> Item:
        return Item(sketch.sequence, lambda: self._parts.sink.sketch(device_id, sketch))


class SiteFeedbackService(feedback_pb2_grpc.SiteFeedbackServicer):
    """Takes inputs with labels, for this site and no other; every input and label is checked by the task's schema."""

    def __init__(self, parts: HubParts) -> None:
        self._parts = parts
        self._doors = {task: _Door(schema) for task, schema in parts.config.schemas.items()}

    def SendLabelled(  # noqa: N802
        self, request: feedback_pb2.LabelledBatch, context: grpc.ServicerContext
    ) -> feedback_pb2.LabelledAcknowledgement:
        """A batch of numbered examples."""
        with answering(context):
            device_id = self._parts.caller.device(context, self._parts.clock()).device_id
            if request.site != self._parts.config.site:
                raise FeedbackRefused(f"device {device_id} sends examples for another site.")
            if len(request.examples) > self._parts.config.limits.examples_per_batch:
                raise FeedbackRefused("a batch holds too many examples.")
            items = [self._item(device_id, request.queue_id, message) for message in request.examples]
            key = QueueKey(device_id, request.queue_id, Stream.LABELLED)
            settled = self._parts.intake.take(key, request.oldest, items)
            return feedback_pb2.LabelledAcknowledgement(
                queue_id=request.queue_id,
                sequence=settled.acknowledged,
                rejected=[
                    feedback_pb2.Rejected(sequence=rejection.sequence, code=rejection.code)
                    for rejection in settled.rejected
                ],
            )

    def _item(self, device_id: str, queue_id: str, message: feedback_pb2.LabelledExample) -> Item:
        def pass_on() -> None:
            door = self._doors.get(message.task)
            if door is None:
                raise FeedbackRefused(f"the site takes no examples of task {message.task!r}.")
            self._parts.sink.labelled(device_id, door.example(queue_id, message))

        return Item(message.sequence, pass_on)


class _Door:
    """Checks the examples of one task."""

    def __init__(self, schema: FeatureSchema) -> None:
        self._encoder = InputEncoder(schema)
        self._checker = InputChecker(schema)

    def example(self, queue_id: str, message: feedback_pb2.LabelledExample) -> ReceivedExample:
        texts = (message.prediction_id, message.predicted, message.label, message.unit)
        if max(map(len, texts)) > _LONGEST_TEXT:
            raise FeedbackRefused("an example's texts are too long.")
        self._encoder.encode_labels([message.label])
        return ReceivedExample(
            queue_id=queue_id,
            sequence=message.sequence,
            task=message.task,
            version=message.version,
            prediction_id=message.prediction_id,
            inputs=self._inputs(message.inputs),
            predicted=message.predicted,
            label=message.label,
            unit=message.unit,
            observed_unix=message.observed_unix,
        )

    def _inputs(self, content: bytes) -> Inputs:
        try:
            arrays = arrays_from_bytes(content)
        except StorageError as error:  # not this hub's storage: the device's bytes
            raise InputRefused("an example's inputs cannot be read.") from error
        inputs = {spec.name: arrays[spec.name] for spec in self._encoder.inputs if spec.name in arrays}
        if len(inputs) != len(arrays):
            raise InputRefused("an example has inputs that its task does not have.")
        self._checker.check(inputs, maximum_rows=1)
        return inputs
