"""Certificates of the coordinator's own listeners: made when there is none, renewed while everything runs.

Only the certificate is replaced, whole, and the key stays: whoever reads both finds a pair at every moment. Whoever serves
looks at the files by itself.
"""

from __future__ import annotations

import ipaddress
import stat
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedloop_core.certificates import certificate_validity, is_issued_by
from fedloop_core.durable import write_bytes
from fedloop_core.errors import CertificateRefused, SettingsInvalid
from fedloop_server.membership.authorities import Authorities
from fedloop_server.membership.pem import split_pem
from fedloop_server.settings import OwnCertificate, ServerSettings, read_file

__all__ = ["ServerCertificates", "is_due"]

_DAYS = 90
_INTERNAL_DAYS = 3650
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_due(certificate: bytes, authority: bytes, names: tuple[str, ...], now_unix: int) -> bool:
    """Whether a server certificate (PEM) is past half of its life, by another authority, or for other names."""
    begin, end = certificate_validity(certificate)
    return (
        now_unix >= (begin + end) // 2
        or not is_issued_by(certificate, authority)
        or _names(certificate) != {_spelled(name) for name in names}
    )


class ServerCertificates:
    """The files in ``keys/`` and ``front/`` of a coordinator.

    ``keys/hub.key`` and ``hub.pem`` are of the hub; ``keys/superlink.key``, ``superlink.pem`` and ``superlink-ca.pem`` of
    SuperLink on loopback, which cannot take new ones while it runs; ``front/tls.key``, ``tls.pem`` are what sites see, and
    ``front/authorities.pem`` is by whom the front knows SuperLink.

    Args:
        folder: the coordinator's home.
        settings: names, and an institution's own certificate.
        authorities: who signs.
    """

    def __init__(self, folder: Path, settings: ServerSettings, authorities: Authorities) -> None:
        self._keys = folder / "keys"
        self._front = folder / "front"
        self._settings = settings
        self._authorities = authorities

    def missing(self) -> tuple[Path, ...]:
        """Files that are not there yet."""
        return tuple(path for path in self._files() if not path.exists())

    def refresh(self, now_unix: int) -> tuple[str, ...]:
        """Makes what is missing and renews what is due; gives the names of files that were written.

        Raises:
            CertificateRefused: the authority has expired, or the institution's certificate is not over its key.
            SettingsInvalid: the institution's files cannot be read.
            StorageError: a file cannot be written.
        """
        written = [*self._superlink(), *self._hub(now_unix)]
        own = self._settings.certificate
        written += self._own_front(own) if own else self._our_front(now_unix)
        internal = (self._keys / "superlink-ca.pem").read_bytes()
        written += self._write(self._front / "authorities.pem", internal)
        return tuple(written)

    def _files(self) -> tuple[Path, ...]:
        keys = ("superlink.key", "superlink.pem", "superlink-ca.pem", "hub.key", "hub.pem")
        return (
            *(self._keys / name for name in keys),
            *(self._front / f for f in ("tls.key", "tls.pem", "authorities.pem")),
        )

    def _superlink(self) -> list[str]:
        key, certificate, authority = (self._keys / f"superlink{end}" for end in (".key", ".pem", "-ca.pem"))
        if key.exists() and certificate.exists() and authority.exists():
            return []
        self._authorities.issue_server(key, certificate, _LOOPBACK, days=_INTERNAL_DAYS)
        write_bytes(authority, self._authorities.current().certificate)
        return ["keys/superlink.pem"]

    def _hub(self, now_unix: int) -> list[str]:
        return self._ours(self._keys / "hub.key", self._keys / "hub.pem", now_unix)

    def _our_front(self, now_unix: int) -> list[str]:
        key = self._front / "tls.key"
        written = self._ours(key, self._front / "tls.pem", now_unix)
        key.chmod(self._mode())
        return written

    def _ours(self, key: Path, certificate: Path, now_unix: int) -> list[str]:
        authority = self._authorities.current().certificate
        names = self._settings.public_names
        if key.exists() and certificate.exists() and not is_due(certificate.read_bytes(), authority, names, now_unix):
            return []
        self._authorities.issue_server(key, certificate, names, days=_DAYS)
        return [f"{certificate.parent.name}/{certificate.name}"]

    def _own_front(self, own: OwnCertificate) -> list[str]:
        """The institution renews its certificate in its own files; they are copied when they have changed and fit."""
        key, certificate = read_file(Path(own.key)), read_file(Path(own.certificate))
        _check_pair(own, key, certificate)
        written = self._write(self._front / "tls.key", key)
        return [*written, *self._write(self._front / "tls.pem", certificate)]

    def _write(self, path: Path, content: bytes) -> list[str]:
        if path.exists() and path.read_bytes() == content:
            return []
        write_bytes(path, content, mode=self._mode())
        return [f"{path.parent.name}/{path.name}"]

    def _mode(self) -> int:
        """In a folder that hands its group down (setgid), the front's user reads through the group."""
        handed_down = self._front.exists() and self._front.stat().st_mode & stat.S_ISGID
        return 0o640 if handed_down else 0o600


def _names(certificate: bytes) -> set[str]:
    loaded = x509.load_pem_x509_certificate(certificate)
    try:
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    return addresses | set(names.get_values_for_type(x509.DNSName))


def _spelled(name: str) -> str:
    """An address as certificates give it back, whatever way it was written."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name


def _check_pair(own: OwnCertificate, key: bytes, certificate: bytes) -> None:
    try:
        private = load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as error:
        raise SettingsInvalid(f"{own.key} is not a private key in PEM without a password.") from error
    parts = split_pem(certificate)
    if not parts or x509.load_pem_x509_certificate(parts[0]).public_key() != private.public_key():
        raise CertificateRefused(
            f"{own.certificate} is not over the key in {own.key}.",
            hint="The former certificate is shown until they fit.",
        )
