"""Calls to the coordinator's SiteHub under mutual TLS, with errors of ours: who is refused for good, and what may work later."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from fedloop_clients.joining.address import Address, proxy_to
from fedloop_core.certificates import bundle_name
from fedloop_core.errors import (
    CertificateRefused,
    CoordinatorUnreachable,
    FedloopError,
    SiteRevoked,
    VersionRefused,
)
from fedloop_proto.membership.v1 import membership_pb2_grpc
from fedloop_proto.membership.v1.membership_pb2 import Notice, ReportReceived, SiteReport, WatchRequest

__all__ = ["HubIdentity", "SiteHubClient"]

_LARGEST_MESSAGE = 1 << 20  # bytes: a notice's envelope has at most a quarter of it
_CALL_SECONDS = 20.0
_REFUSED: Mapping[str, tuple[type[FedloopError], str, str]] = {
    SiteRevoked.code: (
        SiteRevoked,
        "the coordinator has revoked this site, or knows it as one that has left: it takes no further part.",
        "Ask the coordinator's people; to come back, join again with a new token.",
    ),
    VersionRefused.code: (
        VersionRefused,
        "the coordinator and this site speak generations of the protocol that are too far apart.",
        "Bring fedloop on both sides to neighbouring versions.",
    ),
    CertificateRefused.code: (
        CertificateRefused,
        "the coordinator refuses this site's certificate: it has expired, or is none that the coordinator knows.",
        "Compare the clock, and run `fedloop site renew`.",
    ),
}


@dataclass(frozen=True)
class HubIdentity:
    """How the site shows itself and whom it trusts: PEM of its key, of its certificate with chain, and of authorities."""

    key: bytes
    certificate: bytes
    authorities: bytes


class SiteHubClient:
    """One connection to the hub, opened by the first call; any thread may call.

    Args:
        address: host:port of SiteHub.
        identity: the site's key and certificate, and whom it trusts.
        proxy: site.toml's proxy, or empty; variables of the environment are not looked at.

    Raises:
        UsageError: the address or the proxy is written wrong.
        CertificateRefused: the authorities cannot be read.
    """

    def __init__(self, address: str, identity: HubIdentity, proxy: str = "") -> None:
        self._address = address
        self.trusted_bundle = bundle_name(identity.authorities)
        credentials = grpc.ssl_channel_credentials(identity.authorities, identity.key, identity.certificate)
        self._channel = grpc.secure_channel(address, credentials, options=_options(address, proxy))
        self._stub = membership_pb2_grpc.SiteHubStub(self._channel)  # type: ignore[no-untyped-call]

    def watch(self, request: WatchRequest) -> Iterator[Notice]:
        """A greeting (number 0), then the site's notices as they come, until the connection ends or is closed.

        Raises:
            SiteRevoked, VersionRefused, CertificateRefused: the hub refuses this site.
            CoordinatorUnreachable: it does not answer, or broke off.
        """
        with self._errors():
            stream = self._stub.Watch(request, wait_for_ready=False)
            try:
                yield from stream
            finally:
                stream.cancel()

    def report(self, report: SiteReport) -> ReportReceived:
        """Says what the site does.

        Raises:
            SiteRevoked, VersionRefused, CertificateRefused: the hub refuses this site.
            CoordinatorUnreachable: it does not answer in time (stage ``hub``), or has no time now (``busy``).
        """
        with self._errors():
            received: ReportReceived = self._stub.Report(report, timeout=_CALL_SECONDS)
        return received

    def close(self) -> None:
        """Closes the connection; calls that run end as CoordinatorUnreachable."""
        self._channel.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            status = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
            details = (error.details() if isinstance(error, grpc.Call) else "") or ""
            refused = _REFUSED.get(details)
            if refused is not None:
                kind, sentence, hint = refused
                raise kind(sentence, hint=hint) from error
            stage = "busy" if status is grpc.StatusCode.RESOURCE_EXHAUSTED else "hub"
            said = details if re.fullmatch(r"FL-[A-Z]+-\d{3}", details) else status.name
            raise CoordinatorUnreachable(
                f"the hub {self._address} does not answer ({said}).",
                hint="It is tried again; `fedloop site doctor` goes the way stage by stage.",
                stage=stage,
            ) from error
        except ValueError as error:  # gRPC's answer to a call on a closed channel
            raise CoordinatorUnreachable(
                f"the connection to the hub {self._address} is closed.", stage="hub"
            ) from error


def _options(address: str, proxy: str) -> list[tuple[str, int | str]]:
    chosen = proxy_to(Address.parse(address), proxy)
    return [
        ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
        ("grpc.use_local_subchannel_pool", 1),  # a new certificate must not find the old connection
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 10_000),
        ("grpc.enable_http_proxy", int(chosen is not None)),  # else gRPC would follow the environment
        *([("grpc.http_proxy", proxy)] if chosen is not None else []),
    ]
