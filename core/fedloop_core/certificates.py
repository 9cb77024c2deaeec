"""Certificates: a small authority for each hub, its server certificate, and one for each device or site.

Keys are elliptic-curve keys on P-256; certificates follow RFC 5280. A device is named by its key: ``device_id`` is the hex
SHA-256 of the DER SubjectPublicKeyInfo, so that a renewed certificate names the same device. A site is named by its subject. TLS compares validity with
the machine's own clock: give these functions real Unix time.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedloop_core.durable import write_bytes, write_secret
from fedloop_core.errors import CertificateRefused, EnrollmentRefused

__all__ = [
    "DAY_SECONDS",
    "CertificateAuthority",
    "bundle_name",
    "certificate_expiry",
    "certificate_fingerprint",
    "certificate_request",
    "certificate_validity",
    "device_id_of_certificate",
    "is_issued_by",
    "key_id",
    "key_to_pem",
    "load_or_create_key",
    "request_key_id",
]

MAXIMUM_REQUEST_BYTES = 8192
CLOCK_SKEW_SECONDS = 300  # a certificate is valid a little before it was made, for clocks that are behind
AUTHORITY_DAYS = 3650
DAY_SECONDS = 86_400


def load_or_create_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The P-256 key in ``path``; made and stored (0600) when the file is not there.

    Raises:
        CertificateRefused: the file holds something else.
        StorageError: the file cannot be written.
    """
    if not path.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        write_secret(path, key_to_pem(key))
        return key
    try:
        loaded = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise CertificateRefused(f"{path} is not a private key in PEM.", hint="Restore it from a backup.") from error
    if not isinstance(loaded, ec.EllipticCurvePrivateKey) or not isinstance(loaded.curve, ec.SECP256R1):
        raise CertificateRefused(f"{path} is not a P-256 key.", hint="Restore it from a backup.")
    return loaded


def key_to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """PKCS#8 PEM, not encrypted: write it only with ``write_secret``."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def key_id(key: ec.EllipticCurvePublicKey) -> str:
    """Hex SHA-256 of the DER SubjectPublicKeyInfo: the ``device_id`` of a device with this key."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def device_id_of_certificate(pem: bytes) -> str:
    """The ``device_id`` of the device that holds this certificate's key.

    Raises:
        CertificateRefused: not a certificate, or not over a P-256 key.
    """
    key = _load_certificate(pem).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise CertificateRefused("a certificate is not over an elliptic-curve key.")
    return key_id(key)


def certificate_validity(pem: bytes) -> tuple[int, int]:
    """Unix times of a certificate's first and last valid second.

    Raises:
        CertificateRefused: not a certificate.
    """
    certificate = _load_certificate(pem)
    return int(certificate.not_valid_before_utc.timestamp()), int(certificate.not_valid_after_utc.timestamp())


def certificate_expiry(pem: bytes) -> int:
    """Unix time of a certificate's last valid second.

    Raises:
        CertificateRefused: not a certificate.
    """
    return certificate_validity(pem)[1]


def certificate_fingerprint(pem: bytes) -> str:
    """Hex SHA-256 of a certificate's DER; of the first one when there are several.

    Raises:
        CertificateRefused: not a certificate.
    """
    return _load_certificate(pem).fingerprint(hashes.SHA256()).hex()


def bundle_name(bundle: bytes) -> str:
    """Names a bundle of authorities (PEM) by its content, whatever its order: hex SHA-256 of their sorted fingerprints.

    Raises:
        CertificateRefused: something in it is no certificate.
    """
    try:
        prints = {one.fingerprint(hashes.SHA256()).hex() for one in x509.load_pem_x509_certificates(bundle)}
    except ValueError as error:
        raise CertificateRefused("a bundle of authorities cannot be read.") from error
    return hashlib.sha256("\n".join(sorted(prints)).encode()).hexdigest()


def request_key_id(request: bytes) -> str:
    """``key_id`` of the key of a PKCS#10 request (PEM), checked as ``issue_client`` checks it.

    Raises:
        EnrollmentRefused: the request is not well-formed.
    """
    return key_id(_key_of_request(request))


def is_issued_by(pem: bytes, authority: bytes) -> bool:
    """Whether the first certificate in ``pem`` is signed by the authority's (PEM) key; times are not looked at.

    Raises:
        CertificateRefused: not certificates.
    """
    try:
        _load_certificate(pem).verify_directly_issued_by(_load_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def certificate_request(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A PKCS#10 request (RFC 2986) in PEM, named by the key and signed with it."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, key_id(key.public_key()))])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(Encoding.PEM)


class CertificateAuthority:
    """Signs server and device certificates; its own certificate is what devices pin.

    Args:
        key: the authority's private key.
        certificate: the authority's certificate, PEM.
    """

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: bytes) -> None:
        self._key = key
        self._certificate = _load_certificate(certificate)
        self.certificate = certificate
        if self._certificate.public_key() != key.public_key():
            raise CertificateRefused("the authority's certificate is not over the authority's key.")

    @classmethod
    def create(cls, name: str, now_unix: int, *, key: ec.EllipticCurvePrivateKey | None = None) -> CertificateAuthority:
        """A fresh authority, valid for ten years, that may sign no further authority."""
        own = ec.generate_private_key(ec.SECP256R1()) if key is None else key
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
        builder = (
            _builder(subject, subject, own.public_key(), now_unix, now_unix + AUTHORITY_DAYS * DAY_SECONDS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
        )
        return cls(own, builder.sign(own, hashes.SHA256()).public_bytes(Encoding.PEM))

    @classmethod
    def load_or_create(cls, folder: Path, name: str, now_unix: int) -> CertificateAuthority:
        """The authority in ``folder`` (``ca.key``, ``ca.pem``); made and stored when it is not there.

        Raises:
            CertificateRefused: the files do not hold a key and its certificate.
        """
        key = load_or_create_key(folder / "ca.key")
        path = folder / "ca.pem"
        if path.exists():
            return cls(key, path.read_bytes())
        made = cls.create(name, now_unix, key=key)
        write_bytes(path, made.certificate)
        return made

    def issue_server(
        self, key: ec.EllipticCurvePublicKey, names: tuple[str, ...], *, now_unix: int, days: int = 90
    ) -> bytes:
        """A server certificate (PEM) for host names and IP addresses.

        Raises:
            CertificateRefused: there is no name, or the authority has expired.
        """
        if not names:
            raise CertificateRefused("a server certificate needs at least one host name or address.")
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
        alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
        builder = self._leaf(subject, key, now_unix, days, ExtendedKeyUsageOID.SERVER_AUTH)
        signed = builder.add_extension(alternatives, critical=False).sign(self._key, hashes.SHA256())
        return signed.public_bytes(Encoding.PEM)

    def issue_client(self, request: bytes, *, now_unix: int, days: int = 365) -> tuple[str, bytes]:
        """Turns a request into a client certificate; returns ``device_id`` and the certificate (PEM).

        Nothing but the key is taken from the request: subject and extensions are the authority's.

        Raises:
            EnrollmentRefused: the request is malformed, too long, not signed by its own key, not over P-256, or asks for
                extensions.
            CertificateRefused: the authority has expired.
        """
        key = _key_of_request(request)
        device_id = key_id(key)
        return device_id, self._client(key, device_id, now_unix, days)

    def issue_site(self, request: bytes, site: str, *, now_unix: int, days: int = 90) -> bytes:
        """Turns a request into the client certificate (PEM) of a named site; of the request only the key is taken.

        Raises:
            EnrollmentRefused: as for ``issue_client``.
            CertificateRefused: the authority has expired.
        """
        return self._client(_key_of_request(request), site, now_unix, days)

    def _client(self, key: ec.EllipticCurvePublicKey, name: str, now_unix: int, days: int) -> bytes:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._leaf(subject, key, now_unix, days, ExtendedKeyUsageOID.CLIENT_AUTH)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def _leaf(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        now_unix: int,
        days: int,
        purpose: x509.ObjectIdentifier,
    ) -> x509.CertificateBuilder:
        own_end = int(self._certificate.not_valid_after_utc.timestamp())
        end = min(now_unix + days * DAY_SECONDS, own_end)
        if end <= now_unix:
            raise CertificateRefused(
                "the certificate authority has expired or the lifetime is not positive.",
                hint="Make a new authority and enrol the devices again.",
            )
        return (
            _builder(subject, self._certificate.subject, key, now_unix, end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )


def _key_of_request(content: bytes) -> ec.EllipticCurvePublicKey:
    if len(content) > MAXIMUM_REQUEST_BYTES:
        raise EnrollmentRefused("a certificate request is too long.", reason="request")
    try:
        request = x509.load_pem_x509_csr(content)
        key = request.public_key()
        signed = request.is_signature_valid
        extensions = list(request.extensions)
    except (ValueError, TypeError, InvalidSignature, x509.DuplicateExtension) as error:
        raise EnrollmentRefused("a certificate request cannot be read.", reason="request") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise EnrollmentRefused("a certificate request is not over a P-256 key.", reason="request")
    if not signed:
        raise EnrollmentRefused("a certificate request is not signed by its own key.", reason="request")
    if extensions:
        raise EnrollmentRefused("a certificate request asks for extensions.", reason="request")
    return key


def _load_certificate(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise CertificateRefused("a certificate cannot be read.") from error


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now_unix: int, end_unix: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_moment(now_unix - CLOCK_SKEW_SECONDS))
        .not_valid_after(_moment(end_unix))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _moment(unix: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(unix, dt.UTC)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
