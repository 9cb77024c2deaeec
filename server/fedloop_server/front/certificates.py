"""The certificate that sites see, replaced while the front runs."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from fedloop_core.errors import CertificateRefused

__all__ = ["ServedCertificate"]

_LOG = logging.getLogger(__name__)

Stamp = tuple[tuple[int, int, int], ...]  # inode, size and time of change of each file


class ServedCertificate:
    """A TLS context whose certificate follows two files. New connections get the new one; old ones go on.

    Args:
        certificate: PEM chain.
        key: PEM, not encrypted.

    Raises:
        CertificateRefused: the files cannot be read, or do not hold a certificate and its key.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        try:
            self._loaded = self._stamp()
            self._load(self.context)
        except OSError as error:  # ssl.SSLError is one
            raise CertificateRefused(
                f"{certificate} and {key} are no certificate and its key: {error.strerror or error}.",
                hint="Restore them, or let the coordinator make new ones.",
            ) from error

    async def follow(self, seconds: float = 1.0) -> None:
        """Looks at the files every second, for ever."""
        while True:
            await asyncio.sleep(seconds)
            self.reload()

    def reload(self) -> bool:
        """Loads the files when they have changed and fit together; whether it did."""
        try:
            stamp = self._stamp()
            if stamp == self._loaded:
                return False
            self._load(
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            )  # a pair that does not fit must not reach the live context
            self._load(self.context)
        except OSError as error:  # half replaced: the next look finds both
            _LOG.warning("the new certificate cannot be used yet, the old one stays: %s", error)
            return False
        self._loaded = stamp
        _LOG.info("the certificate was loaded anew")
        return True

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self._certificate, self._key, password=lambda: "")  # never asks at a terminal

    def _stamp(self) -> Stamp:
        stats = [path.stat() for path in (self._certificate, self._key)]
        return tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)
