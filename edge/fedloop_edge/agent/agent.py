"""The device: enrols, synchronises, predicts, and sends back what its site may learn from."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fedloop_core.encoding import Inputs
from fedloop_core.errors import (
    EnrollmentRefused,
    FedloopError,
    FeedbackRefused,
    HubRefused,
    HubUnreachable,
    RuntimeUnavailable,
    StorageError,
)
from fedloop_edge.agent.config import AgentConfig, AgentLimits
from fedloop_edge.agent.delivery import Delivery, FlushOutcome
from fedloop_edge.agent.enrollment import enroll, needs_renewal, renew
from fedloop_edge.agent.hub_client import HubClient
from fedloop_edge.agent.identity import Identity, Membership
from fedloop_edge.agent.metadata import ReleaseMetadata
from fedloop_edge.agent.predictor import Predictor
from fedloop_edge.agent.queue import DeviceStore
from fedloop_edge.agent.runtimes import available_runtimes, runtime_version
from fedloop_edge.agent.serving import Prediction, ServingModel
from fedloop_edge.agent.slots import Slots
from fedloop_edge.agent.sync import Synchronizer, SyncOutcome, SyncResult
from fedloop_edge.agent.tally import Tally, Totals
from fedloop_edge.streams import Stream
from fedloop_proto.fleet.v1 import fleet_pb2

__all__ = [
    "AgentConfig",
    "AgentLimits",
    "AgentStatus",
    "EdgeAgent",
    "FlushOutcome",
    "Prediction",
    "SyncOutcome",
    "SyncResult",
]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgentStatus:
    """A device at one moment. ``pending`` items wait in the queue; ``dropped`` were lost to a full one, ever."""

    device_id: str
    group: str
    site: str
    runtime: str
    serving_version: int | None
    previous_version: int | None
    assignment_counter: int
    totals: Totals
    pending: Mapping[Stream, int]
    dropped: Mapping[Stream, int]


@dataclass(frozen=True)
class _Joined:
    """What a device has once it is enrolled."""

    membership: Membership
    client: HubClient
    synchronizer: Synchronizer
    delivery: Delivery


class EdgeAgent:
    """One device for one task, in a folder of its own; for any number of threads.

    Opened from a folder that has served before, it serves the same version at once, without a hub.

    Args:
        config: where things are.
        clock: Unix seconds; TLS compares certificates with the machine's own clock, so give real time.

    Raises:
        StorageError: the folder cannot be used.
        RuntimeUnavailable: no runtime, or not ``config.runtime``, is installed.
    """

    def __init__(self, config: AgentConfig, *, clock: Callable[[], int] = lambda: int(time.time())) -> None:
        self._config = config
        self._clock = clock
        self._runtime = _chosen_runtime(config.runtime)
        self._identity = Identity(config.folder)
        self._store = DeviceStore(
            config.folder / "device.sqlite",
            maximum_items=config.limits.queue_items,
            maximum_bytes=config.limits.queue_bytes,
        )
        self._tally = Tally()
        self._predictor = Predictor(config, self._store, self._tally, clock)
        self._slots = Slots(config.folder)
        self._syncing = threading.Lock()
        self._flushing = threading.Lock()
        self._joined: _Joined | None = self._join(self._identity.membership) if self._identity.enrolled else None
        self._predictor.serve(self._reopened())

    @property
    def device_id(self) -> str:
        """Hex SHA-256 of the device's public key."""
        return self._identity.device_id

    @property
    def enrolled(self) -> bool:
        """Whether a hub has admitted this device."""
        return self._identity.enrolled

    @property
    def serving_version(self) -> int | None:
        """The version that answers now."""
        serving = self._predictor.serving
        return None if serving is None else serving.version

    @property
    def status(self) -> AgentStatus:
        """What the device is doing.

        Raises:
            UsageError: the device is not enrolled.
        """
        joined = self._parts()
        pointer = self._slots.pointer
        return AgentStatus(
            device_id=joined.membership.device_id,
            group=joined.membership.group,
            site=joined.membership.site,
            runtime=self._runtime,
            serving_version=self.serving_version,
            previous_version=pointer.previous.version if pointer and pointer.previous else None,
            assignment_counter=joined.synchronizer.counter,
            totals=self._tally.totals,
            pending={stream: self._store.pending(stream) for stream in Stream},
            dropped={stream: self._store.dropped(stream) for stream in Stream},
        )

    def enroll(self, token: str, labels: Mapping[str, str] | None = None) -> Membership:
        """Joins the hub with a one-time token; again, with a new token, it renews the certificate.

        Raises:
            HubUnreachable: no hub of the configured authority answers.
            HubRefused: the hub refuses the token.
            EnrollmentRefused: the hub's answer contradicts what is configured or was pinned.
            StorageError: the folder cannot be written.
        """
        with self._syncing, self._flushing:
            enroll(self._config, self._identity, token, runtime=self._runtime_text(), labels=labels or {})
            self._rejoin()
            self._queue_status(fleet_pb2.StatusReport(state=fleet_pb2.DEVICE_STATE_IDLE, task=self._config.task))
        return self._identity.membership

    def sync(self) -> SyncOutcome:
        """Renews the certificate when due, then brings the device to its assigned version. Failures are in the outcome; what served before then still does.

        Raises:
            UsageError: the device is not enrolled.
        """
        with self._syncing:
            self._renew_if_due()
            joined = self._parts()
            before = self._predictor.serving
            outcome, serving = joined.synchronizer.sync(joined.client, before)
            if serving is not before:
                self._predictor.serve(serving)
        return outcome

    def watch(self, known_revision: int = 0, *, seconds: float = 3600.0) -> Iterator[int]:
        """Release revisions as the hub tells them, the current one first; ends quietly when the hub is out of reach.

        Raises:
            UsageError: the device is not enrolled.
        """
        try:
            yield from self._parts().client.watch(known_revision, seconds)
        except (HubUnreachable, HubRefused) as error:
            _log.info("the watch has ended: %s", error)

    def predict(self, inputs: Inputs) -> tuple[Prediction, ...]:
        """Answers rows.

        Args:
            inputs: encoded rows, as ``InputEncoder.encode`` gives them.

        Raises:
            NoActiveModel: no version serves yet.
            InputRefused: an input does not fit the schema; nothing is predicted. Numbers outside their public range are
                counted and answered.
            OutputRefused: the model's answer is not finite; nothing is predicted.
        """
        site = self._joined.membership.site if self._joined else ""
        return self._predictor.predict(inputs, keep_inputs=bool(site))

    def give_label(self, prediction_id: str, label: str, unit: str = "") -> None:
        """Pairs an outcome with the inputs of its prediction and queues both for the device's own site.

        Args:
            prediction_id: of a recent prediction of this device, also of an earlier run of its process.
            label: the outcome as the schema spells it.
            unit: patient or customer; empty when the record is the unit.

        Raises:
            PredictionUnknown: no such prediction is kept, or it has its label already.
            LabelUnknown: the label is not one of the task's.
            FeedbackRefused: the device belongs to no site, and inputs go nowhere else; or the example is too long.
            NoActiveModel: no version serves, so that the schema is not known.
            UsageError: the device is not enrolled.
        """
        if not self._parts().membership.site:
            raise FeedbackRefused("the device belongs to no site: inputs with labels go nowhere else.")
        self._predictor.give_label(prediction_id, label, unit)

    def flush(self) -> FlushOutcome:
        """Sends queued reports, sketches and labelled examples. Failures are in the outcome, with a time to wait.

        Raises:
            UsageError: the device is not enrolled.
        """
        with self._flushing:
            joined = self._parts()
            return joined.delivery.flush(joined.client)

    def close(self) -> None:
        """Closes the window of the sketch into the queue, the connection and the files."""
        with self._syncing, self._flushing:
            self._predictor.close()
            if self._joined is not None:
                self._joined.client.close()
            self._store.close()

    def _renew_if_due(self) -> None:
        if not needs_renewal(self._identity.membership, self._clock()):
            return
        try:
            renew(self._config, self._identity)
        except (HubUnreachable, HubRefused, EnrollmentRefused, StorageError) as error:
            _log.warning("the certificate is not renewed: %s", error)
            return
        with self._flushing:
            self._rejoin()

    def _rejoin(self) -> None:
        if self._joined is not None:
            self._joined.client.close()
        self._joined = self._join(self._identity.membership)

    def _join(self, membership: Membership) -> _Joined:
        root = membership.trusted_root.encode()
        synchronizer = Synchronizer(
            self._config,
            self._runtime,
            group=membership.group,
            metadata=ReleaseMetadata(self._config.folder / "metadata", root, self._clock),
            slots=self._slots,
            store=self._store,
            report=self._queue_status,
        )
        client = HubClient(self._config, self._identity)
        return _Joined(membership, client, synchronizer, Delivery(self._store, membership.site))

    def _parts(self) -> _Joined:
        if self._joined is None:
            self._joined = self._join(self._identity.membership)  # raises: not enrolled
        return self._joined

    def _reopened(self) -> ServingModel | None:
        """The version that served last; the one before it when that one is damaged. Expiry is not consulted."""
        pointer = self._slots.pointer
        slots = (pointer.active, pointer.previous) if pointer else ()
        for slot in slots:
            if slot is None:
                continue
            try:
                return ServingModel(self._slots.read(slot), self._runtime)
            except FedloopError as error:
                _log.warning("version %d cannot serve again: %s", slot.version, error)
                if not isinstance(error, RuntimeUnavailable):
                    self._slots.discard(slot)
                self._queue_status(
                    fleet_pb2.StatusReport(
                        state=fleet_pb2.DEVICE_STATE_ROLLED_BACK,
                        task=self._config.task,
                        version=slot.version,
                        code=error.code,
                    )
                )
        return None

    def _queue_status(self, report: fleet_pb2.StatusReport) -> None:
        totals = self._tally.totals
        report.runtime = self._runtime_text()
        report.predictions_served = totals.predictions_served
        report.latency_p50_us = totals.latency_p50_us
        self._store.put(Stream.STATUS, report.SerializeToString(deterministic=True))

    def _runtime_text(self) -> str:
        return f"{self._runtime} {runtime_version(self._runtime)}"


def _chosen_runtime(asked: str | None) -> str:
    installed = available_runtimes()
    if asked is None and installed:
        return installed[0]
    if asked is not None and asked in installed:
        return asked
    raise RuntimeUnavailable(
        f"runtime {asked or 'any'} is not installed; installed: {', '.join(installed) or 'none'}.",
        hint="Install fedloop[edge] for ONNX or fedloop[edge-litert] for TFLite.",
        runtime=asked or "any",
    )
