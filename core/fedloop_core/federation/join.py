"""The join token: one line of text by which one institution may become one site, once.

It carries what the site needs to reach its coordinator and to know it by: address, a secret that the coordinator keeps as a
digest only, and the certificate of the authority. Whoever has the text can join in the site's name: it expires, works once,
and people compare the authority's fingerprint by phone.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from google.protobuf.message import DecodeError

from fedloop_core.errors import JoinRefused
from fedloop_core.federation.names import is_site_name
from fedloop_core.fingerprints import fingerprint
from fedloop_proto.membership.v1.membership_pb2 import JoinTokenContent

__all__ = ["MAXIMUM_TOKEN_CHARACTERS", "JoinToken", "authority_fingerprint", "new_secret", "secret_digest"]

MAXIMUM_TOKEN_CHARACTERS = 16_384
"""Longest text that is read as a token."""

_PREFIX = "fedloop-join-1."
_CHECK_BYTES = 4
_SECRET_BYTES = 32


@dataclass(frozen=True)
class JoinToken:
    """A one-time token: ``address`` is host:port of the front, ``authority`` a certificate (DER)."""

    site: str
    address: str
    secret: str
    authority: bytes
    expires_unix: int

    @classmethod
    def parse(cls, text: str) -> JoinToken:
        """Reads the text form; white space that came with copying does not matter.

        Raises:
            JoinRefused: the text is no token, was cut or altered, or is of a newer form.
        """
        joined = "".join(text[: 2 * MAXIMUM_TOKEN_CHARACTERS].split())
        if not joined.startswith(_PREFIX) or len(joined) > MAXIMUM_TOKEN_CHARACTERS:
            raise JoinRefused(
                f"this is no join token: one begins with {_PREFIX.rstrip('.')}.",
                hint="Copy the whole line that `fedloop server site add` printed.",
                reason="format",
            )
        try:
            body = joined.removeprefix(_PREFIX)
            packed = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
            content, check = packed[:-_CHECK_BYTES], packed[-_CHECK_BYTES:]
            if hashlib.sha256(content).digest()[:_CHECK_BYTES] != check:
                raise _cut()
            read = JoinTokenContent.FromString(content)
            x509.load_der_x509_certificate(read.authority)
        except (binascii.Error, DecodeError, ValueError) as error:
            raise _cut() from error
        if not is_site_name(read.site) or not read.address or not read.secret:
            raise JoinRefused("the join token names no site, address or secret.", reason="format")
        return cls(read.site, read.address, read.secret, read.authority, read.expires_unix)

    def to_text(self) -> str:
        """The text form: a prefix, then the content with a checksum in base64 for addresses (RFC 4648 §5)."""
        content = JoinTokenContent(
            site=self.site,
            address=self.address,
            secret=self.secret,
            authority=self.authority,
            expires_unix=self.expires_unix,
        ).SerializeToString(deterministic=True)
        packed = content + hashlib.sha256(content).digest()[:_CHECK_BYTES]
        return _PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")

    def authority_pem(self) -> bytes:
        """The authority's certificate in PEM."""
        return x509.load_der_x509_certificate(self.authority).public_bytes(Encoding.PEM)

    def fingerprint(self) -> str:
        """The authority's fingerprint, for comparing by phone."""
        return authority_fingerprint(self.authority)


def authority_fingerprint(der: bytes) -> str:
    """The first 16 bytes of a certificate's SHA-256, in groups: ``AB12 CD34 …``."""
    return fingerprint(hashlib.sha256(der).digest())


def new_secret() -> str:
    """256 random bits as text."""
    return secrets.token_urlsafe(_SECRET_BYTES)


def secret_digest(secret: str) -> bytes:
    """What the coordinator keeps of a secret; the secret's own randomness makes a slow hash needless."""
    return hashlib.sha256(f"fedloop join token {secret}".encode()).digest()


def _cut() -> JoinRefused:
    return JoinRefused(
        "the join token was cut or altered.",
        hint="Copy the whole line again, or ask the coordinator for a new token.",
        reason="format",
    )
