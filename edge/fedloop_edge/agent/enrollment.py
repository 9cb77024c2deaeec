"""Enrolment: a one-time token and a certificate request for a membership; and its renewal."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from fedloop_core.certificates import certificate_request, certificate_validity, device_id_of_certificate
from fedloop_core.errors import CertificateRefused, EnrollmentRefused
from fedloop_edge.agent.config import AgentConfig
from fedloop_edge.agent.hub_client import call_enroll, call_renew
from fedloop_edge.agent.identity import Identity, Membership
from fedloop_proto.fleet.v1 import fleet_pb2

__all__ = ["enroll", "needs_renewal", "renew"]


def enroll(config: AgentConfig, identity: Identity, token: str, *, runtime: str, labels: Mapping[str, str]) -> None:
    """Enrols a device, or renews its certificate; what an earlier enrolment pinned stays pinned.

    Raises:
        HubUnreachable: no hub of the configured authority answers.
        HubRefused: the hub refuses the token.
        EnrollmentRefused: the hub's answer is for another key, authority, site or root than it may be.
        StorageError: the membership cannot be written.
    """
    request = fleet_pb2.EnrollRequest(
        token=token, certificate_request=certificate_request(identity.key), runtime=runtime, labels=dict(labels)
    )
    identity.accept(_membership(config, identity, call_enroll(config, request)))


def renew(config: AgentConfig, identity: Identity) -> None:
    """Gets a new certificate for the same key, without a token, also when the old one has expired.

    Raises:
        HubUnreachable: no hub of the configured authority answers.
        HubRefused: the hub does not know the key, or has revoked it.
        EnrollmentRefused: the hub's answer contradicts what was pinned.
        StorageError: the membership cannot be written.
        UsageError: the device is not enrolled.
    """
    _ = identity.membership
    request = fleet_pb2.RenewRequest(certificate_request=certificate_request(identity.key))
    identity.accept(_membership(config, identity, call_renew(config, request)))


def needs_renewal(membership: Membership, now_unix: int) -> bool:
    """Whether the last third of the certificate's life has begun."""
    start, end = certificate_validity(membership.certificate.encode())
    return now_unix > end - (end - start) // 3


def _membership(config: AgentConfig, identity: Identity, response: fleet_pb2.EnrollResponse) -> Membership:
    _check_certificates(config, identity, response)
    before = identity.membership if identity.enrolled else None
    if before is not None and before.site != response.site:
        raise EnrollmentRefused(
            f"the device belongs to site {before.site!r}; the hub is of site {response.site!r}.",
            hint="Give the device a new folder to move it to another site.",
            reason="site",
        )
    try:
        return Membership(
            format=1,
            device_id=identity.device_id,
            certificate=response.certificate_chain.decode(),
            certificate_authority=response.certificate_authority.decode(),
            trusted_root=before.trusted_root if before else response.trusted_root.decode(),
            group=response.group,
            site=response.site,
        )
    except (ValidationError, UnicodeDecodeError) as error:
        raise EnrollmentRefused("the hub's answer is not a membership.", reason="response") from error


def _check_certificates(config: AgentConfig, identity: Identity, response: fleet_pb2.EnrollResponse) -> None:
    try:
        certified = device_id_of_certificate(response.certificate_chain)
    except CertificateRefused as error:
        raise EnrollmentRefused("the hub's answer holds no certificate.", reason="response") from error
    if identity.device_id not in {certified} & {response.device_id}:
        raise EnrollmentRefused("the hub's certificate is for another key.", reason="key")
    if response.certificate_authority.strip() != config.certificate_authority.strip():
        raise EnrollmentRefused("the hub names another authority than the configured one.", reason="authority")
