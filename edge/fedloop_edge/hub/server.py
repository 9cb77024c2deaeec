"""The hub itself: keys, listeners, services, and an end that waits for nobody."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc

from fedloop_core.certificates import DAY_SECONDS, CertificateAuthority, key_to_pem, load_or_create_key
from fedloop_core.errors import UsageError
from fedloop_edge.hub.boundary import Caller
from fedloop_edge.hub.config import HubAddresses, HubConfig
from fedloop_edge.hub.feedback import SharedFeedbackService, SiteFeedbackService
from fedloop_edge.hub.intake import Intake
from fedloop_edge.hub.registry import DeviceRegistry, issue_token
from fedloop_edge.hub.services import EnrollmentService, FleetService, HubParts, StreamLimit
from fedloop_edge.hub.sink import FeedbackSink
from fedloop_edge.hub.source import ReleaseSource
from fedloop_edge.hub.watch import RevisionBoard
from fedloop_proto.fleet.v1 import fleet_pb2_grpc
from fedloop_proto.site.v1 import feedback_pb2_grpc

__all__ = ["Hub"]

_GRACE_SECONDS = 1.0
_ENROLLMENT_WORKERS = 2
_ENROLLMENT_MESSAGE_BYTES = 64 << 10
_KEEPALIVE_MS = 30_000


def _unix_now() -> int:
    return int(time.time())


class Hub:
    """Serves devices on two listeners: enrolment under server-authenticated TLS, all else under mutual TLS.

    Args:
        config: whose hub, where and within which limits.
        source: the releases to serve.
        sink: takes what devices send.
        registry: the devices that may speak.
        clock: Unix seconds; certificates are compared with the machine's own clock by TLS, so give real time.

    Raises:
        CertificateRefused: the folder's keys and certificates do not fit.
        StorageError: the folder cannot be written.
    """

    def __init__(
        self,
        config: HubConfig,
        source: ReleaseSource,
        sink: FeedbackSink,
        registry: DeviceRegistry,
        *,
        clock: Callable[[], int] = _unix_now,
    ) -> None:
        self._config = config
        self._clock = clock
        self._authority = CertificateAuthority.load_or_create(
            config.folder, f"fedloop hub {config.site or 'coordinator'}", clock()
        )
        self._board = RevisionBoard(source)
        self._intake = Intake(registry.database)
        self._parts = HubParts(
            config=config,
            source=source,
            sink=sink,
            registry=registry,
            intake=self._intake,
            caller=Caller(registry),
            board=self._board,
            streams=StreamLimit(config.limits.streams),
            clock=clock,
        )
        self._servers: tuple[grpc.Server, ...] = ()

    @property
    def certificate_authority(self) -> bytes:
        """The certificate (PEM) that devices are given beforehand to know this hub by."""
        return self._authority.certificate

    def issue_token(self, group: str, *, valid_seconds: int = 86_400) -> str:
        """A one-time token by which one device may join a rollout group of this hub's site."""
        return issue_token(
            self._parts.registry,
            group=group,
            site=self._config.site,
            now_unix=self._clock(),
            valid_seconds=valid_seconds,
        )

    @property
    def intake(self) -> Intake:
        """The numbers of what devices sent, with totals of what was rejected or lost."""
        return self._intake

    def start(self) -> HubAddresses:
        """Opens both listeners.

        Raises:
            UsageError: an address cannot be listened on, or the hub was started before.
        """
        if self._servers:
            raise UsageError("the hub was started before.")
        enrollment, enrollment_address = self._listen_enrollment()
        fleet, fleet_address = self._listen_fleet()
        self._servers = (enrollment, fleet)
        for server in self._servers:
            server.start()
        return HubAddresses(enrollment_address, fleet_address)

    def stop(self) -> None:
        """Ends watches at once, other calls after a second, and closes the listeners."""
        self._board.close()
        for stopped in [server.stop(_GRACE_SECONDS) for server in self._servers]:
            stopped.wait()

    def _listen_enrollment(self) -> tuple[grpc.Server, str]:
        server = _server(_ENROLLMENT_WORKERS, _ENROLLMENT_MESSAGE_BYTES)
        service = EnrollmentService(self._parts, self._authority)
        fleet_pb2_grpc.add_EnrollmentServicer_to_server(service, server)  # type: ignore[no-untyped-call]
        credentials = self._credentials(require_client_certificate=False)
        return server, _listen(server, self._config.enrollment_address, credentials)

    def _listen_fleet(self) -> tuple[grpc.Server, str]:
        limits = self._config.limits
        server = _server(limits.workers + limits.streams, limits.message_bytes)
        fleet_pb2_grpc.add_FleetServicer_to_server(FleetService(self._parts), server)  # type: ignore[no-untyped-call]
        fleet_pb2_grpc.add_SharedFeedbackServicer_to_server(SharedFeedbackService(self._parts), server)  # type: ignore[no-untyped-call]
        if self._config.site:
            feedback_pb2_grpc.add_SiteFeedbackServicer_to_server(SiteFeedbackService(self._parts), server)  # type: ignore[no-untyped-call]
        credentials = self._credentials(require_client_certificate=True)
        return server, _listen(server, self._config.fleet_address, credentials)

    def _credentials(self, *, require_client_certificate: bool) -> grpc.ServerCredentials:
        """A server certificate that is made anew, at some handshake, in the second half of its life."""
        lifetime = self._config.server_certificate_days * DAY_SECONDS
        made_unix = self._clock()

        def configuration() -> grpc.ServerCertificateConfiguration:
            return grpc.ssl_server_certificate_configuration(
                [self._identity()],
                root_certificates=self._authority.certificate if require_client_certificate else None,
            )

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal made_unix
            if self._clock() < made_unix + lifetime // 2:
                return None  # the certificate stays
            made_unix = self._clock()
            return configuration()

        return grpc.dynamic_ssl_server_credentials(
            configuration(),
            renewed,  # type: ignore[arg-type]  # gRPC documents None for "no change"; its stubs do not
            require_client_authentication=require_client_certificate,
        )

    def _identity(self) -> tuple[bytes, bytes]:
        key = load_or_create_key(self._config.folder / "server.key")
        certificate = self._authority.issue_server(
            key.public_key(), self._config.names, now_unix=self._clock(), days=self._config.server_certificate_days
        )
        return key_to_pem(key), certificate


def _server(workers: int, message_bytes: int) -> grpc.Server:
    return grpc.server(
        ThreadPoolExecutor(max_workers=workers, thread_name_prefix="hub"),
        maximum_concurrent_rpcs=4 * workers,
        options=[
            ("grpc.so_reuseport", 0),  # two hubs on one port would silently share its devices
            ("grpc.max_receive_message_length", message_bytes),
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
        ],
    )


def _listen(server: grpc.Server, address: str, credentials: grpc.ServerCredentials) -> str:
    host = address.rpartition(":")[0]
    try:
        port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise UsageError(f"the hub cannot listen on {address}.", hint="Is the port taken?") from error
    return f"{host}:{port}"
