"""Keys of a site for one instance, and what two sites derive from theirs.

X25519 (RFC 7748), HKDF-SHA256 (RFC 5869) and ChaCha20-Poly1305 (RFC 8439), all of ``cryptography``.
"""

from __future__ import annotations

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedloop_core.errors import SecureAggregationRefused
from fedloop_core.secure_aggregation.identity import Instance
from fedloop_core.secure_aggregation.messages import KEY_BYTES, SEALED_BYTES, SEED_BYTES
from fedloop_core.secure_aggregation.transcript import labelled

__all__ = ["KeyPair", "open_shares", "pair_key", "seal_shares", "self_key"]

_NONCE_BYTES = 12


class KeyPair:
    """A private X25519 key; it is neither printed nor pickled."""

    __slots__ = ("_key", "public")

    def __init__(self, key: X25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> KeyPair:
        """A fresh one from the system's random source."""
        return cls(X25519PrivateKey.generate())

    @classmethod
    def from_secret(cls, secret: bytes) -> KeyPair:
        """The one with these 32 bytes, put together from shares."""
        return cls(X25519PrivateKey.from_private_bytes(secret))

    def secret(self) -> bytes:
        """The 32 private bytes, to be shared out."""
        return self._key.private_bytes_raw()

    def derive(self, peer: bytes, *, salt: bytes, info: bytes, site: str) -> bytes:
        """32 bytes that only this key and the peer's know.

        Raises:
            SecureAggregationRefused: the peer's key gives every partner the same secret; ``site`` is whose it is.
        """
        try:
            shared = self._key.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError as error:  # a point of low order
            raise SecureAggregationRefused(f"a key of site {site} is none.", reason="key", peer=site) from error
        return HKDF(SHA256(), KEY_BYTES, salt, info).derive(shared)

    def __reduce__(self) -> str:
        """Refuses to be copied to where it would outlive the instance."""
        raise TypeError("a private key is never serialised")


def pair_key(own: KeyPair, peer: bytes, *, members: bytes, instance: Instance, site: str, other: str) -> bytes:
    """The key of the mask between two sites, the same at both; ``members`` is the transcript."""
    first, second = sorted((site, other))
    info = labelled("pair mask", instance.run_id, instance.round, instance.number, first, second)
    return own.derive(peer, salt=members, info=info, site=other)


def self_key(seed: bytes, *, members: bytes, instance: Instance, site: str) -> bytes:
    """The key of a site's self-mask."""
    info = labelled("self mask", instance.run_id, instance.round, instance.number, site)
    return HKDF(SHA256(), KEY_BYTES, members, info).derive(seed)


def seal_shares(
    own: KeyPair, peer: bytes, shares: tuple[bytes, bytes], *, cohort: bytes, instance: Instance, way: tuple[str, str]
) -> bytes:
    """Seals the shares of a seed and of a mask key for one receiver.

    Args:
        own: channel key of the sender.
        peer: channel key of the receiver.
        shares: of the seed and of the mask key.
        cohort: the transcript.
        instance: in which they are shared.
        way: sender and receiver.
    """
    label = _channel(instance, way)
    key = own.derive(peer, salt=cohort, info=label, site=way[1])
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, b"".join(shares), label + cohort)


def open_shares(
    own: KeyPair, peer: bytes, sealed: bytes, *, cohort: bytes, instance: Instance, way: tuple[str, str]
) -> tuple[bytes, bytes]:
    """Opens what ``seal_shares`` has sealed; the receiver's key is ``own``, the sender's ``peer``.

    Raises:
        SecureAggregationRefused: it was not sealed by this sender for this receiver under this transcript.
    """
    label = _channel(instance, way)
    if len(sealed) != SEALED_BYTES:
        raise SecureAggregationRefused(f"shares of site {way[0]} have a wrong length.", reason="shares", peer=way[0])
    key = own.derive(peer, salt=cohort, info=label, site=way[0])
    try:
        content = ChaCha20Poly1305(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], label + cohort)
    except InvalidTag as error:
        raise SecureAggregationRefused(
            f"shares of site {way[0]} for site {way[1]} were changed, or sealed under other terms.",
            hint="Sites may have been told different models, terms or members.",
            reason="shares",
            peer=way[0],
        ) from error
    return content[:SEED_BYTES], content[SEED_BYTES:]


def _channel(instance: Instance, way: tuple[str, str]) -> bytes:
    return labelled("channel", instance.run_id, instance.round, instance.number, *way)
