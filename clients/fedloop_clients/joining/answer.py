"""What the coordinator answered: checked whole before any of it is used. Pure."""

from __future__ import annotations

from cryptography import x509

from fedloop_clients.home import Membership
from fedloop_clients.joining.address import Address
from fedloop_clients.joining.keys import public_key_of
from fedloop_core.errors import CertificateRefused, JoinRefused, UsageError
from fedloop_core.federation.join import JoinToken
from fedloop_core.federation.protocol import check_protocol
from fedloop_proto.membership.v1.membership_pb2 import JoinResponse

__all__ = ["check_authorities", "check_certificate", "membership_of"]

_KEY_BYTES = 32


def membership_of(response: JoinResponse, token: JoinToken, certificate_key: bytes, *, own: bool) -> Membership:
    """The membership that an answer gives to a site.

    Args:
        response: the coordinator's answer.
        token: what the site joined with.
        certificate_key: DER of the key that the certificate must be over.
        own: the certificate is the institution's own.

    Raises:
        JoinRefused: the answer is for another site or key, or lacks something; reason ``answer``.
        VersionRefused: the coordinator's generation is too far away.
    """
    check_protocol(response.protocol, peer="the coordinator")
    if response.site != token.site:
        raise _wrong(f"is for site {response.site[:70]!r}, not {token.site}")
    if len(response.coordinator_key) != _KEY_BYTES:
        raise _wrong("brings no coordinator key")
    try:
        Address.parse(response.fleet_address)
        Address.parse(response.hub_address)
        check_authorities(response.certificate_authority)
        if not own:
            check_certificate(response.certificate, certificate_key)
    except (UsageError, CertificateRefused) as error:
        raise _wrong(f"cannot be used: {error.message.removesuffix('.')}") from error
    return Membership(
        site=response.site,
        coordinator_key=response.coordinator_key.hex(),
        fleet_address=response.fleet_address,
        hub_address=response.hub_address,
        protocol=response.protocol,
        joined_unix=response.now_unix,
        own_authority=own,
    )


def check_certificate(chain: bytes, key: bytes) -> None:
    """A certificate over the site's own key (DER).

    Raises:
        CertificateRefused: it is none, or over another key.
    """
    if public_key_of(chain, "what the coordinator sent") != key:
        raise CertificateRefused("the coordinator sent a certificate over another key than this site's.")


def check_authorities(bundle: bytes) -> None:
    """At least one authority.

    Raises:
        CertificateRefused: there is none that can be read.
    """
    try:
        bundle.decode("ascii")
        found = x509.load_pem_x509_certificates(bundle)
    except ValueError as error:
        raise CertificateRefused("the coordinator sent authorities that cannot be read.") from error
    if not found:
        raise CertificateRefused("the coordinator sent no authority.")


def _wrong(why: str) -> JoinRefused:
    return JoinRefused(
        f"the coordinator's answer {why}.", hint="Nothing was stored: tell the coordinator's people.", reason="answer"
    )
