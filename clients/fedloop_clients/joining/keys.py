"""All keys of a site, made at the site, each in a file of its owner alone. No private key ever leaves its file."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)

from fedloop_clients.home import SiteHome
from fedloop_core.certificates import certificate_request, load_or_create_key
from fedloop_core.durable import write_bytes, write_secret
from fedloop_core.errors import CertificateRefused, FileMissing
from fedloop_core.keys import SigningKey

__all__ = ["OwnCertificate", "SiteKeys", "load_or_create_keys", "public_key_of", "public_side_of", "store_own_key"]

_SECRET_BYTES = 32


@dataclass(frozen=True)
class OwnCertificate:
    """A certificate of the institution's own authority: PEM with its chain, and the key in a file of its own."""

    chain: bytes
    key: bytes

    @classmethod
    def read(cls, certificate: Path, key: Path) -> OwnCertificate:
        """Reads both files.

        Raises:
            FileMissing: a file cannot be read.
            CertificateRefused: they hold something else, or do not fit one another.
        """
        try:
            chain, pem = certificate.read_bytes(), key.read_bytes()
        except OSError as error:
            raise FileMissing(f"cannot read {error.filename}: {error.strerror}.") from error
        if public_key_of(chain, str(certificate)) != public_side_of(pem, str(key)):
            raise CertificateRefused(f"the certificate in {certificate} is not over the key in {key}.")
        return cls(chain, pem)


@dataclass(frozen=True)
class SiteKeys:
    """The public sides: ``request`` is a PKCS#10 in PEM, ``node`` an OpenSSH public key, ``certificate_key`` a DER key."""

    request: bytes
    certificate_key: bytes
    node: bytes
    signing: SigningKey


def load_or_create_keys(home: SiteHome, own: OwnCertificate | None = None) -> SiteKeys:
    """The keys in the site's home; those that are not there are made, those that are there are kept.

    Args:
        home: the site's home; its folders are there.
        own: a certificate of the institution's own authority; then none of ours is asked for.

    Raises:
        CertificateRefused: a file holds something else than the key that it should.
        StorageError: a file cannot be written.
    """
    request, certificate_key = b"", b""
    if own is None:
        key = load_or_create_key(home.site_key)
        request = certificate_request(key)
        certificate_key = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    else:
        certificate_key = public_key_of(own.chain, "the institution's certificate")
    node = _node_key(home)
    signing = SigningKey.load_or_create(home.signing_key_file)
    if not home.superexec_secret.exists():
        write_secret(home.superexec_secret, secrets.token_hex(_SECRET_BYTES).encode())
    if not home.fingerprint_secret_file.exists():
        write_secret(home.fingerprint_secret_file, secrets.token_bytes(_SECRET_BYTES))
    return SiteKeys(request, certificate_key, node, signing)


def store_own_key(home: SiteHome, own: OwnCertificate) -> None:
    """Keeps the key of the institution's certificate, once the coordinator has accepted that.

    Raises:
        StorageError: it cannot be written.
    """
    if not home.site_key.exists() or home.site_key.read_bytes() != own.key:
        write_secret(home.site_key, own.key)


def public_key_of(chain: bytes, source: str) -> bytes:
    """DER SubjectPublicKeyInfo of the first certificate of a chain in PEM; ``source`` names it in the error.

    Raises:
        CertificateRefused: there is no certificate.
    """
    try:
        key = x509.load_pem_x509_certificate(chain).public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CertificateRefused(f"{source} is not a certificate in PEM.") from error
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def public_side_of(key: bytes, source: str) -> bytes:
    """DER SubjectPublicKeyInfo of a private key in PEM; ``source`` names it in the error.

    Raises:
        CertificateRefused: it is none, or encrypted.
    """
    try:
        private = load_pem_private_key(key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        hint = "A key that is encrypted must be given without its passphrase: the site starts without a person."
        raise CertificateRefused(f"{source} is not a private key in PEM.", hint=hint) from error
    return private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _node_key(home: SiteHome) -> bytes:
    """Public key of the SuperNode (ECDSA on P-384, as Flower asks), OpenSSH."""
    if home.node_key.exists():
        try:
            loaded = load_ssh_private_key(home.node_key.read_bytes(), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise CertificateRefused(f"{home.node_key} is not a private key of OpenSSH.") from error
        if not isinstance(loaded, ec.EllipticCurvePrivateKey) or not isinstance(loaded.curve, ec.SECP384R1):
            raise CertificateRefused(f"{home.node_key} is not an ECDSA key on P-384.", hint="Restore it from a backup.")
        key = loaded
    else:
        key = ec.generate_private_key(ec.SECP384R1())
        write_secret(home.node_key, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    if not home.node_key_public.exists() or home.node_key_public.read_bytes() != public:
        write_bytes(home.node_key_public, public)
    return public
