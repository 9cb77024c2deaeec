"""The coordinator's certificate authority, its successor during a rollover, and the certificates they sign.

Files in ``keys/``: ``ca.key`` and ``ca.pem``; during a rollover ``next-ca.key`` and ``next-ca.pem``; ``retired.pem`` holds
authorities that were replaced. Sites trust the bundle of the first two. Servers show certificates of the current authority,
which all sites know; sites get theirs from the newest. Who a site is does not hang on its authority but on the fingerprint
in the database: an authority whose key was stolen makes no sites.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from fedloop_core.certificates import (
    CertificateAuthority,
    bundle_name,
    certificate_expiry,
    certificate_fingerprint,
    load_or_create_key,
)
from fedloop_core.durable import write_bytes, write_secret
from fedloop_core.errors import CertificateRefused, UsageError
from fedloop_server.membership.pem import first_der, split_pem

__all__ = ["Authorities", "bundle_name"]

_RESTORE = "Restore keys/ from a backup of this coordinator."


class Authorities:
    """The authority in a folder of keys. Nothing is held in memory: another process may roll it over.

    Args:
        keys: the folder.
        name: of the federation, for a new authority's subject.
        own: PEM of the authority behind an institution's own certificate of the front; empty when it has none.
        clock: Unix seconds.
    """

    def __init__(
        self, keys: Path, name: str, *, own: bytes = b"", clock: Callable[[], int] = lambda: int(time.time())
    ) -> None:
        self._keys = keys
        self._name = name
        self._own = own
        self._clock = clock

    def create(self) -> bool:
        """Makes the first authority where there is none; False when it was there.

        Raises:
            CertificateRefused: one of its two files is missing.
        """
        key, certificate = self._keys / "ca.key", self._keys / "ca.pem"
        if certificate.exists():
            self.current()
            return False
        CertificateAuthority.load_or_create(self._keys, self._subject(1), self._clock())
        key.chmod(0o600)
        return True

    def current(self) -> CertificateAuthority:
        """The authority behind the servers' certificates.

        Raises:
            CertificateRefused: its files are missing or do not fit.
        """
        self._complete()
        return self._load("ca")

    def next(self) -> CertificateAuthority | None:
        """The successor, during a rollover."""
        self._complete()
        return self._load("next-ca") if (self._keys / "next-ca.pem").exists() else None

    def newest(self) -> CertificateAuthority:
        """The authority that signs for sites."""
        return self.next() or self.current()

    def bundle(self) -> bytes:
        """Whom sites trust as the coordinator, PEM."""
        successor = self.next()
        parts = [self.current().certificate, successor.certificate if successor else b"", self._own]
        return _joined(parts)

    def client_bundle(self, more: Iterable[bytes] = ()) -> bytes:
        """Whose certificates the hub lets through to where their fingerprints are looked up, PEM.

        ``more`` are authorities of institutions. Retired authorities stay until they expire: certificates of theirs may.
        """
        now_unix = self._clock()
        retired = [pem for pem in self._retired() if certificate_expiry(pem) > now_unix]
        successor = self.next()
        return _joined(
            [self.current().certificate, successor.certificate if successor else b"", *retired, *more],
        )

    def token_authority(self) -> bytes:
        """The certificate (DER) by which a site that joins knows the front."""
        return first_der(self._own or self.current().certificate)

    def issue_site(self, request: bytes, site: str, *, days: int) -> bytes:
        """A client certificate (PEM) of the newest authority for a named site.

        Raises:
            EnrollmentRefused: the request is not well-formed.
            CertificateRefused: the authority has expired.
        """
        return self.newest().issue_site(request, site, now_unix=self._clock(), days=days)

    def issue_server(
        self, key: Path, certificate: Path, names: tuple[str, ...], *, days: int, mode: int = 0o644
    ) -> None:
        """Writes a server certificate of the current authority over the key in a file, which is made if need be.

        Raises:
            CertificateRefused: the key cannot be read or the authority has expired.
            StorageError: a file cannot be written.
        """
        private = load_or_create_key(key)
        content = self.current().issue_server(private.public_key(), names, now_unix=self._clock(), days=days)
        write_bytes(certificate, content, mode=mode)

    def roll(self) -> bool:
        """Makes the successor beside the current authority; False when it was there already."""
        if self.next() is not None:
            return False
        self.current()
        key = load_or_create_key(self._keys / "next-ca.key")
        made = CertificateAuthority.create(self._subject(len(self._retired()) + 2), self._clock(), key=key)
        write_bytes(self._keys / "next-ca.pem", made.certificate)
        return True

    def finish_roll(self) -> None:
        """Puts the successor in the current authority's place; a crash between its steps is made good at the next look.

        Raises:
            UsageError: no rollover is going on.
        """
        if self.next() is None:
            raise UsageError("no rollover is going on.", hint="`fedloop server authority roll` begins one.")
        write_bytes(self._keys / "retired.pem", _joined([*self._retired(), self.current().certificate]))
        write_secret(self._keys / "ca.key", (self._keys / "next-ca.key").read_bytes())
        self._complete()

    def _complete(self) -> None:
        """From the moment that ``ca.key`` is the successor's, the rollover goes forward only."""
        successor = self._keys / "next-ca.pem"
        successor_key = self._keys / "next-ca.key"
        try:
            if successor_key.read_bytes() != (self._keys / "ca.key").read_bytes():
                return
            content = successor.read_bytes()
        except FileNotFoundError:
            return
        write_bytes(self._keys / "ca.pem", content)
        successor.unlink(missing_ok=True)
        successor_key.unlink(missing_ok=True)

    def _load(self, name: str) -> CertificateAuthority:
        key, certificate = self._keys / f"{name}.key", self._keys / f"{name}.pem"
        for path in (key, certificate):
            if not path.exists():
                raise CertificateRefused(f"{path} is not there.", hint=_RESTORE)
        return CertificateAuthority(load_or_create_key(key), certificate.read_bytes())

    def _retired(self) -> tuple[bytes, ...]:
        path = self._keys / "retired.pem"
        return split_pem(path.read_bytes()) if path.exists() else ()

    def _subject(self, number: int) -> str:
        return f"fedloop {self._name[:40]} {number}"


def _joined(parts: Iterable[bytes]) -> bytes:
    """Certificates in their order, each once."""
    seen: dict[str, bytes] = {}
    for part in parts:
        for pem in split_pem(part):
            seen.setdefault(certificate_fingerprint(pem), pem)
    return b"".join(seen.values())
