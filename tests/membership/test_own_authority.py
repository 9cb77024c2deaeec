"""Sites whose certificates come from an institution's own authority."""

from __future__ import annotations

import time

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from tests.membership.coordinators import Coordinator, Refused, SiteEnd

from fedloop_core.certificates import CertificateAuthority, certificate_request
from fedloop_core.errors import CertificateRefused
from fedloop_server.membership.pem import read_authorities

NOW = int(time.time())


class Institution:
    """A root and an issuing authority below it, as hospitals have them."""

    def __init__(self) -> None:
        self.root_key = ec.generate_private_key(ec.SECP256R1())
        self.issuing_key = ec.generate_private_key(ec.SECP256R1())
        self.root = self._authority("root", "root", self.root_key, self.root_key)
        self._issuing = self._authority("issuing", "root", self.issuing_key, self.root_key)
        self.issuing = CertificateAuthority(self.issuing_key, self._issuing)

    def chain(self, site: SiteEnd, *, days: int = 30) -> bytes:
        made = self.issuing.issue_site(certificate_request(site.key), "hospital-7", now_unix=NOW, days=days)
        return made + self._issuing

    def _authority(
        self, name: str, issuer: str, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey
    ) -> bytes:
        import datetime as dt

        now = dt.datetime.fromtimestamp(NOW, dt.UTC)
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=300))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )
        return builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)


def test_a_site_joins_speaks_and_renews_under_its_own_authority(coordinator: Coordinator) -> None:
    institution = Institution()
    site = SiteEnd("north")
    token = coordinator.invite("north", authority=institution.root)
    chain = institution.chain(site)
    answer = coordinator.join(token, site.join_request(token.secret, certificate_request=b"", certificate_chain=chain))
    assert answer.certificate == chain
    site.certificate, site.authorities = chain, answer.certificate_authority
    with coordinator.hub(site) as stub:
        assert not stub.Report(site.report()).certificate_renewal_due
    site.key = ec.generate_private_key(ec.SECP256R1())
    chain = institution.chain(site, days=20)
    answer_2 = coordinator.renew(site, site.renew_request(certificate_request=b"", certificate_chain=chain))
    assert answer_2.certificate == chain
    site.certificate = chain
    with coordinator.hub(site) as stub:
        stub.Report(site.report())
    coordinator.members.revoke("north", "test")
    with coordinator.hub(site) as stub, pytest.raises(grpc.RpcError):
        stub.Report(site.report(), timeout=20)


def test_another_sites_authority_or_another_certificate_of_the_same_does_not_let_in(coordinator: Coordinator) -> None:
    institution, stranger = Institution(), Institution()
    coordinator.invite("south", authority=stranger.root)
    token = coordinator.invite("north", authority=institution.root)
    site = SiteEnd("north")
    chains = {
        "of another authority": stranger.chain(site),
        "without the issuing authority": institution.chain(site).split(b"-----END CERTIFICATE-----\n")[0]
        + b"-----END CERTIFICATE-----\n",
        "an authority's own": institution.root,
        "too many": institution.chain(site) * 4,
        "too long": b"x" * 40_000,
    }
    for what, chain in chains.items():
        request = site.join_request(token.secret, certificate_request=b"", certificate_chain=chain)
        with pytest.raises(Refused) as refused:
            coordinator.join(token, request)
        assert refused.value.reason == "certificate", what
    both = site.join_request(token.secret, certificate_chain=institution.chain(site))
    with pytest.raises(Refused) as refused:
        coordinator.join(token, both)
    assert refused.value.reason == "request"
    answer = coordinator.join(
        token, site.join_request(token.secret, certificate_request=b"", certificate_chain=institution.chain(site))
    )
    colleague = SiteEnd("north")
    colleague.certificate, colleague.authorities = institution.chain(colleague), answer.certificate_authority
    with coordinator.hub(colleague) as stub, pytest.raises(grpc.RpcError) as error:
        stub.Report(colleague.report(), timeout=20)
    assert error.value.details() == "FL-TRUST-005"  # of the same authority, and not the one that joined


@pytest.mark.parametrize("content", [b"", b"junk", b"-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n"])
def test_files_that_hold_no_authority(content: bytes) -> None:
    with pytest.raises(CertificateRefused):
        read_authorities(content, "file.pem")
