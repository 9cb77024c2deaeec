"""Calls to a hub, with errors of ours: what may work later is HubUnreachable, what will not is HubRefused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from fedloop_core.certificates import key_to_pem
from fedloop_core.errors import HubRefused, HubUnreachable
from fedloop_edge.agent.config import AgentConfig
from fedloop_edge.agent.identity import Identity
from fedloop_proto.fleet.v1 import fleet_pb2, fleet_pb2_grpc
from fedloop_proto.site.v1 import feedback_pb2, feedback_pb2_grpc

__all__ = ["HubClient", "call_enroll", "call_renew"]

_RESPONSE_BYTES = 8 << 20  # the largest metadata that TUF's client takes has 5 MB
_REFUSALS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


def call_enroll(config: AgentConfig, request: fleet_pb2.EnrollRequest) -> fleet_pb2.EnrollResponse:
    """Sends an enrolment under TLS, to the hub that the configured authority vouches for and to no other.

    Raises:
        HubUnreachable: no such hub answers.
        HubRefused: the hub refuses the token or the request.
    """
    with _enrollment(config) as stub:
        response: fleet_pb2.EnrollResponse = stub.Enroll(request, timeout=config.limits.call_seconds)
    return response


def call_renew(config: AgentConfig, request: fleet_pb2.RenewRequest) -> fleet_pb2.EnrollResponse:
    """Asks for a new certificate, likewise.

    Raises:
        HubUnreachable: no such hub answers.
        HubRefused: the hub does not know the key, or has revoked it.
    """
    with _enrollment(config) as stub:
        response: fleet_pb2.EnrollResponse = stub.Renew(request, timeout=config.limits.call_seconds)
    return response


@contextmanager
def _enrollment(config: AgentConfig) -> Iterator[fleet_pb2_grpc.EnrollmentStub]:
    credentials = grpc.ssl_channel_credentials(root_certificates=config.certificate_authority)
    address = config.enrollment_address
    with _errors(address), grpc.secure_channel(address, credentials, options=_options(address)) as channel:
        yield fleet_pb2_grpc.EnrollmentStub(channel)  # type: ignore[no-untyped-call]


class HubClient:
    """One device's connection to its hub under mutual TLS; opened by the first call."""

    def __init__(self, config: AgentConfig, identity: Identity) -> None:
        membership = identity.membership
        self._address = config.fleet_address
        self._limits = config.limits
        self._channel = grpc.secure_channel(
            self._address,
            grpc.ssl_channel_credentials(
                root_certificates=membership.certificate_authority.encode(),
                private_key=key_to_pem(identity.key),
                certificate_chain=membership.certificate.encode(),
            ),
            options=_options(self._address),
        )
        self._fleet = fleet_pb2_grpc.FleetStub(self._channel)  # type: ignore[no-untyped-call]
        self._sketches = fleet_pb2_grpc.SharedFeedbackStub(self._channel)  # type: ignore[no-untyped-call]
        self._site = feedback_pb2_grpc.SiteFeedbackStub(self._channel)  # type: ignore[no-untyped-call]

    def metadata(self, role: str, version: int) -> bytes | None:
        """Release metadata of a role, version 0 for the newest; None when the hub has none."""
        request = fleet_pb2.GetMetadataRequest(role=role, version=version)
        with _errors(self._address):
            response: fleet_pb2.GetMetadataResponse = self._fleet.GetMetadata(
                request, timeout=self._limits.call_seconds
            )
        return response.content if response.found else None

    def blob(self, sha256: bytes, offset: int) -> Iterator[fleet_pb2.BlobChunk]:
        """Chunks of a blob from an offset, as the hub sends them: the caller bounds and checks them."""
        request = fleet_pb2.GetBlobRequest(sha256=sha256, offset=offset)
        with _errors(self._address):
            stream = self._fleet.GetBlob(request, timeout=self._limits.download_seconds)
            try:
                yield from stream
            finally:
                stream.cancel()

    def watch(self, known_revision: int, seconds: float) -> Iterator[int]:
        """The current revision and then each new one, for at most ``seconds``."""
        request = fleet_pb2.WatchRequest(known_revision=known_revision)
        with _errors(self._address):
            stream = self._fleet.Watch(request, timeout=seconds)
            try:
                for change in stream:
                    yield change.revision
            finally:
                stream.cancel()

    def report(self, report: fleet_pb2.StatusReport) -> fleet_pb2.Acknowledgement:
        """Sends one report."""
        with _errors(self._address):
            answer: fleet_pb2.Acknowledgement = self._fleet.ReportStatus(report, timeout=self._limits.call_seconds)
        return answer

    def send_sketches(self, batch: fleet_pb2.SketchBatch) -> fleet_pb2.Acknowledgement:
        """Sends closed windows."""
        with _errors(self._address):
            answer: fleet_pb2.Acknowledgement = self._sketches.SendSketches(batch, timeout=self._limits.call_seconds)
        return answer

    def send_labelled(self, batch: feedback_pb2.LabelledBatch) -> feedback_pb2.LabelledAcknowledgement:
        """Sends labelled examples to the device's own site."""
        with _errors(self._address):
            answer: feedback_pb2.LabelledAcknowledgement = self._site.SendLabelled(
                batch, timeout=self._limits.call_seconds
            )
        return answer

    def close(self) -> None:
        """Closes the connection; running calls end as HubUnreachable."""
        self._channel.close()


def _options(address: str) -> list[tuple[str, int]]:
    host = address.rpartition(":")[0]
    loopback = host in {"localhost", "[::1]"} or host.startswith("127.")
    return [
        ("grpc.max_receive_message_length", _RESPONSE_BYTES),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 10_000),
        ("grpc.enable_http_proxy", 0 if loopback else 1),
    ]


@contextmanager
def _errors(address: str) -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        status = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
        details = (error.details() if isinstance(error, grpc.Call) else "") or ""
        code = details if re.fullmatch(r"FL-[A-Z]+-\d{3}", details) else ""
        if status in _REFUSALS:
            raise HubRefused(
                f"the hub {address} refuses: {code or status.name}.",
                hint="Look the code up in the hub's log.",
                refusal=code or status.name,
            ) from error
        raise HubUnreachable(
            f"the hub {address} does not answer ({status.name}).", hint="Nothing is lost; it is tried again."
        ) from error
    except ValueError as error:  # gRPC's answer to a call on a closed channel
        raise HubUnreachable(f"the connection to {address} is closed.") from error
