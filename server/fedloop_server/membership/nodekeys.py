"""Public keys that sites bring: how they are read, written and named."""

from __future__ import annotations

import hashlib

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)

from fedloop_core.errors import JoinRefused

__all__ = ["node_key_id", "node_key_openssh", "raw_key_id", "read_node_key"]

_MAXIMUM_BYTES = 1024
_CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)


def read_node_key(content: bytes, site: str) -> bytes:
    """A SuperNode's public key (OpenSSH) as Flower's header carries it: PEM of its SubjectPublicKeyInfo.

    Raises:
        JoinRefused: it is too long, not OpenSSH, or not an elliptic-curve key that Flower takes.
    """
    refused = JoinRefused(f"site {site}: the node key is not an ECDSA key in OpenSSH form.", reason="request")
    if len(content) > _MAXIMUM_BYTES:
        raise refused
    try:
        key = load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise refused from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, _CURVES):
        raise refused
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def node_key_openssh(pem: bytes) -> bytes:
    """The key as `flwr supernode register` reads it."""
    return load_pem_public_key(pem).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"


def node_key_id(pem: bytes) -> str:
    """Hex SHA-256 of the DER SubjectPublicKeyInfo, as for all our elliptic-curve keys."""
    der = load_pem_public_key(pem).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def raw_key_id(raw: bytes) -> str:
    """Hex SHA-256 of an Ed25519 key's 32 bytes: its ``key_id``."""
    return hashlib.sha256(raw).hexdigest()
