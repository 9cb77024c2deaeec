"""What goes wrong in the field while a run goes on: each ends in the right behaviour, or in one clear sentence."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_der_x509_certificate, load_pem_x509_certificate
from tests.conditions.conftest import OURS
from tests.conditions.installation import GENERATION, ahead
from tests.conditions.small_federation import Federation, moment

from fedloop_clients.home import SiteHome
from fedloop_core.certificates import (
    DAY_SECONDS,
    CertificateAuthority,
    certificate_expiry,
    certificate_fingerprint,
    certificate_request,
    key_id,
    load_or_create_key,
)
from fedloop_core.durable import write_bytes
from fedloop_core.federation.join import JoinToken
from fedloop_server.home import CoordinatorHome
from fedloop_server.membership.records import IssuedCertificate

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]  # the first test sets the federation up

SOON = 8  # seconds


# --- certificates --------------------------------------------------------------------------------------------------


def _server_certificate(home: CoordinatorHome, key: Path, seconds: int) -> bytes:
    """Of the coordinator's authority, for a listener; it ends so many seconds from now."""
    private = load_or_create_key(key)
    begin = moment() + seconds - DAY_SECONDS
    return home.authorities().current().issue_server(private.public_key(), ("localhost",), now_unix=begin, days=1)


def _give_site_certificate(federation: Federation, site: str, seconds: int) -> int:
    """As if the site had renewed its certificate a day ago, so that it ends in so many seconds; gives the end."""
    home, server = SiteHome(federation.site_home(site)), CoordinatorHome(federation.home)
    key = load_or_create_key(home.site_key)
    begin = moment() + seconds - DAY_SECONDS
    authority = server.authorities().current()
    pem = authority.issue_site(certificate_request(key), site, now_unix=begin, days=1)
    members = server.members()
    issued = IssuedCertificate(pem, certificate_fingerprint(pem), certificate_expiry(pem))
    members.record_renewal(site, issued, key_id(key.public_key()), moment() - 2)
    members.database.close()
    write_bytes(home.site_certificate, pem)
    return issued.expires_unix


def _shown(address: str) -> int:
    """When the certificate expires that a listener shows."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((host, int(port)), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        seen = load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
    return int(seen.not_valid_after_utc.timestamp())


def _shows_a_new_one(address: str) -> bool:
    return _shown(address) > moment() + 80 * DAY_SECONDS


def test_certificates_of_front_and_hub_renew_themselves_during_a_run(well: Federation) -> None:
    home, before = CoordinatorHome(well.home), well.processes("coordinator")
    listeners = {"front/tls": home.settings.front.public, "keys/hub": home.settings.hub.public}
    for name in listeners:
        write_bytes(
            home.folder / f"{name}.pem", _server_certificate(home, home.folder / f"{name}.key", SOON), mode=0o600
        )
    ends = moment() + SOON
    for address in listeners.values():
        well.until("a new certificate is shown", partial(_shows_a_new_one, address))
    well.until("the old ones have expired", lambda: moment() > ends)
    well.until_round_of("north", "south")
    assert well.processes("coordinator") == before


def test_a_sites_certificate_renews_itself_during_a_run(well: Federation) -> None:
    home, before = SiteHome(well.site_home("south")), well.processes("south")
    ends = _give_site_certificate(well, "south", 30)
    well.until("it is renewed", lambda: certificate_expiry(home.site_certificate.read_bytes()) > ends + DAY_SECONDS)
    assert moment() <= ends + 5
    assert any(
        entry["action"] == "site-renewed" and entry["subject"] == "south" for entry in well.audited("coordinator")
    )
    well.until_round_of("north", "south")
    assert well.processes("south") == before


def test_expired_certificates_are_said_and_renewed_afterwards(well: Federation) -> None:
    """Those of the front and of a site: while the service cannot renew, the site says why it waits."""
    home, site = CoordinatorHome(well.home), SiteHome(well.site_home("south"))
    since = well.log("south", "daemon")
    with well.halted("coordinator", "service"):
        ended = _give_site_certificate(well, "south", -3600)
        write_bytes(home.front / "tls.pem", _server_certificate(home, home.front / "tls.key", -3600), mode=0o600)
        well.until("the front shows it", lambda: _shown(home.settings.front.public) < moment())
        said = well.said("south", "site", "doctor", status=1)
        assert "the site's certificate expired" in said
        assert f"the certificate of {home.settings.front.public} expired on" in said
        well.restart("south", "daemon")
        well.until_logged("south", "daemon", "the certificate of", "expired on", since=since)
    well.until(
        "it is renewed", lambda: certificate_expiry(site.site_certificate.read_bytes()) > ended + 2 * DAY_SECONDS
    )
    well.until("the hub is reached again", lambda: "does not answer" not in well.said("south", "site", "status"))
    well.until_round_of("north", "south")


# --- clocks, generations, authorities ------------------------------------------------------------------------------


@contextmanager
def _south_as(federation: Federation, environment: dict[str, str], *processes: str) -> Iterator[None]:
    """South's processes run as another installation for the length of the block."""
    installation = federation.installations["south"]
    own = {GENERATION: str(OURS)}
    installation.be(own | environment)
    try:
        federation.restart("south", *processes)
        yield
    finally:
        installation.be(own)
        federation.restart("south", *processes)


def test_a_clock_that_is_ten_seconds_ahead_is_said_and_the_others_go_on(well: Federation) -> None:
    faked = ahead(10, well.folder)
    if faked is None:
        pytest.skip("no C compiler is installed that could make a library with another clock")
    since = well.log("south", "daemon")
    with _south_as(well, faked, "supernode", "daemon"):
        left_out = well.until_left_out("south", "FL-TRUST-010")
        assert left_out["reason"] in {f"its clock is {n} s ahead of the coordinator's" for n in (9, 10, 11)}
        well.until_round_of("north")
        line = well.until_logged("south", "daemon", "s ahead of the coordinator's", since=since)
        assert "Flower refuses a clock that is 5 s ahead" in line
        assert "s ahead of the coordinator's; Flower refuses more than 5 s." in well.said(
            "south", "site", "doctor", status=1
        )
        assert "s ahead of the coordinator's" in well.said("coordinator", "run", "show", well.run)
    well.until_round_of("north", "south")


@pytest.mark.parametrize("generation", [OURS - 1, OURS + 1], ids=["a site of N-1", "a coordinator of N-1"])
def test_neighbouring_generations_work_together(well: Federation, generation: int) -> None:
    with _south_as(well, {GENERATION: str(generation)}, "daemon"):
        well.until_round_of("north", "south")
        said = well.said("south", "site", "doctor", status=None)
    assert (
        f"the coordinator speaks generation {OURS} of the protocol, this side {generation}: they work together." in said
    )


@pytest.mark.parametrize("generation", [OURS - 2, OURS + 2], ids=["a site of N-2", "a coordinator of N-2"])
def test_generations_that_are_too_far_apart_are_said_at_both_ends(well: Federation, generation: int) -> None:
    since = well.log("south", "daemon")
    with _south_as(well, {GENERATION: str(generation)}, "daemon"):
        left_out = well.until_left_out("south", "FL-TRUST-009")
        apart = f"this side {OURS}; only neighbours work together"
        assert left_out["reason"] == f"site south speaks generation {generation} of the protocol, {apart}."
        well.until_round_of("north")
        well.until_logged("south", "daemon", "STOPPED", "FL-TRUST-009", since=since)
        assert "FL-TRUST-009" in well.said("south", "site", "status")
        assert "speak generations of the protocol that are too far apart" in well.said(
            "south", "site", "doctor", status=1
        )
    well.until_round_of("north", "south")


def _stranger() -> bytes:
    return CertificateAuthority.create("another federation", moment()).certificate


def test_a_token_with_another_authority_joins_nothing(well: Federation, tmp_path: Path) -> None:
    added = well.fedloop("server", "site", "add", "east", "--home", str(well.home), json_output=True)
    token = JoinToken.parse(added["token"])
    other = load_pem_x509_certificate(_stranger()).public_bytes(Encoding.DER)
    wrong = JoinToken(token.site, token.address, token.secret, other, token.expires_unix)
    file = tmp_path / "token"
    file.write_text(wrong.to_text())
    said = well.said("east", "site", "join", "--token-file", str(file), "--yes", status=None)
    assert f"the certificate of {token.address} is not of this federation's authority." in said
    assert "Traceback" not in said
    assert not (well.site_home("east") / "membership.json").exists()


def test_an_authority_that_was_replaced_at_a_site_is_said(well: Federation) -> None:
    home, since = SiteHome(well.site_home("south")), well.log("south", "daemon")
    right = home.authorities.read_bytes()
    write_bytes(home.authorities, _stranger())
    try:
        line = well.until_logged("south", "daemon", "does not answer", since=since)
        assert "`fedloop site doctor`" in line
        said = well.said("south", "site", "doctor", status=1)
        assert "is not of this federation's authority." in said
        assert "does not answer" in well.said("south", "site", "status")
    finally:
        write_bytes(home.authorities, right)
    well.until_round_of("north", "south")


# --- disks and networks --------------------------------------------------------------------------------------------


@contextmanager
def _full(folder: Path) -> Iterator[None]:
    """A disk without room, for the length of the block; skips where the folder has no disk of its own."""
    if not folder.is_mount():
        pytest.skip("no small disk can be mounted here")
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    try:
        yield
    finally:
        filler.unlink()


def test_a_full_disk_at_a_site_is_a_refusal_with_a_code_until_there_is_room(well: Federation) -> None:
    before = well.processes("south")["daemon"]
    with _full(well.site_home("south")):
        left_out = well.until_left_out("south", "FL-STORE-001")
        assert left_out["reason"] == "it refused"
        well.until_round_of("north")
        assert "FL-STORE-001" in well.said("coordinator", "run", "show", well.run)
        assert "cannot write to" in well.said("south", "site", "doctor", status=1)
    well.until_round_of("north", "south")
    assert well.processes("south")["daemon"] == before


def test_a_minute_without_network_delays_a_run_and_nothing_more(well: Federation) -> None:
    before = well.processes("north") | well.processes("south")
    with well.halted("coordinator", "front"):
        time.sleep(45)
    well.until_round_of("north", "south")
    assert not well.events(well.run, "run-failed")
    assert len(well.events(well.run, "attempt-started")) == 1
    assert (well.processes("north") | well.processes("south"))["daemon"] == before["daemon"]


def test_a_full_disk_at_the_coordinator_is_one_sentence_and_the_run_goes_on_when_there_is_room(
    well: Federation,
) -> None:
    with _full(well.home):
        well.until("it says why it waits", lambda: "No space left" in well.said("coordinator", "run", "show", well.run))
        assert "No space left" in well.said("coordinator", "server", "status")
        time.sleep(20)  # more than one round, and long enough for whoever dies of it
    well.until_round_of("north", "south")
    assert not well.events(well.run, "run-failed")
