"""Joining and renewing over TLS: what works, what is refused, and what a lost answer does."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.membership.coordinators import Coordinator, Refused, SiteEnd

from fedloop_core.audit import AuditAction
from fedloop_core.certificates import certificate_request, certificate_validity
from fedloop_core.federation.join import JoinToken
from fedloop_core.keys import SigningKey
from fedloop_proto.membership.v1 import membership_pb2 as messages
from fedloop_server.membership import SiteState

Make = Callable[..., Coordinator]


def test_a_site_joins_once_and_is_told_all_it_needs(coordinator: Coordinator) -> None:
    token = JoinToken.parse(coordinator.invite("north").to_text())
    site = SiteEnd("north")
    answer = coordinator.join(token, site.join_request(token.secret))
    settings = coordinator.home.settings
    assert answer.site == "north"
    assert (answer.fleet_address, answer.hub_address) == (settings.front.public, settings.hub.public)
    assert answer.coordinator_key == coordinator.home.envelope_key.verifying.raw
    assert answer.certificate_authority == token.authority_pem()
    certificate = x509.load_pem_x509_certificate(answer.certificate)
    assert certificate.subject.rfc4514_string() == "CN=north"
    assert certificate.public_key() == site.key.public_key()
    begin, end = certificate_validity(answer.certificate)
    assert 89 <= (end - begin) / 86_400 <= 91
    record = coordinator.members.site("north")
    assert record.state is SiteState.ACTIVE
    assert record.signing_key == site.signing.verifying.raw
    assert record.node_key == site.node.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    assert coordinator.members.by_node_key(record.node_key) == record
    joined = [entry for entry in coordinator.home.audit().entries() if entry.action is AuditAction.SITE_JOINED]
    assert [entry.subject for entry in joined] == ["north"]
    assert joined[0].details["address"] == "127.0.0.1"


def test_a_lost_answer_is_given_again_and_only_to_the_same_keys(coordinator: Coordinator) -> None:
    token = coordinator.invite("north")
    site = SiteEnd("north")
    first = coordinator.join(token, site.join_request(token.secret))
    again = coordinator.join(token, site.join_request(token.secret))
    assert again.certificate == first.certificate
    with pytest.raises(Refused) as refused:
        coordinator.join(token, SiteEnd("north").join_request(token.secret))
    assert (refused.value.code, refused.value.reason) == ("FL-TRUST-007", "used")
    coordinator.members.revoke("north", "test")
    with pytest.raises(Refused) as refused:
        coordinator.join(token, site.join_request(token.secret))
    assert refused.value.reason == "unknown"


def test_a_token_is_kept_as_a_digest_only(coordinator: Coordinator) -> None:
    token = coordinator.invite("north")
    coordinator.members.database.close()
    for path in coordinator.home.folder.rglob("*"):
        if path.is_file():
            assert token.secret.encode() not in path.read_bytes(), path


def _altered(content: bytes) -> bytes:
    der = bytearray(x509.load_pem_x509_csr(content).public_bytes(Encoding.DER))
    der[-1] ^= 1
    return x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM)


def _other_site(c: Coordinator, site: SiteEnd, token: JoinToken) -> messages.JoinRequest:
    return site.join_request(c.invite("south").secret)


def _taken_keys(c: Coordinator, site: SiteEnd, token: JoinToken) -> messages.JoinRequest:
    south = c.joined("south")
    return site.join_request(token.secret, node_key=south.node_key)


def _unsigned(c: Coordinator, site: SiteEnd, token: JoinToken) -> messages.JoinRequest:
    request = site.join_request(token.secret)
    request.possession = b""
    return request


def _changed_after_signing(c: Coordinator, site: SiteEnd, token: JoinToken) -> messages.JoinRequest:
    request = site.join_request(token.secret)
    request.node_key = SiteEnd("x").node_key
    return request


def _withdrawn(c: Coordinator, site: SiteEnd, token: JoinToken) -> messages.JoinRequest:
    c.members.withdraw_token("north")
    return site.join_request(token.secret)


def _replaced(c: Coordinator, site: SiteEnd, token: JoinToken) -> messages.JoinRequest:
    c.invite("north")
    return site.join_request(token.secret)


def _expired(c: Coordinator, site: SiteEnd, token: JoinToken) -> messages.JoinRequest:
    return site.join_request(c.invite("north", seconds=-1).secret)


def _used(c: Coordinator, site: SiteEnd, token: JoinToken) -> messages.JoinRequest:
    c.join(token, SiteEnd("north").join_request(token.secret))
    return site.join_request(token.secret)


def _with(**changes: Any) -> Callable[[Coordinator, SiteEnd, JoinToken], messages.JoinRequest]:
    return lambda c, site, token: site.join_request(token.secret, **changes)


def _rsa_node_key() -> bytes:
    key = rsa.generate_private_key(65537, 2048).public_key()
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


ATTACKS: dict[str, tuple[Callable[[Coordinator, SiteEnd, JoinToken], messages.JoinRequest], str, str]] = {
    "unknown token": (lambda c, site, token: site.join_request("guess"), "FL-TRUST-007", "unknown"),
    "empty token": (lambda c, site, token: site.join_request(""), "FL-TRUST-007", "unknown"),
    "expired token": (_expired, "FL-TRUST-007", "expired"),
    "used token": (_used, "FL-TRUST-007", "used"),
    "withdrawn token": (_withdrawn, "FL-TRUST-007", "unknown"),
    "replaced token": (_replaced, "FL-TRUST-007", "unknown"),
    "token of another site": (_other_site, "FL-TRUST-007", "site"),
    "no proof of possession": (_unsigned, "FL-TRUST-007", "possession"),
    "changed after it was signed": (_changed_after_signing, "FL-TRUST-007", "possession"),
    "signing key of the wrong length": (_with(signing_key=b"short"), "FL-TRUST-007", "possession"),
    "altered certificate request": (
        lambda c, site, token: site.join_request(
            token.secret, certificate_request=_altered(certificate_request(site.key))
        ),
        "FL-TRUST-007",
        "request",
    ),
    "no certificate request": (_with(certificate_request=b""), "FL-TRUST-007", "request"),
    "request that is too long": (_with(certificate_request=b"x" * 9000), "FL-TRUST-007", "request"),
    "node key that is junk": (_with(node_key=b"ssh-ed25519 AAAA"), "FL-TRUST-007", "request"),
    "node key that is too long": (_with(node_key=b"x" * 2000), "FL-TRUST-007", "request"),
    "node key that is RSA": (
        lambda c, site, token: site.join_request(token.secret, node_key=_rsa_node_key()),
        "FL-TRUST-007",
        "request",
    ),
    "node key of another site": (_taken_keys, "FL-TRUST-007", "keys"),
    "certificate of nobody's authority": (
        _with(certificate_request=b"", certificate_chain=b"junk"),
        "FL-TRUST-007",
        "certificate",
    ),
    "text that is too long": (_with(software_version="x" * 300), "FL-TRUST-007", "request"),
    "a generation too new": (_with(protocol=3), "FL-TRUST-009", ""),
    "no generation": (_with(protocol=0), "FL-TRUST-009", ""),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_requests_to_join_that_are_refused(coordinator: Coordinator, name: str) -> None:
    make, code, reason = ATTACKS[name]
    token = coordinator.invite("north")
    site = SiteEnd("north")
    request = make(coordinator, site, token)
    with pytest.raises(Refused) as refused:
        coordinator.join(token, request)
    assert (refused.value.code, refused.value.reason) == (code, reason)
    assert 400 <= refused.value.status < 500
    assert str(coordinator.home.folder) not in refused.value.refusal.sentence
    record = coordinator.members.site("north")
    assert record.signing_key != site.signing.verifying.raw
    logged = [e for e in coordinator.home.audit().entries() if e.action is AuditAction.REQUEST_REFUSED]
    assert [entry.details["code"] for entry in logged] == [code]


def test_a_body_that_is_too_long_or_no_message_is_refused(coordinator: Coordinator) -> None:
    token = coordinator.invite("north")
    for body, status in ((b"x" * 100_000, 413), (b"\xff\xff\xff", 403)):
        with pytest.raises(Refused) as refused:
            coordinator.post("join", body, token.authority_pem())
        assert refused.value.status == status


def test_a_token_ends_after_ten_failed_tries(coordinator: Coordinator) -> None:
    token = coordinator.invite("north")
    site = SiteEnd("north")
    for _ in range(10):
        with pytest.raises(Refused):
            coordinator.join(token, site.join_request(token.secret, node_key=b"junk"))
    with pytest.raises(Refused) as refused:
        coordinator.join(token, site.join_request(token.secret))
    assert refused.value.reason == "tries"
    assert coordinator.members.site("north").state is SiteState.INVITED


def test_an_address_that_fails_too_often_has_to_wait(coordinator: Coordinator) -> None:
    token = coordinator.invite("north")
    reasons = []
    for _ in range(25):
        with pytest.raises(Refused) as refused:
            coordinator.join(token, SiteEnd("north").join_request("guess"))
        reasons.append(refused.value.reason)
    assert reasons[0] == "unknown"
    assert reasons[-1] == "tries"
    coordinator.join(token, SiteEnd("north").join_request(token.secret))  # whoever is right is not held up


def test_the_front_of_another_coordinator_is_not_trusted(coordinators: Make) -> None:
    ours, other = coordinators("a").start(), coordinators("b")
    token = other.invite("north")
    with pytest.raises(httpx.ConnectError) as failed:
        ours.post("join", SiteEnd("north").join_request(token.secret).SerializeToString(), token.authority_pem())
    assert "CERTIFICATE_VERIFY_FAILED" in str(failed.value)


def test_a_known_site_joins_again_with_new_keys(coordinator: Coordinator) -> None:
    first = coordinator.joined("north")
    old_node = coordinator.members.site("north").node_key
    coordinator.members.set_node(old_node, 2**64 - 3)
    token = coordinator.invite("north")
    with pytest.raises(Refused) as refused:  # keys that it had do not come back
        coordinator.join(token, first.join_request(token.secret))
    assert refused.value.reason == "keys"
    coordinator.joined("north")
    assert coordinator.members.site("north").node_id is None
    assert coordinator.members.nodes_to_unregister() == (("north", 2**64 - 3, old_node),)
    with pytest.raises(Refused) as refused:
        coordinator.renew(first, first.renew_request())
    assert refused.value.reason == "signature"


def test_a_site_renews_also_with_a_new_key(coordinator: Coordinator) -> None:
    site = coordinator.joined("north")
    answer = coordinator.renew(site, site.renew_request())
    assert answer.certificate != site.certificate
    assert coordinator.members.site("north").certificate_fingerprint
    new = ec.generate_private_key(ec.SECP256R1())
    later = int(time.time()) + 1
    renewed = coordinator.renew(site, site.renew_request(later, certificate_request=certificate_request(new)))
    assert x509.load_pem_x509_certificate(renewed.certificate).public_key() == new.public_key()
    assert ssl.PEM_cert_to_DER_cert(renewed.certificate_authority.decode())


def _by_another(c: Coordinator, site: SiteEnd) -> messages.RenewRequest:
    site.signing = SigningKey.generate()
    return site.renew_request()


def _altered_renewal(c: Coordinator, site: SiteEnd) -> messages.RenewRequest:
    request = site.renew_request()
    request.certificate_request = certificate_request(ec.generate_private_key(ec.SECP256R1()))
    return request


def _replayed(c: Coordinator, site: SiteEnd) -> messages.RenewRequest:
    request = site.renew_request()
    c.renew(site, request)
    return request


def _older_than_the_last(c: Coordinator, site: SiteEnd) -> messages.RenewRequest:
    older = site.renew_request(int(time.time()) - 60)
    c.renew(site, site.renew_request())
    return older


def _revoked(c: Coordinator, site: SiteEnd) -> messages.RenewRequest:
    c.members.revoke("north", "test")
    return site.renew_request()


def _left(c: Coordinator, site: SiteEnd) -> messages.RenewRequest:
    c.members.mark_left("north")
    return site.renew_request()


def _of_another(c: Coordinator, site: SiteEnd) -> messages.RenewRequest:
    c.joined("south")
    return site.renew_request(site="south")


def _key_of_another(c: Coordinator, site: SiteEnd) -> messages.RenewRequest:
    return site.renew_request(certificate_request=certificate_request(c.joined("south").key))


RENEWALS: dict[str, tuple[Callable[[Coordinator, SiteEnd], messages.RenewRequest], str, str]] = {
    "signed by another key": (_by_another, "FL-TRUST-007", "signature"),
    "altered": (_altered_renewal, "FL-TRUST-007", "signature"),
    "for another site": (_of_another, "FL-TRUST-007", "signature"),
    "for nobody": (lambda c, site: site.renew_request(site="nobody"), "FL-TRUST-007", "signature"),
    "no name": (lambda c, site: site.renew_request(site="../x"), "FL-TRUST-007", "signature"),
    "replayed": (_replayed, "FL-TRUST-007", "replayed"),
    "older than the last": (_older_than_the_last, "FL-TRUST-007", "replayed"),
    "of yesterday": (lambda c, site: site.renew_request(int(time.time()) - 90_000), "FL-TRUST-007", "expired"),
    "of a clock ahead": (lambda c, site: site.renew_request(int(time.time()) + 1000), "FL-TRUST-010", ""),
    "of a revoked site": (_revoked, "FL-TRUST-008", ""),
    "of a site that left": (_left, "FL-TRUST-008", ""),
    "with the key of another site": (_key_of_another, "FL-TRUST-007", "keys"),
    "with a bad request": (lambda c, site: site.renew_request(certificate_request=b"x"), "FL-TRUST-007", "request"),
}


@pytest.mark.parametrize("name", RENEWALS)
def test_renewals_that_are_refused(coordinator: Coordinator, name: str) -> None:
    make, code, reason = RENEWALS[name]
    site = coordinator.joined("north")
    request = make(coordinator, site)
    before = coordinator.members.certificate("north")
    with pytest.raises(Refused) as refused:
        coordinator.renew(site, request)
    assert (refused.value.code, refused.value.reason) == (code, reason)
    assert coordinator.members.certificate("north") == before
