"""Replacing the authority while two sites stay connected, also when the process dies between two steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.membership.coordinators import Coordinator, SiteEnd, wait_until

from fedloop_core.certificates import bundle_name, certificate_request, is_issued_by
from fedloop_core.errors import UsageError
from fedloop_core.keys import unseal
from fedloop_proto.membership.v1 import membership_pb2 as messages
from fedloop_server.membership import Authorities
from fedloop_server.membership.rollover import Rollover
from fedloop_server.membership.servers import ServerCertificates

Make = Callable[..., Coordinator]


def _rollover(coordinator: Coordinator) -> Rollover:
    home = coordinator.home
    return Rollover(coordinator.members, coordinator.notices, home.authorities(), home.envelope_key)


def _take_notice(coordinator: Coordinator, site: SiteEnd) -> None:
    """What a site's daemon does: opens the envelope, trusts what it brings, says so."""
    with coordinator.hub(site) as stub:
        for notice in stub.Watch(messages.WatchRequest(protocol=1)):
            if notice.number:
                break
        instruction, _ = unseal(
            notice.envelope,
            coordinator.home.envelope_key.verifying,
            site=site.name,
            now_unix=int(time.time()),
        )
        site.authorities = instruction.trust_authorities.certificates
        stub.Report(site.report(acknowledged=notice.number, trusted_bundle=bundle_name(site.authorities)))


def test_a_notice_that_a_site_has_refused_does_not_lock_it_out(coordinator: Coordinator) -> None:
    """It is acknowledged, or it would come for ever; the site goes on to know the coordinator by the old authority."""
    north = coordinator.joined("north")
    rollover = _rollover(coordinator)
    rollover.begin()
    with coordinator.hub(north) as stub:
        stub.Report(north.report(acknowledged=1, trusted_bundle=bundle_name(north.authorities)))
    assert coordinator.notices.pending("north") == ()
    assert rollover.standing().waiting == ("north",)
    with pytest.raises(UsageError, match="north"):
        rollover.finish()
    assert rollover.begin() == ("north",)  # told again
    _take_notice(coordinator, north)
    assert rollover.finish() == ("north",)


def test_a_site_of_an_earlier_release_says_nothing_and_is_waited_for(coordinator: Coordinator) -> None:
    north = coordinator.joined("north")
    rollover = _rollover(coordinator)
    rollover.begin()
    with coordinator.hub(north) as stub:
        stub.Report(north.report(acknowledged=1))
    assert rollover.standing().waiting == ("north",)


def test_two_sites_pass_over_to_a_new_authority(coordinator: Coordinator) -> None:
    north, south = coordinator.joined("north"), coordinator.joined("south")
    authorities = coordinator.home.authorities()
    old = authorities.current().certificate
    rollover = _rollover(coordinator)
    with pytest.raises(UsageError):
        rollover.finish()
    assert rollover.begin() == ("north", "south")
    assert rollover.begin() == ()  # again: nobody is told twice
    new = authorities.newest().certificate
    assert new != old
    assert rollover.standing().waiting == ("north", "south")
    _take_notice(coordinator, north)
    assert north.authorities == authorities.bundle()
    assert rollover.standing().waiting == ("south",)
    with pytest.raises(UsageError) as refused:
        rollover.finish()
    assert "south" in refused.value.message
    # Both still speak: north knows both authorities, south only the old one; who joins now gets the new one's certificate.
    for site in (north, south):
        with coordinator.hub(site) as stub:
            assert stub.Report(site.report()).certificate_renewal_due
    east = coordinator.joined("east")
    assert is_issued_by(east.certificate, new)
    renewed = coordinator.renew(north, north.renew_request())
    assert is_issued_by(renewed.certificate, new)
    north.certificate = renewed.certificate
    with coordinator.hub(north) as stub:
        assert not stub.Report(north.report()).certificate_renewal_due
    _take_notice(coordinator, south)
    late = coordinator.invite("west")
    standing = rollover.standing()
    assert (standing.waiting, standing.former, standing.tokens) == ((), ("south",), ("west",))
    assert rollover.finish() == ("east", "north", "south")
    assert authorities.current().certificate == new
    assert authorities.next() is None
    assert coordinator.members.site("west").token is None
    assert late.authority_pem() == old

    def hub_shows_the_new_one() -> bool:
        probe = SiteEnd("north", key=north.key, certificate=north.certificate, authorities=new)
        with coordinator.hub(probe) as stub:
            try:
                stub.Report(probe.report(), timeout=5)
            except grpc.RpcError as error:
                return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            return True

    wait_until(hub_shows_the_new_one, "the hub shows a certificate of the new authority")
    for site in (north, south, east):  # south still under a certificate of the old authority
        _take_notice(coordinator, site)
        assert site.authorities == new
    assert rollover.standing().waiting == ()
    south.certificate = coordinator.renew(south, south.renew_request()).certificate
    with coordinator.hub(south) as stub:
        assert not stub.Report(south.report()).certificate_renewal_due
    assert is_issued_by((coordinator.home.front / "tls.pem").read_bytes(), new)


def test_whoever_has_the_retired_authoritys_key_makes_no_sites(coordinator: Coordinator) -> None:
    site = coordinator.joined("north")
    stolen = coordinator.home.authorities().current()
    rollover = _rollover(coordinator)
    rollover.begin()
    _take_notice(coordinator, site)
    rollover.finish()
    thief = ec.generate_private_key(ec.SECP256R1())
    certificate = stolen.issue_site(certificate_request(thief), "north", now_unix=int(time.time()))
    with coordinator.hub(site, certificate=certificate, key=thief) as stub, pytest.raises(grpc.RpcError):
        stub.Report(site.report(), timeout=20)


def test_a_rollover_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    authorities = Authorities(tmp_path, "hearts")
    assert authorities.create()
    assert not authorities.create()
    first = authorities.current().certificate
    assert authorities.roll()
    assert not authorities.roll()
    second = authorities.newest().certificate
    assert bundle_name(authorities.bundle()) == bundle_name(second + first)
    (tmp_path / "retired.pem").write_bytes(first)
    (tmp_path / "ca.key").write_bytes((tmp_path / "next-ca.key").read_bytes())  # and died here
    assert authorities.current().certificate == second
    assert authorities.next() is None
    assert not (tmp_path / "next-ca.key").exists()
    assert first in authorities.client_bundle()
    assert first not in authorities.bundle()


def test_a_key_without_its_certificate_is_continued(tmp_path: Path) -> None:
    authorities = Authorities(tmp_path, "hearts")
    authorities.create()
    authorities.roll()
    (tmp_path / "next-ca.pem").unlink()  # died between key and certificate
    assert authorities.next() is None
    assert authorities.roll()
    assert authorities.next() is not None


def test_servers_keep_the_old_authority_until_the_end(coordinators: Make) -> None:
    coordinator = coordinators()
    home = coordinator.home
    old = home.authorities().current().certificate
    _rollover(coordinator).begin()
    certificates = ServerCertificates(home.folder, home.settings, home.authorities())
    assert certificates.refresh(int(time.time())) == ()
    _rollover(coordinator).finish()
    assert certificates.refresh(int(time.time())) == ("keys/hub.pem", "front/tls.pem")
    internal = home.keys / "superlink.pem"
    assert is_issued_by(internal.read_bytes(), old)  # SuperLink cannot take a new one while it runs
    assert (home.front / "authorities.pem").read_bytes() == old
