"""A certificate that was shown and not accepted: whose it is, and what its refusal means."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Self

from cryptography import x509

from fedloop_core.errors import CoordinatorUnreachable

__all__ = ["SeenCertificate", "refused_certificate"]

# X509_V_ERR_* of OpenSSL's x509_vfy.h
_NOT_YET_VALID, _EXPIRED, _SELF_SIGNED, _SELF_SIGNED_IN_CHAIN, _ISSUER_UNKNOWN = 9, 10, 18, 19, 20
_UNVERIFIABLE, _OTHER_NAME, _OTHER_ADDRESS = 21, 62, 64
_LONGEST_NAME = 120


@dataclass(frozen=True)
class SeenCertificate:
    """Names as the certificate gives them; ``not_before`` and ``not_after`` as dates for people."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    not_before: str
    not_after: str

    @classmethod
    def of(cls, der: bytes) -> Self:
        """Reads a certificate.

        Raises:
            ValueError: it is none.
        """
        certificate = x509.load_der_x509_certificate(der)
        return cls(
            _name(certificate.subject),
            _name(certificate.issuer),
            _alternatives(certificate),
            f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC",
            f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC",
        )


def refused_certificate(
    error: ssl.SSLCertVerificationError, target: str, seen: SeenCertificate | None, *, by_proxy: bool
) -> CoordinatorUnreachable:
    """Why a certificate was not accepted, whose was seen, and what to do."""
    authority = error.verify_code in {_SELF_SIGNED, _SELF_SIGNED_IN_CHAIN, _ISSUER_UNKNOWN, _UNVERIFIABLE}
    whose = "" if seen is None else f" The certificate seen is of {seen.subject}, by {seen.issuer}."
    match error.verify_code:
        case code if code == _EXPIRED:
            until = "" if seen is None else f" on {seen.not_after}"
            told = f"the certificate of {target} expired{until}."
            hint = "Compare this machine's clock; if it is right, tell the coordinator's people."
        case code if code == _NOT_YET_VALID:
            since = "" if seen is None else f" before {seen.not_before}"
            told = f"the certificate of {target} is not valid{since}."
            hint = "This machine's clock is probably behind: set it."
        case code if code in {_OTHER_NAME, _OTHER_ADDRESS}:
            names = ", ".join(seen.names) if seen is not None and seen.names else "another name"
            told = f"the certificate of {target} is for {names}.{whose}"
            hint = "Compare the address with what the coordinator's people say."
        case _ if authority:
            told = f"the certificate of {target} is not of this federation's authority.{whose}"
            between = "the proxy" if by_proxy else "a firewall"
            hint = f"Either this is another machine, or {between} opens TLS: ask for {target} to be left alone."
        case _:
            told = f"the certificate of {target} is not accepted: {error.verify_message}.{whose}"
            hint = "Tell the coordinator's people."
    return CoordinatorUnreachable(told, hint=hint, stage="tls", **({"cause": "authority"} if authority else {}))


def _name(name: x509.Name) -> str:
    """For a terminal: printable and short, whatever a stranger wrote."""
    text = "".join(c if c.isprintable() else "?" for c in name.rfc4514_string()) or "(no name)"
    return text[:_LONGEST_NAME]


def _alternatives(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    texts = (str(entry.value) for entry in found if isinstance(entry, x509.DNSName | x509.IPAddress))
    return tuple("".join(c if c.isprintable() else "?" for c in text)[:_LONGEST_NAME] for text in texts)[:10]
