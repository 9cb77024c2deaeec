"""The process boundary of a hub: who is calling, and errors as a code and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from fedloop_core.certificates import certificate_expiry, device_id_of_certificate
from fedloop_core.errors import (
    CertificateRefused,
    DeviceRefused,
    EnrollmentRefused,
    FedloopError,
    FeedbackRefused,
    HubBusy,
    SiteRevoked,
    StorageError,
    VersionRefused,
)
from fedloop_edge.hub.registry import Device, DeviceRegistry

__all__ = ["Caller", "answering"]

_log = logging.getLogger(__name__)
_INTERNAL = "FL-ANY-000"
_STATUS = (
    (EnrollmentRefused, grpc.StatusCode.PERMISSION_DENIED),
    (DeviceRefused, grpc.StatusCode.UNAUTHENTICATED),
    (CertificateRefused, grpc.StatusCode.UNAUTHENTICATED),
    (SiteRevoked, grpc.StatusCode.PERMISSION_DENIED),
    (VersionRefused, grpc.StatusCode.FAILED_PRECONDITION),
    (FeedbackRefused, grpc.StatusCode.FAILED_PRECONDITION),
    (HubBusy, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (StorageError, grpc.StatusCode.UNAVAILABLE),
)


@contextmanager
def answering(context: grpc.ServicerContext) -> Iterator[None]:
    """Ends the call with the code of whatever error is raised inside; its text stays here, in the log."""
    try:
        yield
    except FedloopError as error:
        _log.info("a call is refused: %s", error)
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), grpc.StatusCode.INVALID_ARGUMENT)
        context.abort(status, error.code)
    except Exception:  # noqa: BLE001  the boundary: gRPC would send the error's text to the caller
        _log.exception("a call failed")
        context.abort(grpc.StatusCode.INTERNAL, _INTERNAL)


class Caller:
    """Tells which device is calling: the one whose key its certificate carries."""

    def __init__(self, registry: DeviceRegistry) -> None:
        self._registry = registry

    def device(self, context: grpc.ServicerContext, now_unix: int) -> Device:
        """The calling device.

        Raises:
            DeviceRefused: no certificate, an expired one (a connection may outlive it), an unknown or revoked device.
        """
        pem = next(iter(context.auth_context().get("x509_pem_cert", ())), b"")
        if not isinstance(pem, bytes) or not pem:
            raise DeviceRefused("a call without a client certificate.")
        if certificate_expiry(pem) < now_unix:
            raise DeviceRefused("a call under an expired certificate.", hint="Enrol the device again.")
        return self._registry.admit(device_id_of_certificate(pem))
