"""The hub's side of mutual TLS: certificates are read again while it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import grpc

from fedloop_core.errors import FedloopError, StorageError

__all__ = ["hub_credentials"]

_LOG = logging.getLogger(__name__)

Parts = tuple[bytes, bytes, bytes]  # key, certificate, authorities of clients


def hub_credentials(key: Path, certificate: Path, client_bundle: Callable[[], bytes]) -> grpc.ServerCredentials:
    """Credentials that look at each handshake whether the files or the authorities of clients have changed.

    Args:
        key: PEM of the hub's private key.
        certificate: PEM of its certificate.
        client_bundle: gives whose client certificates are let through, PEM; called at each handshake, so it is quick.

    Raises:
        StorageError: a file cannot be read now. Later, what was there last stays.
    """
    shown = _read(key, certificate, client_bundle)

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        try:
            newest = _read(key, certificate, client_bundle)
        except FedloopError as error:
            _LOG.error("the hub keeps its former certificates: %s", error)
            return None
        if newest == shown:
            return None
        shown = newest
        _LOG.info("the hub takes a new certificate, or other authorities")
        return _configuration(newest)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(shown),
        changed,  # type: ignore[arg-type]  # gRPC documents None for "no change"; its stubs do not
        require_client_authentication=True,
    )


def _configuration(parts: Parts) -> grpc.ServerCertificateConfiguration:
    key, certificate, clients = parts
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=clients)


def _read(key: Path, certificate: Path, client_bundle: Callable[[], bytes]) -> Parts:
    try:
        return key.read_bytes(), certificate.read_bytes(), client_bundle()
    except OSError as error:
        raise StorageError(
            f"cannot read {error.filename}: {error.strerror}.", hint="Run `fedloop server init` again."
        ) from error
