"""Ed25519 keys and the envelopes that carry instructions to sites."""

from __future__ import annotations

import hashlib
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from google.protobuf.message import DecodeError

from fedloop_core.durable import write_secret
from fedloop_core.errors import EnvelopeRefused
from fedloop_proto.coordination.v1.coordination_pb2 import Envelope, Instruction

__all__ = ["SigningKey", "VerifyingKey", "seal", "unseal"]


class VerifyingKey:
    """A public Ed25519 key; ``key_id`` is the hex SHA-256 of its 32 raw bytes."""

    def __init__(self, raw: bytes) -> None:
        self._key = Ed25519PublicKey.from_public_bytes(raw)
        self.raw = raw
        self.key_id = hashlib.sha256(raw).hexdigest()

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether the signature is this key's over exactly this message."""
        try:
            self._key.verify(signature, message)
        except InvalidSignature:
            return False
        return True


class SigningKey:
    """A private Ed25519 key; kept in a PEM file readable by its owner alone."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.verifying = VerifyingKey(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))

    @classmethod
    def generate(cls) -> SigningKey:
        """A fresh key from the system's random source."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load_or_create(cls, path: Path) -> SigningKey:
        """The key in ``path``; made and stored (0600) when the file is not there."""
        if path.exists():
            key = load_pem_private_key(path.read_bytes(), password=None)
            if not isinstance(key, Ed25519PrivateKey):
                raise EnvelopeRefused(f"{path} is not an Ed25519 key.", reason="key")
            return cls(key)
        made = cls.generate()
        write_secret(path, made.pem())
        return made

    def pem(self) -> bytes:
        """PKCS#8 PEM, not encrypted: write it only with ``write_secret``."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def sign(self, message: bytes) -> bytes:
        """64 bytes of signature."""
        return self._key.sign(message)


def seal(instruction: Instruction, key: SigningKey) -> bytes:
    """Serialises and signs an instruction; returns the serialised envelope."""
    body = instruction.SerializeToString(deterministic=True)
    envelope = Envelope(instruction=body, signature=key.sign(body), key_id=key.verifying.key_id)
    return envelope.SerializeToString(deterministic=True)


def unseal(content: bytes, pinned: VerifyingKey, *, site: str, now_unix: int) -> tuple[Instruction, bytes]:
    """Opens an envelope at a site; returns the instruction and the SHA-256 of its bytes.

    Raises:
        EnvelopeRefused: not an envelope, not signed by the pinned key, for another site, expired, or without an expiry.
    """
    try:
        envelope = Envelope.FromString(content)
        if envelope.key_id != pinned.key_id or not pinned.verifies(envelope.signature, envelope.instruction):
            raise EnvelopeRefused(
                f"site {site}: an instruction is not signed by the coordinator key pinned when the site joined.",
                hint="Nothing was done. If the coordinator's key was changed, join again with a new token.",
                reason="signature",
            )
        instruction = Instruction.FromString(envelope.instruction)
    except DecodeError as error:
        raise EnvelopeRefused(f"site {site}: an instruction cannot be read.", reason="format") from error
    if instruction.site != site:
        raise EnvelopeRefused(f"site {site}: an instruction is for site {instruction.site!r}.", reason="site")
    if instruction.expires_unix <= 0:  # it could be replayed for ever
        raise EnvelopeRefused(f"site {site}: an instruction says no time at which it expires.", reason="expiry")
    if now_unix > instruction.expires_unix:
        raise EnvelopeRefused(
            f"site {site}: an instruction expired {now_unix - instruction.expires_unix} s ago.",
            hint="Compare the clocks of site and coordinator.",
            reason="expired",
        )
    return instruction, hashlib.sha256(envelope.instruction).digest()
