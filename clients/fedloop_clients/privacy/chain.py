"""The ledger's hash chain, as bytes: what an entry's digest covers, and what its signature does.

An entry's digest covers the digest of the entry before it, so one signature over the newest digest vouches for every entry.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from fedloop_core.keys import SigningKey, VerifyingKey

__all__ = ["EMPTY", "Head", "LedgerRow", "digest_after", "sign_digest", "signs_digest"]

_DOMAIN = b"fedloop ledger entry\0"  # so that no signature on anything else can stand here


@dataclass(frozen=True)
class Head:
    """Number and digest of the newest entry; (0, 32 zero bytes) before the first."""

    sequence: int
    digest: bytes


EMPTY = Head(0, bytes(32))


@dataclass(frozen=True)
class LedgerRow:
    """An entry as it lies in the file: its number, its JSON, its digest, and 64 bytes of signature or none."""

    sequence: int
    body: bytes
    digest: bytes
    signature: bytes | None


def digest_after(previous: Head, body: bytes) -> bytes:
    """SHA-256 over the digest before (32 bytes), the number of the entry (8 bytes, big endian) and its JSON."""
    return hashlib.sha256(previous.digest + (previous.sequence + 1).to_bytes(8, "big") + body).digest()


def sign_digest(digest: bytes, key: SigningKey) -> bytes:
    """An Ed25519 signature over an entry, and so over all before it."""
    return key.sign(_DOMAIN + digest)


def signs_digest(signature: bytes, digest: bytes, key: VerifyingKey) -> bool:
    """Whether the signature is this key's over the entry of this digest."""
    return key.verifies(signature, _DOMAIN + digest)
