"""Where sites join and renew: every request is checked here, whatever the front let through."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import Message

from fedloop_core.audit import AuditAction, AuditLog
from fedloop_core.certificates import certificate_expiry, certificate_fingerprint, request_key_id
from fedloop_core.errors import ClockSkewed, EnrollmentRefused, FedloopError, JoinRefused, SiteRevoked, TrustError
from fedloop_core.federation.join import secret_digest
from fedloop_core.federation.names import is_site_name
from fedloop_core.federation.protocol import PROTOCOL, check_protocol
from fedloop_core.keys import VerifyingKey
from fedloop_proto.membership.v1.membership_pb2 import JoinRequest, JoinResponse, RenewRequest, RenewResponse
from fedloop_server.membership import machine
from fedloop_server.membership.authorities import Authorities, bundle_name
from fedloop_server.membership.machine import SiteKeys
from fedloop_server.membership.members import Members
from fedloop_server.membership.nodekeys import node_key_id, raw_key_id, read_node_key
from fedloop_server.membership.pem import checked_chain, public_key_id
from fedloop_server.membership.records import IssuedCertificate, JoinedSite, SiteRecord
from fedloop_server.rates import Rates
from fedloop_server.settings import ServerSettings

__all__ = ["MembershipDesk"]

_KEY_BYTES = 32
_LONGEST_TEXT = 200
_OLDEST_RENEWAL_SECONDS = 86_400
_SKEW_SECONDS = 300
_AUDITED_PER_SECOND = 0.1  # refusals, from everywhere together: a stranger must not fill the disk
_AUDITED_BURST = 100
_TRIES_PER_SECOND = 0.2  # failures of one address
_TRIES_BURST = 20


@dataclass(frozen=True)
class _Credential:
    key_id: str
    certificate: IssuedCertificate


class MembershipDesk:
    """Answers JoinRequest and RenewRequest. Threads may share it.

    Args:
        members: the sites.
        authorities: who signs their certificates.
        settings: addresses that sites are told, days of certificates.
        coordinator_key: what sites pin.
        audit: takes what happened.
        clock: Unix seconds.
    """

    def __init__(
        self,
        members: Members,
        authorities: Authorities,
        settings: ServerSettings,
        coordinator_key: VerifyingKey,
        audit: AuditLog,
        *,
        clock: Callable[[], int] = lambda: int(time.time()),
    ) -> None:
        self._members = members
        self._authorities = authorities
        self._settings = settings
        self._coordinator_key = coordinator_key
        self._audit = audit
        self._clock = clock
        self._audited = Rates(_AUDITED_PER_SECOND, _AUDITED_BURST)
        self._tries = Rates(_TRIES_PER_SECOND, _TRIES_BURST)

    def handle_join(self, request: JoinRequest, address: str = "") -> JoinResponse:
        """Admits a site that holds a token, or tells a site again what it was told; ``address`` is where it called from.

        Raises:
            JoinRefused: the token or the request is not right; ``reason`` says what.
            VersionRefused: the site's software is too old or too new.
            StorageError: the database or the disk fails.
        """
        try:
            record = self._join(request)
        except TrustError as error:
            raise self._refused(error, "join", request.site, address) from None
        response = JoinResponse(
            site=record.name,
            certificate=self._members.certificate(record.name),
            certificate_authority=self._authorities.bundle(),
            coordinator_key=self._coordinator_key.raw,
            fleet_address=self._settings.front.public,
            hub_address=self._settings.hub.public,
            protocol=PROTOCOL,
            now_unix=self._clock(),
        )
        self._audit.record(
            f"site:{record.name}",
            AuditAction.SITE_JOINED,
            record.name,
            address=address,
            certificate=record.certificate_fingerprint,
            signing_key=raw_key_id(record.signing_key),
        )
        return response

    def handle_renew(self, request: RenewRequest, address: str = "") -> RenewResponse:
        """A new certificate for a site that signs with its key; also after its certificate has expired.

        Raises:
            JoinRefused: the site is not known, or the request is not right; ``reason`` says what.
            SiteRevoked: the site was revoked or has left.
            ClockSkewed: the site's clock is ahead.
            StorageError: the database or the disk fails.
        """
        try:
            record = self._renew(request)
        except TrustError as error:
            raise self._refused(error, "renew", request.site, address) from None
        self._audit.record(
            f"site:{record.name}",
            AuditAction.SITE_RENEWED,
            record.name,
            address=address,
            certificate=record.certificate_fingerprint,
            expires_unix=record.certificate_expiry_unix,
        )
        return RenewResponse(
            certificate=self._members.certificate(record.name),
            certificate_authority=self._authorities.bundle(),
            now_unix=self._clock(),
        )

    def _join(self, request: JoinRequest) -> SiteRecord:
        _check_shape(request.token_secret, request.software_version, request.site)
        _check_possession(request)
        digest = secret_digest(request.token_secret)
        site = self._members.invitation(digest).site
        try:
            check_protocol(request.protocol, peer=f"site {site}")
            if request.site not in ("", site):
                raise JoinRefused(
                    f"site {site}: the token is not for {request.site}.",
                    hint="Use the token that was made for this site.",
                    reason="site",
                )
            node_key = read_node_key(request.node_key, site)
            key_id = self._requested_key(request.certificate_request, request.certificate_chain, site)
            keys = SiteKeys(key_id, node_key_id(node_key), raw_key_id(request.signing_key))
            authorities = self._authorities.bundle()
            return self._members.record_join(
                digest, keys, lambda name: self._joined(request, name, node_key), bundle_name(authorities)
            )
        except JoinRefused:
            self._members.count_try(digest)
            raise

    def _joined(self, request: JoinRequest, site: str, node_key: bytes) -> JoinedSite:
        return JoinedSite(
            node_key=node_key,
            signing_key=request.signing_key,
            certificate=self._credential(request.certificate_request, request.certificate_chain, site).certificate,
            protocol=request.protocol,
            software_version=request.software_version,
        )

    def _renew(self, request: RenewRequest) -> SiteRecord:
        _check_shape(request.site)
        record = self._members.find(request.site) if is_site_name(request.site) else None
        signed = RenewRequest()
        signed.CopyFrom(request)
        signed.ClearField("signature")
        if (
            record is None
            or not record.signing_key
            or not VerifyingKey(record.signing_key).verifies(request.signature, _bytes(signed))
        ):
            raise JoinRefused(
                "a renewal is not signed by the key of a site that is known here.",
                hint="Join with a new token.",
                reason="signature",
            )
        machine.check_active(machine.Membership(record.name, record.state))
        self._check_time(record.name, request.signed_unix)
        credential = self._credential(request.certificate_request, request.certificate_chain, record.name)
        return self._members.record_renewal(record.name, credential.certificate, credential.key_id, request.signed_unix)

    def _check_time(self, site: str, signed_unix: int) -> None:
        ahead = signed_unix - self._clock()
        if ahead > _SKEW_SECONDS:
            raise ClockSkewed(
                f"site {site}: its clock is {ahead} s ahead.", hint="Set the clock, then renew.", seconds=ahead
            )
        if -ahead > _OLDEST_RENEWAL_SECONDS:
            raise JoinRefused(
                f"site {site}: a renewal was signed {-ahead} s ago.", hint="Sign a new request.", reason="expired"
            )

    def _requested_key(self, request: bytes, chain: bytes, site: str) -> str:
        if request and chain:
            raise JoinRefused(f"site {site}: brings a certificate and asks for one.", reason="request")
        try:
            return public_key_id(self._own_chain(chain, site)) if chain else request_key_id(request)
        except EnrollmentRefused as error:
            raise JoinRefused(f"site {site}: {error.message}", reason="request") from error

    def _credential(self, request: bytes, chain: bytes, site: str) -> _Credential:
        key_id = self._requested_key(request, chain, site)
        if chain:
            pem = self._own_chain(chain, site)
        else:
            pem = self._authorities.issue_site(request, site, days=self._settings.sites.certificate_days)
        return _Credential(key_id, IssuedCertificate(pem, certificate_fingerprint(pem), certificate_expiry(pem)))

    def _own_chain(self, chain: bytes, site: str) -> bytes:
        return checked_chain(chain, self._members.site(site).authority, site=site, now_unix=self._clock())

    def _refused(self, error: TrustError, what: str, site: str, address: str) -> FedloopError:
        """Writes a refusal down, as long as there are not too many, and gives what the caller is told."""
        now = time.monotonic()
        if not isinstance(error, SiteRevoked) and not self._tries.take(address, now):
            return JoinRefused("too many tries from this address.", hint="Wait a minute.", reason="tries")
        if self._audited.take("", now):
            self._audit.record(
                f"address:{address or 'unknown'}",
                AuditAction.REQUEST_REFUSED,
                site if is_site_name(site) else "unknown",
                request=what,
                code=error.code,
                reason=str(error.fields.get("reason", "")),
            )
        return error


def _check_shape(*texts: str) -> None:
    if any(len(text) > _LONGEST_TEXT for text in texts):
        raise JoinRefused("a request holds a text that is too long.", reason="request")


def _check_possession(request: JoinRequest) -> None:
    """The sender holds the signing key, and signed exactly this request with it."""
    signed = JoinRequest()
    signed.CopyFrom(request)
    signed.ClearField("possession")
    key = request.signing_key
    if len(key) != _KEY_BYTES or not VerifyingKey(key).verifies(request.possession, _bytes(signed)):
        raise JoinRefused("a request to join is not signed by the signing key that it brings.", reason="possession")


def _bytes(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)
