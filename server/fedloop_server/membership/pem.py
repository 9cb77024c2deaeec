"""Several certificates in one text, and chains that institutions bring."""

from __future__ import annotations

import datetime as dt
import hashlib

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import (
    Criticality,
    ExtensionPolicy,
    PolicyBuilder,
    Store,
    VerificationError,
)

from fedloop_core.errors import CertificateRefused, JoinRefused

__all__ = ["checked_chain", "first_der", "public_key_id", "read_authorities", "split_pem"]

_MAXIMUM_BYTES = 32 << 10
_MAXIMUM_CERTIFICATES = 5
_MAXIMUM_AUTHORITIES = 20
_SMALLEST_RSA = 2048


def split_pem(content: bytes) -> tuple[bytes, ...]:
    """Each certificate of a text as PEM of its own; none of an empty text.

    Raises:
        CertificateRefused: something in it is no certificate.
    """
    if not content.strip():
        return ()
    try:
        return tuple(one.public_bytes(Encoding.PEM) for one in x509.load_pem_x509_certificates(content))
    except ValueError as error:
        raise CertificateRefused("a certificate cannot be read.", hint="Give certificates in PEM.") from error


def first_der(content: bytes) -> bytes:
    """DER of the first certificate.

    Raises:
        CertificateRefused: there is none.
    """
    parts = split_pem(content)
    if not parts:
        raise CertificateRefused("there is no certificate in this text.")
    return x509.load_pem_x509_certificate(parts[0]).public_bytes(Encoding.DER)


def public_key_id(pem: bytes) -> str:
    """Hex SHA-256 of the DER SubjectPublicKeyInfo of the first certificate's key."""
    key = x509.load_pem_x509_certificates(pem)[0].public_key()
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def read_authorities(content: bytes, name: str) -> bytes:
    """An institution's authorities (PEM), checked; ``name`` is the file's, for the sentence.

    Raises:
        CertificateRefused: there is none, there are too many, or one may sign no certificates.
    """
    parts = split_pem(content)
    if not 0 < len(parts) <= _MAXIMUM_AUTHORITIES:
        raise CertificateRefused(f"{name} holds {len(parts)} certificates; 1 to {_MAXIMUM_AUTHORITIES} are taken.")
    for pem in parts:
        certificate = x509.load_pem_x509_certificate(pem)
        if not _may_sign(certificate):
            raise CertificateRefused(
                f"{name} holds a certificate that is no authority: {certificate.subject.rfc4514_string()[:100]}.",
                hint="Give the certificate of the authority, not that of a server or a site.",
            )
    return b"".join(parts)


def checked_chain(chain: bytes, authority: bytes, *, site: str, now_unix: int) -> bytes:
    """A client certificate from an institution's own authority, with its intermediates, PEM.

    Args:
        chain: the site's certificate first.
        authority: whom the coordinator trusts for this site; empty for nobody.
        site: its name.
        now_unix: seconds.

    Raises:
        JoinRefused: the chain is too long, unreadable, expired, not for clients, or does not lead to the authority.
    """
    refused = JoinRefused(
        f"site {site}: its certificate does not lead to the authority that was given when the site was added.",
        hint="Compare `fedloop server site show` with the certificate's issuer.",
        reason="certificate",
    )
    if not authority or len(chain) > _MAXIMUM_BYTES:
        raise refused
    try:
        leaf, *between = x509.load_pem_x509_certificates(chain)
        if len(between) >= _MAXIMUM_CERTIFICATES:
            raise refused
        policy = (
            PolicyBuilder()
            .store(Store(x509.load_pem_x509_certificates(authority)))
            .time(dt.datetime.fromtimestamp(now_unix, dt.UTC))
            .extension_policies(ca_policy=ExtensionPolicy.webpki_defaults_ca(), ee_policy=_leaf_policy())
        )
        policy.build_client_verifier().verify(leaf, between)
    except (ValueError, VerificationError) as error:
        raise refused from error
    _check_leaf(leaf, site)
    return b"".join(one.public_bytes(Encoding.PEM) for one in (leaf, *between))


def _may_sign(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


def _leaf_policy() -> ExtensionPolicy:
    """The name of a site is in our database: its certificate needs no alternative names."""
    return ExtensionPolicy.permit_all().may_be_present(x509.ExtendedKeyUsage, Criticality.AGNOSTIC, None)


def _check_leaf(leaf: x509.Certificate, site: str) -> None:
    key = leaf.public_key()
    strong = isinstance(key, ec.EllipticCurvePublicKey) or (
        isinstance(key, rsa.RSAPublicKey) and key.key_size >= _SMALLEST_RSA
    )
    try:
        purposes = set(leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        purposes = {ExtendedKeyUsageOID.CLIENT_AUTH}
    except ValueError:
        purposes = set()
    if not strong or _may_sign(leaf) or ExtendedKeyUsageOID.CLIENT_AUTH not in purposes:
        raise JoinRefused(
            f"site {site}: its certificate is not for clients, is an authority's, or its key is weak.",
            hint="Ask the institution's authority for a certificate with the purpose clientAuth over P-256 or RSA 2048.",
            reason="certificate",
        )
