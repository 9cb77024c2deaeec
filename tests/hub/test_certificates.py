"""Certificates: what is issued, what is refused, and what the files look like."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from fedloop_core.certificates import (
    CertificateAuthority,
    certificate_expiry,
    certificate_request,
    device_id_of_certificate,
    key_id,
    load_or_create_key,
)
from fedloop_core.errors import CertificateRefused, EnrollmentRefused

NOW = 1_800_000_000
DAY = 86_400
NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "someone")])


@pytest.fixture
def authority() -> CertificateAuthority:
    return CertificateAuthority.create("hub", NOW)


def test_a_device_is_named_by_its_key_in_every_certificate(authority: CertificateAuthority) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    first, certificate = authority.issue_client(certificate_request(key), now_unix=NOW, days=1)
    second, renewed = authority.issue_client(certificate_request(key), now_unix=NOW + 7 * DAY)
    assert first == second == key_id(key.public_key())
    assert device_id_of_certificate(certificate) == device_id_of_certificate(renewed) == first
    assert certificate_expiry(certificate) == NOW + DAY


def test_chains_verify_and_purposes_are_apart(authority: CertificateAuthority) -> None:
    import datetime as dt

    key = ec.generate_private_key(ec.SECP256R1())
    server = authority.issue_server(key.public_key(), ("localhost", "127.0.0.1"), now_unix=NOW)
    _, client = authority.issue_client(certificate_request(key), now_unix=NOW)
    store = Store([x509.load_pem_x509_certificate(authority.certificate)])
    builder = PolicyBuilder().store(store).time(dt.datetime.fromtimestamp(NOW + 5, dt.UTC))
    verifier = builder.build_server_verifier(x509.DNSName("localhost"))
    assert len(verifier.verify(x509.load_pem_x509_certificate(server), [])) == 2
    with pytest.raises(VerificationError):
        verifier.verify(x509.load_pem_x509_certificate(client), [])
    usage = x509.load_pem_x509_certificate(client).extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    assert list(usage.value) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_a_certificate_never_outlives_its_authority(authority: CertificateAuthority) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    end = certificate_expiry(authority.certificate)
    _, certificate = authority.issue_client(certificate_request(key), now_unix=end - 10, days=365)
    assert certificate_expiry(certificate) == end
    for late, days in ((end + 1, 1), (NOW, 0), (NOW, -1)):
        with pytest.raises(CertificateRefused):
            authority.issue_client(certificate_request(key), now_unix=late, days=days)


def _request(sign: Callable[[x509.CertificateSigningRequestBuilder], x509.CertificateSigningRequest]) -> bytes:
    return sign(x509.CertificateSigningRequestBuilder().subject_name(NAME)).public_bytes(Encoding.PEM)


def _signed_by_another_key() -> bytes:
    """A good request whose last byte of signature is another."""
    request = x509.load_pem_x509_csr(certificate_request(ec.generate_private_key(ec.SECP256R1())))
    der = bytearray(request.public_bytes(Encoding.DER))
    der[-1] ^= 1
    return x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM)


BAD_REQUESTS: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "junk": lambda: b"-----BEGIN CERTIFICATE REQUEST-----\njunk\n-----END CERTIFICATE REQUEST-----\n",
    "too long": lambda: b"x" * 9000,
    "another curve": lambda: _request(lambda b: b.sign(ec.generate_private_key(ec.SECP384R1()), hashes.SHA256())),
    "rsa": lambda: _request(lambda b: b.sign(rsa.generate_private_key(65537, 2048), hashes.SHA256())),
    "ed25519": lambda: _request(lambda b: b.sign(ed25519.Ed25519PrivateKey.generate(), None)),
    "wants to be an authority": lambda: _request(
        lambda b: b.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(
            ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()
        )
    ),
    "wants a server's name": lambda: _request(
        lambda b: b.add_extension(x509.SubjectAlternativeName([x509.DNSName("hub")]), critical=False).sign(
            ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()
        )
    ),
    "signed by another key": _signed_by_another_key,
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_requests_that_are_refused(authority: CertificateAuthority, name: str) -> None:
    with pytest.raises(EnrollmentRefused) as refusal:
        authority.issue_client(BAD_REQUESTS[name](), now_unix=NOW)
    assert refusal.value.fields["reason"] == "request"


def test_a_requests_subject_is_not_taken_over(authority: CertificateAuthority) -> None:
    request = _request(lambda b: b.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()))
    device_id, certificate = authority.issue_client(request, now_unix=NOW)
    assert x509.load_pem_x509_certificate(certificate).subject.rfc4514_string() == f"CN={device_id}"


def test_an_authority_is_kept_in_its_folder(tmp_path: Path) -> None:
    first = CertificateAuthority.load_or_create(tmp_path, "hub", NOW)
    second = CertificateAuthority.load_or_create(tmp_path, "hub", NOW + DAY)
    assert first.certificate == second.certificate
    assert stat.S_IMODE((tmp_path / "ca.key").stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"", b"junk", b"-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n"])
def test_a_file_that_is_no_key_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "device.key"
    path.write_bytes(content)
    with pytest.raises(CertificateRefused, match=r"device\.key"):
        load_or_create_key(path)
    assert path.read_bytes() == content


def test_a_certificate_of_another_key_is_refused(tmp_path: Path, authority: CertificateAuthority) -> None:
    with pytest.raises(CertificateRefused):
        CertificateAuthority(ec.generate_private_key(ec.SECP256R1()), authority.certificate)
    with pytest.raises(CertificateRefused):
        device_id_of_certificate(b"junk")
    with pytest.raises(CertificateRefused):
        authority.issue_server(ec.generate_private_key(ec.SECP256R1()).public_key(), (), now_unix=NOW)
