"""What a hub does with what devices send.

A hub passes each numbered item on once, unless its process dies between passing it on and writing that down; a sink that
stores items by ``(queue_id, sequence)`` then has each exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fedloop_core.encoding import Inputs
from fedloop_proto.fleet.v1 import fleet_pb2

__all__ = ["FeedbackSink", "ReceivedExample", "ReceivedSketch", "ReceivedStatus"]


@dataclass(frozen=True)
class ReceivedExample:
    """One row with the label that its device was told. ``inputs`` fit the task's schema; ``version`` predicted it.

    ``unit`` is the patient or customer, empty when the record is the unit; ``observed_unix`` is when the input was seen.
    """

    queue_id: str
    sequence: int
    task: str
    version: int
    prediction_id: str
    inputs: Inputs
    predicted: str
    label: str
    unit: str
    observed_unix: int


@dataclass(frozen=True)
class ReceivedSketch:
    """One window of counts, as sent: ``Sketch.from_message`` checks it against the version's profile."""

    queue_id: str
    sequence: int
    message: fleet_pb2.Sketch


@dataclass(frozen=True)
class ReceivedStatus:
    """One report of a device about a version."""

    queue_id: str
    sequence: int
    state: fleet_pb2.DeviceState
    task: str
    version: int
    serving_version: int
    assignment_counter: int
    code: str
    detail: str
    runtime: str
    predictions_served: int
    latency_p50_us: float


class FeedbackSink(Protocol):
    """Takes what devices send, from several threads. A FedloopError rejects the item for good; its code goes back.

    Raises:
        StorageError: from any method, when the item cannot be kept now: the device sends it again.
    """

    def labelled(self, device_id: str, example: ReceivedExample) -> None:
        """A labelled example; only site hubs get any."""
        ...

    def sketch(self, device_id: str, sketch: ReceivedSketch) -> None:
        """A closed window."""
        ...

    def status(self, device_id: str, report: ReceivedStatus) -> None:
        """A report about a version."""
        ...
