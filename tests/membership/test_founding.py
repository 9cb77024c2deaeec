"""Setting a coordinator up: once, again, in part, and over something else."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store

from fedloop_core.audit import AuditAction
from fedloop_core.certificates import CertificateAuthority, key_to_pem
from fedloop_core.errors import AlreadySetUp, CertificateRefused, FedloopError, SettingsInvalid, UsageError
from fedloop_server.founding import Wishes, found, front_fingerprint
from fedloop_server.home import CoordinatorHome
from fedloop_server.membership.servers import ServerCertificates
from fedloop_server.settings import OwnCertificate, load_settings

WISHES = Wishes("hearts", ("fl.example.org", "192.0.2.7"))


def _files(folder: Path) -> dict[str, bytes]:
    kept = (path for path in folder.rglob("*") if path.is_file() and "coordinator.db" not in path.name)
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


def test_a_coordinator_is_set_up_once_and_again_changes_nothing(tmp_path: Path) -> None:
    home = tmp_path / "c"
    _, steps = found(home, WISHES, actor="operator:a")
    assert not any(step.there for step in steps)
    before = _files(home)
    for wishes in (WISHES, Wishes(), Wishes("hearts"), Wishes(front_port=0, hub_port=8444)):
        settings, steps = found(home, wishes, actor="operator:b")
        assert all(step.there for step in steps)
        assert settings.front.public == "fl.example.org:8443"
    assert _files(home) == before
    assert stat.S_IMODE((home / "keys").stat().st_mode) == 0o700
    secret = (
        "keys/envelope.pem",
        "keys/ca.key",
        "keys/superexec.secret",
        "keys/hub.key",
        "keys/superlink.key",
        "front/tls.key",
    )
    for name in (*secret, "coordinator.db"):
        assert stat.S_IMODE((home / name).stat().st_mode) == 0o600, name
    entries = list(CoordinatorHome(home).audit().entries())
    assert [(e.action, e.actor, e.subject) for e in entries] == [(AuditAction.INITIALISE, "operator:a", "hearts")]


def test_what_is_missing_is_completed_and_the_rest_kept(tmp_path: Path) -> None:
    found(tmp_path, WISHES, actor="operator:a")
    before = _files(tmp_path)
    for name in ("front/tls.pem", "keys/superexec.secret", "keys/hub.key"):
        (tmp_path / name).unlink()
    _, steps = found(tmp_path, Wishes(), actor="operator:a")
    assert [step.what for step in steps if not step.there] == [
        "keys/superexec.secret",
        "certificates of front, hub and SuperLink",
    ]
    after = _files(tmp_path)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"front/tls.pem", "keys/superexec.secret", "keys/hub.key", "keys/hub.pem"}


OTHERS = {
    "name": Wishes("other"),
    "host": Wishes(public_names=("other.example.org",)),
    "listen": Wishes(listen="127.0.0.1"),
    "front port": Wishes(front_port=9443),
    "hub port": Wishes(hub_port=9444),
    "certificate": Wishes(own=OwnCertificate(certificate="/c", key="/k", authority="/a")),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_parameters_are_refused_and_nothing_is_touched(tmp_path: Path, name: str) -> None:
    found(tmp_path, WISHES, actor="operator:a")
    before = _files(tmp_path)
    with pytest.raises(AlreadySetUp):
        found(tmp_path, OTHERS[name], actor="operator:a")
    assert _files(tmp_path) == before


@pytest.mark.parametrize("name", ["keys/ca.key", "keys/ca.pem", "keys/envelope.pem"])
def test_a_lost_key_is_not_replaced_by_another(tmp_path: Path, name: str) -> None:
    found(tmp_path, WISHES, actor="operator:a")
    (tmp_path / name).unlink()
    before = _files(tmp_path)
    with pytest.raises(CertificateRefused) as refused:
        found(tmp_path, Wishes(), actor="operator:a")
    assert "backup" in refused.value.hint
    assert _files(tmp_path) == before


def test_a_dry_run_makes_nothing(tmp_path: Path) -> None:
    home = tmp_path / "c"
    _, steps = found(home, WISHES, actor="operator:a", dry_run=True)
    assert len(steps) == 8
    assert not home.exists()


BAD: dict[str, Wishes] = {
    "no name": Wishes(public_names=("h",)),
    "no host": Wishes("hearts"),
    "a host with a port": Wishes("hearts", ("h:1",)),
    "a host with a path": Wishes("hearts", ("h/x",)),
    "a wildcard": Wishes("hearts", ("*.example.org",)),
    "a name with a line": Wishes("a\nb", ("h",)),
    "a name that is too long": Wishes("x" * 65, ("h",)),
}


@pytest.mark.parametrize("name", BAD)
def test_parameters_that_cannot_be_used(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        found(tmp_path / "c", BAD[name], actor="operator:a")
    assert not (tmp_path / "c").exists()


def test_ports_that_are_free_are_written_down(tmp_path: Path) -> None:
    settings, _ = found(tmp_path, Wishes("hearts", ("::1",), None, 0, 0, 0, 0), actor="operator:a")
    again = load_settings(tmp_path)
    assert again == settings
    assert settings.front.public == f"[::1]:{settings.front.port}"
    ports = {settings.front.port, settings.hub.port, settings.superlink_port, settings.health_port}
    assert not ports & {8443, 8444, 9092, 8480}


MISTAKES = {
    "unknown key": ('name = "hearts"', 'nam = "hearts"', "nam"),
    "bad address": ('address = "0.0.0.0:8444"', 'address = "8444"', "hub.address"),
    "a port too high": ("superlink_port = 9092", "superlink_port = 99999", "superlink_port"),
    "no text": ('name = "hearts"', "name = 3", "name"),
    "another format": ("format = 1", "format = 2", "format"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_server_toml_are_named_with_their_line(tmp_path: Path, name: str) -> None:
    found(tmp_path, WISHES, actor="operator:a")
    path = tmp_path / "server.toml"
    right, wrong, key = MISTAKES[name]
    text = path.read_text()
    assert right in text
    path.write_text(text.replace(right, wrong, 1))
    line = text[: text.index(right)].count("\n") + 1
    with pytest.raises(SettingsInvalid) as refused:
        load_settings(tmp_path)
    assert any(f"server.toml:{line}:" in problem and key in problem for problem in refused.value.problems)


def _own(tmp_path: Path) -> tuple[CertificateAuthority, OwnCertificate]:
    now = int(time.time())
    authority = CertificateAuthority.create("institution", now)
    key = ec.generate_private_key(ec.SECP256R1())
    files = {
        "own.pem": authority.issue_server(key.public_key(), ("localhost",), now_unix=now),
        "own.key": key_to_pem(key),
        "own-ca.pem": authority.certificate,
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    certificate, own_key, own_authority = (str(tmp_path / name) for name in files)
    return authority, OwnCertificate(certificate=certificate, key=own_key, authority=own_authority)


def test_an_institutions_own_server_certificate_is_shown_and_followed(tmp_path: Path) -> None:
    authority, own = _own(tmp_path)
    home = CoordinatorHome(tmp_path / "c")
    settings, _ = found(home.folder, Wishes("hearts", ("localhost",), own=own), actor="operator:a")
    assert (home.front / "tls.pem").read_bytes() == Path(own.certificate).read_bytes()
    bundle = home.authorities().bundle()
    assert authority.certificate in bundle
    assert home.authorities().current().certificate in bundle
    assert front_fingerprint(home) not in (home.keys / "ca.pem").read_text()
    certificates = ServerCertificates(home.folder, settings, home.authorities())
    now = int(time.time())
    assert certificates.refresh(now) == ()
    key = ec.generate_private_key(ec.SECP256R1())
    Path(own.certificate).write_bytes(authority.issue_server(key.public_key(), ("localhost",), now_unix=now))
    with pytest.raises(CertificateRefused):  # the key is still the former one
        certificates.refresh(now)
    assert (home.front / "tls.pem").read_bytes() != Path(own.certificate).read_bytes()
    Path(own.key).write_bytes(key_to_pem(key))
    assert certificates.refresh(now) == ("front/tls.key", "front/tls.pem")


def test_server_certificates_are_renewed_at_half_of_their_life_and_for_other_names(tmp_path: Path) -> None:
    from cryptography import x509

    home = CoordinatorHome(tmp_path)
    settings, _ = found(tmp_path, WISHES, actor="operator:a")
    key = (home.front / "tls.key").read_bytes()
    certificates = ServerCertificates(tmp_path, settings, home.authorities())
    now = int(time.time())
    assert certificates.refresh(now + 44 * 86_400) == ()
    assert certificates.refresh(now + 46 * 86_400) == ("keys/hub.pem", "front/tls.pem")
    assert (home.front / "tls.key").read_bytes() == key
    other = settings.model_copy(update={"public_names": ("new.example.org", "2001:0db8::0001")})
    certificates = ServerCertificates(tmp_path, other, home.authorities())
    assert certificates.refresh(now) == ("keys/hub.pem", "front/tls.pem")
    assert certificates.refresh(now) == ()
    store = Store([x509.load_pem_x509_certificate((tmp_path / "front/authorities.pem").read_bytes())])
    verifier = PolicyBuilder().store(store).build_server_verifier(x509.DNSName("localhost"))
    verifier.verify(x509.load_pem_x509_certificate((home.keys / "superlink.pem").read_bytes()), [])


def test_a_file_that_is_no_authority_is_refused(tmp_path: Path) -> None:
    _, own = _own(tmp_path)
    wrong = own.model_copy(update={"authority": own.certificate})
    with pytest.raises(FedloopError):
        found(tmp_path / "c", Wishes("hearts", ("localhost",), own=wrong), actor="operator:a")
    assert not (tmp_path / "c" / "keys").exists()
