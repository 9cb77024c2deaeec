"""The daemon's service against a coordinator's own service: it joins, reports, is called off, renewed, rolled over, revoked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.membership.coordinators import Coordinator, wait_until

from fedloop_clients.activity import ActivityKind
from fedloop_clients.endpoint import Question
from fedloop_clients.home import SiteHome
from fedloop_clients.joining import join
from fedloop_clients.service.process import SiteService
from fedloop_clients.status import read_status
from fedloop_core.arrays import digest
from fedloop_core.certificates import certificate_fingerprint
from fedloop_core.federation.answers import open_answer
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.keys import VerifyingKey, seal
from fedloop_proto.coordination.v1.coordination_pb2 import CancelRun, CollectMoments, Instruction
from fedloop_server.membership import ActivityKind as Told
from fedloop_server.membership import SiteState

pytestmark = pytest.mark.slow


class Site:
    """A site that joined over TLS, and its service in a thread."""

    def __init__(self, folder: Path, coordinator: Coordinator) -> None:
        self.home = SiteHome(folder)
        join(coordinator.invite("north"), self.home, proxy="", confirm=lambda _: True)
        self.service = SiteService(self.home, report_seconds=0.5)
        self.thread = threading.Thread(target=self.service.run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.service.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    made = Coordinator(tmp_path / "c").start()
    yield made
    made.stop()


@pytest.fixture
def start(tmp_path: Path, coordinator: Coordinator) -> Iterator[Callable[[], Site]]:
    made: list[Site] = []

    def begin() -> Site:
        made.append(Site(tmp_path / "s", coordinator))
        return made[-1]

    yield begin
    for site in made:
        site.stop()


def instruction(coordinator: Coordinator, **parts: object) -> bytes:
    base: dict[str, object] = {
        "run_id": "run-1",
        "attempt": 1,
        "site": "north",
        "arrays_digest": digest({}),
        "expires_unix": int(time.time()) + 600,
        "protocol": PROTOCOL,
    }
    return seal(Instruction(**(base | parts)), coordinator.home.envelope_key)  # type: ignore[arg-type]


def test_a_site_is_seen_called_off_renewed_and_rolled_over(start: Callable[[], Site], coordinator: Coordinator) -> None:
    site = start()
    record = wait_until(
        lambda: (
            seen
            if (seen := coordinator.members.site("north")).activity.kind is Told.IDLE and seen.last_seen_unix
            else None
        ),
        "the site is seen",
    )
    assert record.state is SiteState.ACTIVE
    assert abs(record.clock_skew_seconds) <= 2

    coordinator.notices.post("north", instruction(coordinator, cancel_run=CancelRun()))
    wait_until(lambda: not coordinator.notices.pending("north"), "the cancel is acknowledged")
    reply = site.service.daemon.answer(Question(instruction(coordinator, collect_moments=CollectMoments()), {}))
    answer = open_answer(reply.answer, VerifyingKey(record.signing_key), site="north")
    assert answer.refusal.code == "FL-RUN-003"

    before = certificate_fingerprint(site.home.site_certificate.read_bytes())
    site.service.renewing.ask()
    wait_until(lambda: certificate_fingerprint(site.home.site_certificate.read_bytes()) != before, "it is renewed")
    since = coordinator.members.site("north").last_seen_unix
    wait_until(lambda: coordinator.members.site("north").last_seen_unix > since, "it goes on under the new certificate")
    assert read_status(site.home.folder).code == ""


def test_a_site_that_is_revoked_says_so_at_once(start: Callable[[], Site], coordinator: Coordinator) -> None:
    site = start()
    wait_until(lambda: coordinator.members.site("north").last_seen_unix, "the site is seen")
    coordinator.members.revoke("north", "for the test")
    wait_until(lambda: site.service.daemon.activity().kind is ActivityKind.STOPPED, "it is stopped")
    assert site.service.daemon.activity().code == "FL-TRUST-008"
    wait_until(lambda: "revoked" in read_status(site.home.folder).hub, "its status says so")
    assert "revoked" in site.home.shut_out_file.read_text()


def test_a_site_that_leaves_is_let_go(start: Callable[[], Site], coordinator: Coordinator) -> None:
    site = start()
    wait_until(lambda: coordinator.members.site("north").last_seen_unix, "the site is seen")
    site.home.standing().leave()
    wait_until(lambda: coordinator.members.site("north").state is SiteState.LEFT, "it has left")
    wait_until(site.home.shut_out_file.exists, "its supervisor is told")
    assert site.home.shut_out_file.read_text().startswith("this site has left")
