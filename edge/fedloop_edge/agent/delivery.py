"""Sends what is queued, each stream in order, until it is through or the hub does not answer."""

from __future__ import annotations

from dataclasses import dataclass

from fedloop_core.errors import FedloopError, HubRefused
from fedloop_edge.agent.hub_client import HubClient
from fedloop_edge.agent.queue import DeviceStore, QueuedItem
from fedloop_edge.streams import Stream
from fedloop_proto.fleet.v1 import fleet_pb2
from fedloop_proto.site.v1 import feedback_pb2

__all__ = ["Delivery", "FlushOutcome"]

_SKETCHES_AT_ONCE = 16
_EXAMPLES_AT_ONCE = 64
_BYTES_AT_ONCE = 1 << 20
_FIRST_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 300.0


@dataclass(frozen=True)
class FlushOutcome:
    """What one flush did.

    ``sent`` items were acknowledged, ``rejected`` of them for good; ``pending`` wait; ``dropped`` were lost to a full
    queue since the beginning. ``code`` is empty when everything went through; then ``retry_after_seconds`` is 0.
    """

    sent: int
    rejected: int
    pending: int
    dropped: int
    code: str
    retry_after_seconds: float


class Delivery:
    """Delivers a device's queue. Waiting times double with each failure in a row, up to five minutes."""

    def __init__(self, store: DeviceStore, site: str) -> None:
        self._store = store
        self._site = site
        self._failures = 0

    def flush(self, client: HubClient) -> FlushOutcome:
        """Sends all that is queued. Errors of the network and of the hub are reported, not raised."""
        sent = rejected = 0
        code = ""
        try:
            for stream in Stream:
                while items := self._head(stream):
                    acknowledged, refused = self._send(client, stream, items)
                    self._store.acknowledge(stream, acknowledged)
                    rejected += refused
                    through = sum(item.sequence <= acknowledged for item in items)
                    sent += through
                    if through == 0:
                        raise HubRefused("the hub does not take the next item.", refusal="stalled")
        except FedloopError as error:
            code = error.code
        self._failures = self._failures + 1 if code else 0
        wait = min(_FIRST_WAIT_SECONDS * 2 ** (min(self._failures, 16) - 1), _LONGEST_WAIT_SECONDS) if code else 0.0
        return FlushOutcome(
            sent=sent,
            rejected=rejected,
            pending=sum(self._store.pending(stream) for stream in Stream),
            dropped=sum(self._store.dropped(stream) for stream in Stream),
            code=code,
            retry_after_seconds=wait,
        )

    def _head(self, stream: Stream) -> tuple[QueuedItem, ...]:
        at_once = {Stream.STATUS: 1, Stream.SKETCH: _SKETCHES_AT_ONCE, Stream.LABELLED: _EXAMPLES_AT_ONCE}
        return self._store.head(stream, items=at_once[stream], size=_BYTES_AT_ONCE)

    def _send(self, client: HubClient, stream: Stream, items: tuple[QueuedItem, ...]) -> tuple[int, int]:
        """Returns the acknowledged number and how many items were rejected."""
        queue_id = self._store.queue_id
        first = items[0].sequence
        match stream:
            case Stream.STATUS:
                report = fleet_pb2.StatusReport.FromString(items[0].body)
                report.queue_id, report.sequence, report.oldest = queue_id, first, first
                return client.report(report).sequence, 0
            case Stream.SKETCH:
                sketches = [fleet_pb2.Sketch.FromString(item.body) for item in items]
                batch = fleet_pb2.SketchBatch(queue_id=queue_id, sequence=first, oldest=first, sketches=sketches)
                return client.send_sketches(batch).sequence, 0
            case Stream.LABELLED:
                examples = [feedback_pb2.LabelledExample.FromString(item.body) for item in items]
                for example, item in zip(examples, items, strict=True):
                    example.sequence = item.sequence
                answer = client.send_labelled(
                    feedback_pb2.LabelledBatch(queue_id=queue_id, site=self._site, oldest=first, examples=examples)
                )
                return answer.sequence, len(answer.rejected)
