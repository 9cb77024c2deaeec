"""Joining: keys stay, one request, one answer; whatever interrupts it, the same command completes it."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from cryptography.x509 import load_pem_x509_certificate
from tests.onboarding.bad_fronts import BAD_FRONTS, BadFront

from fedloop_clients import home as home_module
from fedloop_clients.home import SiteHome
from fedloop_clients.joining import OwnCertificate, join, procedure, renew
from fedloop_clients.joining import keys as keys_module
from fedloop_core import certificates, durable
from fedloop_core import keys as core_keys
from fedloop_core.certificates import certificate_expiry
from fedloop_core.errors import (
    AlreadySetUp,
    CertificateRefused,
    CoordinatorUnreachable,
    FedloopError,
    JoinRefused,
    StorageError,
    UsageError,
    VersionRefused,
)
from fedloop_core.federation.join import JoinToken
from fedloop_proto.membership.v1.membership_pb2 import JoinResponse, Refusal

if TYPE_CHECKING:
    from tests.onboarding.conftest import Coordinator, Front, Pki
    from tests.onboarding.connect_proxy import ConnectProxy


def yes(token: JoinToken) -> bool:
    return True


def private_parts(home: SiteHome) -> list[bytes]:
    """Every private key and secret of a home, in each form in which it could travel."""
    parts: list[bytes] = []
    for path in (home.site_key, home.node_key, home.signing_key_file):
        content = path.read_bytes()
        load = load_ssh_private_key if path == home.node_key else load_pem_private_key
        key = load(content, password=None)
        parts += [content, b"".join(content.splitlines()[1:-1])]
        parts.append(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()))
        if isinstance(key, ec.EllipticCurvePrivateKey):
            number = key.private_numbers().private_value
            parts.append(number.to_bytes((key.key_size + 7) // 8, "big"))
        else:
            parts.append(key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption()))
    return [*parts, home.superexec_secret.read_bytes(), home.fingerprint_secret_file.read_bytes()]


def test_a_site_joins_and_its_private_keys_stay(coordinator: Coordinator, home: SiteHome) -> None:
    told: list[str] = []

    def confirm(token: JoinToken) -> bool:
        told.append(token.fingerprint())
        return True

    joined = join(coordinator.token(), home, proxy=None, confirm=confirm)
    assert told == [coordinator.token().fingerprint()]
    assert not joined.already
    assert abs(joined.skew_seconds) <= 2
    member = home.membership()
    assert (member.site, member.hub_address) == ("north", f"127.0.0.1:{coordinator.hub.port}")
    assert home.coordinator_key().raw == coordinator.key.verifying.raw
    assert home.settings.site == "north"
    certificate = load_pem_x509_certificate(home.site_certificate.read_bytes())
    own = load_pem_private_key(home.site_key.read_bytes(), password=None)
    assert certificate.public_key() == own.public_key()
    assert home.authorities.read_bytes() == coordinator.pki.authority.certificate
    sent = b"".join(coordinator.front.sent)
    assert len(sent) > 500
    assert not [part for part in private_parts(home) if part in sent]
    secret_files = [path for path in home.keys.iterdir() if path.suffix != ".pub" and path.name not in PUBLIC]
    assert {stat.S_IMODE(path.stat().st_mode) for path in [*secret_files, home.settings_file]} == {0o600}
    assert stat.S_IMODE(home.keys.stat().st_mode) == 0o700


PUBLIC = {"site.pem", "authorities.pem"}


def test_the_same_command_again_changes_nothing(coordinator: Coordinator, home: SiteHome) -> None:
    join(coordinator.token(), home, proxy="", confirm=yes)
    before = {path: path.read_bytes() for path in home.folder.rglob("*") if path.is_file()}
    requests = len(coordinator.front.sent)
    token = JoinToken(**{**vars(coordinator.token()), "secret": next(iter(coordinator.joined))})
    assert join(token, home, proxy="", confirm=lambda t: pytest.fail("asked again")).already
    assert {path: path.read_bytes() for path in home.folder.rglob("*") if path.is_file()} == before
    assert len(coordinator.front.sent) == requests


class Stopped(Exception):
    """The power goes."""


@dataclass
class Writes:
    """Counts the files that are written, and stops before or after one of them."""

    stop_at: int
    before: bool
    written: int = 0

    def instead_of(self, real: Callable[..., None]) -> Callable[..., None]:
        def write(path: Path, content: bytes, **options: int) -> None:
            self.written += 1
            if self.written == self.stop_at and self.before:
                raise Stopped
            real(path, content, **options)
            if self.written == self.stop_at:
                raise Stopped

        return write

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        for module in (procedure, keys_module, home_module, certificates, core_keys):
            for name in ("write_bytes", "write_secret"):
                if hasattr(module, name):
                    patch.setattr(module, name, self.instead_of(getattr(durable, name)))


FILES = 12


def test_a_joining_writes_so_many_files(
    coordinator: Coordinator, home: SiteHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = Writes(0, before=False)
    writes.watch(monkeypatch)
    join(coordinator.token(), home, proxy="", confirm=yes)
    assert writes.written == FILES


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, FILES + 1))
def test_interrupted_anywhere_the_same_command_completes_it(
    at: int, before: bool, coordinator: Coordinator, home: SiteHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = coordinator.token()
    with monkeypatch.context() as patch:
        Writes(at, before).watch(patch)
        with pytest.raises(Stopped):
            join(token, home, proxy="", confirm=yes)
    join(token, home, proxy="", confirm=yes)
    assert home.membership().site == home.settings.site == "north"
    certificate = load_pem_x509_certificate(home.site_certificate.read_bytes())
    assert certificate.public_key() == load_pem_private_key(home.site_key.read_bytes(), password=None).public_key()
    assert len(coordinator.joined) == 1
    assert not [path for path in home.folder.rglob("*") if path.name.endswith((".part", "join-answer"))]
    with pytest.raises(AlreadySetUp, match="with another token"):
        join(coordinator.token(), home, proxy="", confirm=yes)


def test_a_lost_answer_is_asked_for_again_with_the_same_keys(coordinator: Coordinator, home: SiteHome) -> None:
    coordinator.lose_answers = 1
    token = coordinator.token()
    with pytest.raises(CoordinatorUnreachable, match="an answer that cannot be read"):
        join(token, home, proxy="", confirm=yes)
    assert not home.membership_file.exists()
    keys = home.node_key.read_bytes()
    join(token, home, proxy="", confirm=yes)
    assert home.node_key.read_bytes() == keys


def test_other_folders_are_refused(coordinator: Coordinator, home: SiteHome, tmp_path: Path) -> None:
    join(coordinator.token(), home, proxy="", confirm=yes)
    with pytest.raises(AlreadySetUp, match="holds site north, and the token is for site south"):
        join(coordinator.token("south"), home, proxy="", confirm=yes)
    with pytest.raises(AlreadySetUp, match=r"joined with another token.*--again"):
        join(coordinator.token(), home, proxy="", confirm=yes)
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "server.toml").touch()
    with pytest.raises(AlreadySetUp, match="holds a coordinator"):
        join(coordinator.token(), SiteHome(tmp_path / "server"), proxy="", confirm=yes)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        join(coordinator.token(), SiteHome(tmp_path / "file"), proxy="", confirm=yes)


def test_a_site_that_joins_anew_has_new_keys_and_its_old_secret(coordinator: Coordinator, home: SiteHome) -> None:
    join(coordinator.token(), home, proxy="", confirm=yes)
    secret, keys = home.fingerprint_secret(), home.node_key.read_bytes()
    join(coordinator.token(), home, proxy="", confirm=yes, again=True)
    assert home.fingerprint_secret() == secret
    assert home.node_key.read_bytes() != keys
    assert len(list(home.folder.glob("keys.*"))) == 1
    assert len(coordinator.joined) == 2


def test_joining_anew_needs_another_token(coordinator: Coordinator, home: SiteHome) -> None:
    token = coordinator.token()
    join(token, home, proxy="", confirm=yes)
    with pytest.raises(JoinRefused, match=r"used, and a joining anew needs another\..*site renew north") as raised:
        join(token, home, proxy="", confirm=yes, again=True)
    assert raised.value.fields == {"reason": "used"}
    assert len(coordinator.joined) == 1


def test_a_site_that_left_takes_part_again_when_it_has_joined_anew(coordinator: Coordinator, home: SiteHome) -> None:
    join(coordinator.token(), home, proxy="", confirm=yes)
    home.standing().leave()
    home.standing().pause(True)
    join(coordinator.token(), home, proxy="", confirm=yes, again=True)
    assert not home.standing().read().leaving
    assert home.standing().read().paused


def test_a_fingerprint_that_is_not_confirmed_sends_and_makes_nothing(coordinator: Coordinator, home: SiteHome) -> None:
    with pytest.raises(UsageError, match="Nothing was sent"):
        join(coordinator.token(), home, proxy="", confirm=lambda token: False)
    assert coordinator.front.sent == []
    assert not home.folder.exists()


def test_a_token_that_was_used_or_has_expired_is_refused(
    coordinator: Coordinator, home: SiteHome, tmp_path: Path
) -> None:
    token = coordinator.token()
    join(token, home, proxy="", confirm=yes)
    with pytest.raises(JoinRefused, match="site north: the token was used") as raised:
        join(token, SiteHome(tmp_path / "copy"), proxy="", confirm=yes)
    assert raised.value.fields == {"reason": "used"}
    old = coordinator.token(expires_unix=int(time.time()) - 60)
    with pytest.raises(JoinRefused, match=r"expired 6. s ago"):
        join(old, SiteHome(tmp_path / "late"), proxy="", confirm=yes)


@dataclass(frozen=True)
class BadAnswer:
    """An answer that must not be used."""

    name: str
    change: Callable[[JoinResponse], None]
    error: type[FedloopError]
    words: str


def _set(**fields: object) -> Callable[[JoinResponse], None]:
    def change(response: JoinResponse) -> None:
        for name, value in fields.items():
            setattr(response, name, value)

    return change


BAD_ANSWERS = (
    BadAnswer("another site", _set(site="south"), JoinRefused, "is for site 'south', not north"),
    BadAnswer("no key", _set(coordinator_key=b"short"), JoinRefused, "brings no coordinator key"),
    BadAnswer("no certificate", _set(certificate=b""), JoinRefused, "is not a certificate in PEM"),
    BadAnswer("no authority", _set(certificate_authority=b"x"), JoinRefused, "authorities that cannot be read"),
    BadAnswer(
        "authority in Latin", _set(certificate_authority=b"\xe4"), JoinRefused, "authorities that cannot be read"
    ),
    BadAnswer("no address", _set(hub_address="here"), JoinRefused, "must be written as host:port"),
    BadAnswer("newer by two", _set(protocol=3), VersionRefused, "speaks generation 3 of the protocol, this side 1"),
    BadAnswer("from before generations", _set(protocol=0), VersionRefused, "speaks generation 0"),
)


@pytest.mark.parametrize("bad", BAD_ANSWERS, ids=lambda bad: bad.name)
def test_a_bad_answer_is_not_stored(bad: BadAnswer, coordinator: Coordinator, home: SiteHome) -> None:
    token, right = coordinator.token(), coordinator.change
    coordinator.change = bad.change
    with pytest.raises(bad.error, match=bad.words):
        join(token, home, proxy="", confirm=yes)
    assert not home.membership_file.exists()
    coordinator.change = right
    join(token, home, proxy="", confirm=yes)


def test_a_certificate_for_another_key_is_not_stored(coordinator: Coordinator, home: SiteHome) -> None:
    other = coordinator.pki.server()[1]
    coordinator.change = _set(certificate=other)
    with pytest.raises(JoinRefused, match="over another key than this site's"):
        join(coordinator.token(), home, proxy="", confirm=yes)


def test_a_neighbouring_generation_is_accepted(coordinator: Coordinator, home: SiteHome) -> None:
    coordinator.change = _set(protocol=2)
    assert join(coordinator.token(), home, proxy="", confirm=yes).membership.protocol == 2


def test_strange_servers_are_told_by_their_status(coordinator: Coordinator, home: SiteHome) -> None:
    answers = {
        "a page": (200, b"<html>" * 9, "an answer that cannot be read"),
        "an endless page": (200, b"x" * (2 << 20), "an endless answer"),
        "a proxy's page": (403, b"<html>forbidden</html>", "answers with status 403 and not as a coordinator does"),
        "nothing": (500, b"", "answers with status 500"),
    }
    for status, content, words in answers.values():
        coordinator.front.behave = lambda call, body, reply=(status, content): reply  # type: ignore[misc]
        with pytest.raises(CoordinatorUnreachable, match=words):
            join(coordinator.token(), home, proxy="", confirm=yes)


def test_a_refusal_cannot_write_to_the_terminal(coordinator: Coordinator, home: SiteHome) -> None:
    content = Refusal(code="FL-TRUST-007", sentence="\x1b[2Jgone" + "x" * 9999, fields={"reason": "used", "hint": "y"})
    coordinator.front.behave = lambda call, body: (403, content.SerializeToString())
    with pytest.raises(JoinRefused) as raised:
        join(coordinator.token(), home, proxy="", confirm=yes)
    assert raised.value.message.startswith(r"\x1b[2Jgone")
    assert len(raised.value.message) == 500
    assert raised.value.fields == {"reason": "used"}


@pytest.mark.parametrize("bad", BAD_FRONTS, ids=lambda bad: bad.name)
def test_a_wrong_certificate_is_told_by_whose_it_is(
    bad: BadFront,
    coordinator: Coordinator,
    home: SiteHome,
    fronts: Callable[[tuple[bytes, bytes]], Front],
    pkis: Callable[[str], Pki],
) -> None:
    front = bad.start(coordinator.pki, fronts, pkis)
    token = JoinToken("north", f"127.0.0.1:{front.port}", "secret", coordinator.pki.der, int(time.time()) + 60)
    with pytest.raises(CoordinatorUnreachable, match=bad.words) as raised:
        join(token, home, proxy="", confirm=yes)
    assert raised.value.fields["stage"] == "tls"
    assert front.sent == []


def test_through_a_proxy_names_are_the_proxys_to_resolve(
    coordinator: Coordinator, home: SiteHome, proxies: Callable[..., ConnectProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")  # never looked at
    proxy = proxies("user:p@ss word")
    coordinator.host = "coordinator.test"
    url = proxy.url.replace("user:p@ss word", "user:p%40ss%20word")
    join(coordinator.token(), home, proxy=url, confirm=yes)
    assert proxy.asked == [f"coordinator.test:{coordinator.front.port}"]
    assert proxy.other == []
    assert home.settings.proxy == url
    renew(home)
    assert set(proxy.asked) == {f"coordinator.test:{coordinator.front.port}"}


@dataclass(frozen=True)
class BadProxy:
    """A proxy that does not lead to the coordinator."""

    name: str
    password: str
    status: int
    host: str
    words: str
    stage: str = "proxy"


BAD_PROXIES = (
    BadProxy("wants a password", "u:p", 200, "coordinator.test", "asks for a name and a password"),
    BadProxy("refuses", "", 403, "coordinator.test", r"refuses the way to coordinator.test:\d+ \(status 403\)"),
    BadProxy("cannot resolve", "", 200, "unknown.test", r"cannot reach unknown.test:\d+ \(status 502\)"),
)


@pytest.mark.parametrize("bad", BAD_PROXIES, ids=lambda bad: bad.name)
def test_a_proxy_that_does_not_lead_there_is_named(
    bad: BadProxy, coordinator: Coordinator, home: SiteHome, proxies: Callable[..., ConnectProxy]
) -> None:
    proxy = proxies(bad.password, bad.status)
    url = f"http://127.0.0.1:{proxy.port}"
    with pytest.raises(CoordinatorUnreachable, match=bad.words) as raised:
        join(coordinator.token(host=bad.host), home, proxy=url, confirm=yes)
    assert raised.value.fields == {"stage": bad.stage}


def test_what_is_no_proxy_is_named(coordinator: Coordinator, home: SiteHome) -> None:
    url = f"http://127.0.0.1:{coordinator.front.port}"
    with pytest.raises(CoordinatorUnreachable, match=r"the proxy 127.0.0.1:[0-9]+ does not answer as"):
        join(coordinator.token(host="coordinator.test"), home, proxy=url, confirm=yes)


def test_a_closed_port_and_an_unknown_name_are_named(
    coordinator: Coordinator, home: SiteHome, unused_port: int
) -> None:
    token = JoinToken("north", f"127.0.0.1:{unused_port}", "s", coordinator.pki.der, int(time.time()) + 60)
    with pytest.raises(CoordinatorUnreachable, match="Connection refused") as raised:
        join(token, home, proxy="", confirm=yes)
    assert raised.value.fields == {"stage": "route"}
    with pytest.raises(CoordinatorUnreachable, match="cannot be resolved") as raised:
        join(coordinator.token(host="no-such-host.invalid"), home, proxy="", confirm=yes)
    assert raised.value.fields == {"stage": "name"}


def test_an_institutions_own_certificate_is_sent_in_place_of_a_request(
    coordinator: Coordinator, home: SiteHome, tmp_path: Path, pkis: Callable[[str], Pki]
) -> None:
    institution = pkis("institution")
    key, certificate = institution.server("north.hospital.test")
    files = tmp_path / "own.key", tmp_path / "own.pem"
    files[0].write_bytes(key)
    files[1].write_bytes(certificate + institution.authority.certificate)
    own = OwnCertificate.read(files[1], files[0])
    join(coordinator.token(), home, proxy="", confirm=yes, own=own)
    assert home.membership().own_authority
    assert home.site_key.read_bytes() == key
    assert home.site_certificate.read_bytes() == files[1].read_bytes()
    assert key not in b"".join(coordinator.front.sent)
    with pytest.raises(UsageError, match="the coordinator cannot renew it"):
        renew(home)
    files[0].write_bytes(institution.server()[0])
    with pytest.raises(CertificateRefused, match="is not over the key in"):
        OwnCertificate.read(files[1], files[0])
    new_key, new_certificate = institution.server("north.hospital.test")
    renew(home, own=OwnCertificate(new_certificate, new_key))
    assert (home.site_key.read_bytes(), home.site_certificate.read_bytes()) == (new_key, new_certificate)


def test_a_certificate_is_renewed_over_the_same_key(coordinator: Coordinator, joined_home: SiteHome) -> None:
    before, key = joined_home.site_certificate.read_bytes(), joined_home.site_key.read_bytes()
    authorities = joined_home.authorities.stat().st_mtime_ns
    renewal = renew(joined_home)
    after = joined_home.site_certificate.read_bytes()
    assert after != before
    assert joined_home.site_key.read_bytes() == key
    assert renewal.expires_unix == certificate_expiry(after)
    assert joined_home.authorities.stat().st_mtime_ns == authorities


def test_damaged_keys_are_named(coordinator: Coordinator, home: SiteHome) -> None:
    home.prepare()
    home.node_key.write_bytes(b"nothing")
    with pytest.raises(CertificateRefused, match=r"node.key is not a private key of OpenSSH"):
        join(coordinator.token(), home, proxy="", confirm=yes)
    assert coordinator.front.sent == []
