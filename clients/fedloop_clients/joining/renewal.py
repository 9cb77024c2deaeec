"""A new certificate over the same key, and the coordinator's newest authorities, without touching any other site."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fedloop_clients.home import SiteHome
from fedloop_clients.joining.answer import check_authorities, check_certificate
from fedloop_clients.joining.front import FrontClient
from fedloop_clients.joining.keys import OwnCertificate, load_or_create_keys, store_own_key
from fedloop_core.certificates import certificate_expiry
from fedloop_core.durable import write_bytes
from fedloop_core.errors import StorageError, UsageError
from fedloop_proto.membership.v1.membership_pb2 import RenewRequest, RenewResponse

__all__ = ["RENEW_PATH", "Renewal", "renew"]

RENEW_PATH = "/v1/membership/renew"


@dataclass(frozen=True)
class Renewal:
    """Until when the new certificate holds, and how far the site's clock is ahead."""

    expires_unix: int
    skew_seconds: int


def renew(home: SiteHome, *, own: OwnCertificate | None = None, clock: Callable[[], float] = time.time) -> Renewal:
    """Renews the site's certificate; an interruption leaves the old one, or the new one, whole.

    Args:
        home: a site that has joined.
        own: a new certificate of the institution's own authority.
        clock: seconds since 1970.

    Raises:
        NotSetUp: the site has not joined.
        UsageError: the site's certificate is the institution's own, and no new one is given.
        SiteRevoked, JoinRefused, ClockSkewed, VersionRefused, RequestRefused: the coordinator refuses.
        CoordinatorUnreachable: the way is closed; says at which stage.
        CertificateRefused: a key file is damaged, or the answer is not for this site's key.
        StorageError: the disk is full or the folder cannot be written.
    """
    membership = home.membership()
    if membership.own_authority and own is None:
        raise UsageError(
            f"the certificate of site {membership.site} is the institution's own: the coordinator cannot renew it.",
            hint="Give the new one with --certificate FILE --key FILE.",
        )
    keys = load_or_create_keys(home, own)
    request = RenewRequest(site=membership.site, certificate_request=keys.request, signed_unix=int(clock()))
    if own is not None:
        request.certificate_chain = own.chain
    request.signature = keys.signing.sign(request.SerializeToString(deterministic=True))
    front = FrontClient(membership.fleet_address, _read(home), home.settings.proxy)
    answer = front.post(RENEW_PATH, request, RenewResponse)
    certificate = answer.certificate if own is None else own.chain
    check_authorities(answer.certificate_authority)
    check_certificate(certificate, keys.certificate_key)
    if answer.certificate_authority != _read(home):  # the supervisor restarts Flower's process when it changes
        write_bytes(home.authorities, answer.certificate_authority)
    if own is not None:
        store_own_key(home, own)
    write_bytes(home.site_certificate, certificate)
    return Renewal(certificate_expiry(certificate), int(clock()) - answer.now_unix)


def _read(home: SiteHome) -> bytes:
    try:
        return home.authorities.read_bytes()
    except OSError as error:
        raise StorageError(
            f"cannot read {home.authorities}: {error.strerror}.", hint="Restore it from a backup, or join again."
        ) from error
