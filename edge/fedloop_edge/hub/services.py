"""Enrolment, renewal and the fleet service."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from fedloop_core.certificates import CertificateAuthority
from fedloop_core.errors import EnrollmentRefused, FeedbackRefused, HubBusy, MetadataRefused, RegistryError, TrustError
from fedloop_edge.hub.boundary import Caller, answering
from fedloop_edge.hub.config import HubConfig
from fedloop_edge.hub.intake import Intake, Item, QueueKey
from fedloop_edge.hub.registry import Device, DeviceRegistry
from fedloop_edge.hub.sink import FeedbackSink, ReceivedStatus
from fedloop_edge.hub.source import ReleaseSource
from fedloop_edge.hub.tries import FailedTries
from fedloop_edge.hub.watch import RevisionBoard
from fedloop_edge.streams import Stream
from fedloop_proto.fleet.v1 import fleet_pb2, fleet_pb2_grpc

__all__ = ["CHUNK_BYTES", "EnrollmentService", "FleetService", "HubParts", "StreamLimit"]

CHUNK_BYTES = 64 << 10
_LONGEST_NAME = 200
_DIGEST_BYTES = 32
_RECHECK_SECONDS = 1.0  # how long a revoked or expired device's stream may stay open


@dataclass(frozen=True)
class HubParts:
    """What the services of one hub share. ``clock`` gives Unix seconds."""

    config: HubConfig
    source: ReleaseSource
    sink: FeedbackSink
    registry: DeviceRegistry
    intake: Intake
    caller: Caller
    board: RevisionBoard
    streams: StreamLimit
    clock: Callable[[], int]


class StreamLimit:
    """At most so many downloads and watches at once, so that short calls always find a thread."""

    def __init__(self, limit: int) -> None:
        self._free = threading.BoundedSemaphore(limit)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Holds one of them.

        Raises:
            HubBusy: all are taken; the device tries again later.
        """
        if not self._free.acquire(blocking=False):
            raise HubBusy("all streams are taken.", hint="Raise HubLimits.streams, or start another hub.")
        try:
            yield
        finally:
            self._free.release()


class EnrollmentService(fleet_pb2_grpc.EnrollmentServicer):
    """A token and a certificate request for a client certificate; serves on the listener without client certificates."""

    def __init__(self, parts: HubParts, authority: CertificateAuthority) -> None:
        self._parts = parts
        self._authority = authority
        limits = parts.config.limits
        self._tries = FailedTries(limits.token_failures, limits.token_window_seconds)

    def Enroll(  # noqa: N802  gRPC's spelling
        self, request: fleet_pb2.EnrollRequest, context: grpc.ServicerContext
    ) -> fleet_pb2.EnrollResponse:
        """Admits a device, or counts a failed try against its address."""
        with answering(context), self._counted(context) as now_unix:
            return self._enroll(request, now_unix)

    def Renew(  # noqa: N802
        self, request: fleet_pb2.RenewRequest, context: grpc.ServicerContext
    ) -> fleet_pb2.EnrollResponse:
        """A new certificate for a known device that holds its key."""
        with answering(context), self._counted(context) as now_unix:
            device_id, certificate = self._issue(request.certificate_request, now_unix)
            return self._response(self._parts.registry.admit(device_id), certificate)

    @contextmanager
    def _counted(self, context: grpc.ServicerContext) -> Iterator[int]:
        """Gives the time; an address that failed too often has to wait."""
        now_unix = self._parts.clock()
        address = context.peer().rpartition(":")[0]
        self._tries.check(address, now_unix)
        try:
            yield now_unix
        except TrustError:
            self._tries.failed(address, now_unix)
            raise

    def _enroll(self, request: fleet_pb2.EnrollRequest, now_unix: int) -> fleet_pb2.EnrollResponse:
        config = self._parts.config
        texts = [request.token, request.runtime, *request.labels, *request.labels.values()]
        if len(request.labels) > config.limits.device_labels or max(map(len, texts)) > _LONGEST_NAME:
            raise EnrollmentRefused("an enrolment with too many or too long labels.", reason="request")
        device_id, certificate = self._issue(request.certificate_request, now_unix)
        device = self._parts.registry.redeem(
            request.token,
            device_id,
            site=config.site,
            runtime=request.runtime,
            labels=dict(request.labels),
            now_unix=now_unix,
        )
        return self._response(device, certificate)

    def _issue(self, certificate_request: bytes, now_unix: int) -> tuple[str, bytes]:
        return self._authority.issue_client(
            certificate_request, now_unix=now_unix, days=self._parts.config.device_certificate_days
        )

    def _response(self, device: Device, certificate: bytes) -> fleet_pb2.EnrollResponse:
        return fleet_pb2.EnrollResponse(
            device_id=device.device_id,
            certificate_chain=certificate,
            certificate_authority=self._authority.certificate,
            group=device.group,
            site=self._parts.config.site,
            trusted_root=self._parts.source.trusted_root(),
        )


class FleetService(fleet_pb2_grpc.FleetServicer):
    """Metadata, blobs, news of releases, and reports about versions."""

    def __init__(self, parts: HubParts) -> None:
        self._parts = parts

    def GetMetadata(  # noqa: N802
        self, request: fleet_pb2.GetMetadataRequest, context: grpc.ServicerContext
    ) -> fleet_pb2.GetMetadataResponse:
        """One file of release metadata."""
        with answering(context):
            self._parts.caller.device(context, self._parts.clock())
            if len(request.role) > _LONGEST_NAME:
                raise MetadataRefused("a role's name is too long.", reason="role")
            content = self._parts.source.metadata(request.role, request.version)
            return fleet_pb2.GetMetadataResponse(found=content is not None, content=content or b"")

    def GetBlob(  # noqa: N802
        self, request: fleet_pb2.GetBlobRequest, context: grpc.ServicerContext
    ) -> Iterator[fleet_pb2.BlobChunk]:
        """The rest of a blob from an offset, in chunks."""
        with answering(context), self._parts.streams.one():
            self._parts.caller.device(context, self._parts.clock())
            digest = request.sha256
            length = self._parts.source.blob_length(digest) if len(digest) == _DIGEST_BYTES else None
            if length is None or request.offset > length:
                raise RegistryError("there is no such blob, or it ends before the offset.")
            for offset in range(request.offset, length, CHUNK_BYTES):
                content = self._parts.source.read_blob(digest, offset, min(CHUNK_BYTES, length - offset))
                yield fleet_pb2.BlobChunk(offset=offset, content=content)

    def Watch(  # noqa: N802
        self, request: fleet_pb2.WatchRequest, context: grpc.ServicerContext
    ) -> Iterator[fleet_pb2.ReleaseChanged]:
        """The current revision at once, then each new one; ends when the hub stops or the device is shut out."""
        board = self._parts.board
        with answering(context), self._parts.streams.one():
            self._parts.caller.device(context, self._parts.clock())
            known = max(self._parts.source.revision(), request.known_revision)
            yield fleet_pb2.ReleaseChanged(revision=self._parts.source.revision())
            while context.is_active() and not board.closed:
                newest = board.wait(known, _RECHECK_SECONDS)
                self._parts.caller.device(context, self._parts.clock())
                if newest > known:
                    known = newest
                    yield fleet_pb2.ReleaseChanged(revision=newest)

    def ReportStatus(  # noqa: N802
        self, request: fleet_pb2.StatusReport, context: grpc.ServicerContext
    ) -> fleet_pb2.Acknowledgement:
        """One numbered report."""
        with answering(context):
            device = self._parts.caller.device(context, self._parts.clock())
            texts = (request.task, request.code, request.detail, request.runtime)
            if max(map(len, texts)) > _LONGEST_NAME:
                raise FeedbackRefused("a status report is too long.")
            report = ReceivedStatus(
                queue_id=request.queue_id,
                sequence=request.sequence,
                state=request.state,
                task=request.task,
                version=request.version,
                serving_version=request.serving_version,
                assignment_counter=request.assignment_counter,
                code=request.code,
                detail=request.detail,
                runtime=request.runtime,
                predictions_served=request.predictions_served,
                latency_p50_us=request.latency_p50_us,
            )
            key = QueueKey(device.device_id, request.queue_id, Stream.STATUS)
            item = Item(request.sequence, lambda: self._parts.sink.status(device.device_id, report))
            settled = self._parts.intake.take(key, request.oldest, [item])
            return fleet_pb2.Acknowledgement(queue_id=request.queue_id, sequence=settled.acknowledged)
