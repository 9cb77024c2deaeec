"""Enrolment: a one-time token and a certificate request for a membership."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from fedloop_core.certificates import certificate_request, device_id_of_certificate
from fedloop_core.errors import CertificateRefused, EnrollmentRefused
from fedloop_edge.agent.config import AgentConfig
from fedloop_edge.agent.hub_client import call_enroll
from fedloop_edge.agent.identity import Identity, Membership
from fedloop_proto.fleet.v1 import fleet_pb2

__all__ = ["enroll"]


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
    response = call_enroll(config, request)
    _check_certificates(config, identity, response)
    before = identity.membership if identity.enrolled else None
    if before is not None and before.site != response.site:
        raise EnrollmentRefused(
            f"the device belongs to site {before.site!r}; the hub is of site {response.site!r}.",
            hint="Give the device a new folder to move it to another site.",
            reason="site",
        )
    try:
        membership = Membership(
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
    identity.accept(membership)


def _check_certificates(config: AgentConfig, identity: Identity, response: fleet_pb2.EnrollResponse) -> None:
    try:
        certified = device_id_of_certificate(response.certificate_chain)
    except CertificateRefused as error:
        raise EnrollmentRefused("the hub's answer holds no certificate.", reason="response") from error
    if identity.device_id not in {certified} & {response.device_id}:
        raise EnrollmentRefused("the hub's certificate is for another key.", reason="key")
    if response.certificate_authority.strip() != config.certificate_authority.strip():
        raise EnrollmentRefused("the hub names another authority than the configured one.", reason="authority")
