"""The link to a hub over real gRPC and mutual TLS: notices, reports, refusals, new certificates, a proxy."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from fedloop_clients.activity import ActivityKind
from fedloop_clients.endpoint import Question
from fedloop_clients.home import SiteHome
from fedloop_clients.joining import Renewal
from fedloop_clients.service.connection import HubConnection
from fedloop_clients.service.home_daemon import HomeDaemon
from fedloop_clients.service.link import HubLink, LinkActions
from fedloop_clients.service.renewing import Renewing, renewal_time
from fedloop_clients.service.threads import Backoff, keep_going
from fedloop_core.certificates import CertificateAuthority, bundle_name
from fedloop_core.errors import StorageError
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.task.document import Task
from fedloop_proto.coordination.v1.coordination_pb2 import CancelRun, TrustAuthorities
from fedloop_proto.membership.v1.membership_pb2 import (
    SITE_ACTIVITY_IDLE,
    SITE_ACTIVITY_PAUSED,
    SITE_ACTIVITY_TRAINING,
    SiteReport,
)

Wait = Callable[[Callable[[], bool], str], None]


class Linked:
    """A home's daemon with its link running."""

    def __init__(self, home: SiteHome) -> None:
        self.home = home
        self.stop = threading.Event()
        self.daemon = HomeDaemon(home)
        self.connection = HubConnection(home)
        self.shown: list[Any] = []
        self.renewals = 0
        actions = LinkActions(self._trust, self._renew, lambda *what: self.shown.append(what))
        self.link = HubLink(self.daemon, self.connection, self.daemon.signing, actions, report_seconds=0.5)
        self.threads = [
            keep_going("watch", self.link.watch_once, self.stop),
            keep_going("report", self.link.report_once, self.stop),
        ]

    def _trust(self, certificates: bytes) -> None:
        self.home.authorities.write_bytes(certificates)
        self.connection.drop()

    def _renew(self) -> None:
        self.renewals += 1

    def close(self) -> None:
        self.stop.set()
        self.daemon.board.touch()
        self.connection.drop()
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture
def link() -> Iterator[Callable[[SiteHome], Linked]]:
    made: list[Linked] = []

    def make(home: SiteHome) -> Linked:
        made.append(Linked(home))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_site_says_what_it_does_and_follows_notices(
    link: Callable[[SiteHome], Linked], home: SiteHome, hub: Any, wait_until: Wait
) -> None:
    site = link(home)
    wait_until(lambda: bool(hub.reports and hub.watches), "the hub hears of the site")
    assert (hub.last.activity, hub.last.protocol, hub.last.leaving) == (SITE_ACTIVITY_IDLE, PROTOCOL, False)
    assert abs(hub.last.now_unix - time.time()) < 30
    assert site.link.standing.trouble == ""
    site.home.standing().pause(True)
    wait_until(lambda: hub.last.activity == SITE_ACTIVITY_PAUSED, "the pause is reported")


def test_a_cancel_over_the_hub_ends_training_and_is_acknowledged(
    link: Callable[[SiteHome], Linked],
    home: SiteHome,
    hub: Any,
    coordinator: Any,
    tasks: Callable[..., Task],
    wait_until: Wait,
) -> None:
    site, task = link(home), tasks(steps=100_000)
    site.daemon.answer(Question(coordinator.describe(task), {}))
    replies: list[Any] = []
    question = Question(*coordinator.train(task, 1))
    thread = threading.Thread(target=lambda: replies.append(site.daemon.answer(question)))
    thread.start()
    wait_until(lambda: hub.last.activity == SITE_ACTIVITY_TRAINING, "the training is reported")
    assert (hub.last.run_id, hub.last.round) == ("run-1", 1)
    number = hub.post(coordinator.instruction(task, {}, cancel_run=CancelRun()))
    thread.join(60)
    assert coordinator.open(home, replies[0].answer).refusal.code == "FL-RUN-003"
    wait_until(lambda: hub.acknowledged == number, "the notice is acknowledged")


def test_a_notice_that_is_refused_is_acknowledged_and_the_next_one_is_acted_on(
    link: Callable[[SiteHome], Linked], home: SiteHome, hub: Any, coordinator: Any, task: Task, wait_until: Wait
) -> None:
    hub.post(b"\xff" * 20)
    number = hub.post(coordinator.instruction(task, {}, cancel_run=CancelRun()))
    site = link(home)
    wait_until(lambda: hub.acknowledged == number, "both are acknowledged")
    reply = site.daemon.answer(Question(coordinator.describe(task), {}))
    assert coordinator.open(home, reply.answer).refusal.code == "FL-RUN-003"


def test_a_notice_that_cannot_be_kept_comes_again(
    link: Callable[[SiteHome], Linked],
    home: SiteHome,
    hub: Any,
    coordinator: Any,
    task: Task,
    wait_until: Wait,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise StorageError("cannot write: No space left on device.")

    with monkeypatch.context() as patch:
        patch.setattr("fedloop_clients.outbox.Outbox.cancel", full)
        link(home)
        number = hub.post(coordinator.instruction(task, {}, cancel_run=CancelRun()))
        wait_until(lambda: len(hub.watches) > 1, "the watch begins anew")
        assert hub.acknowledged == 0
    wait_until(lambda: hub.acknowledged == number, "it is acknowledged once it is kept")


def test_a_hub_that_goes_and_comes_is_found_again(
    link: Callable[[SiteHome], Linked], home: SiteHome, hub: Any, wait_until: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    site = link(home)
    wait_until(lambda: bool(hub.reports), "the first report")
    hub.stop()
    wait_until(lambda: site.link.standing.trouble != "", "the hub is missed")
    assert "FL-NET-001" in site.link.standing.trouble
    before = len(hub.reports), len(hub.watches)
    hub.start(hub.port)
    wait_until(lambda: len(hub.reports) > before[0] and len(hub.watches) > before[1], "both come back")
    assert site.link.standing.trouble == ""


def test_a_connection_that_this_side_closes_is_no_trouble(
    link: Callable[[SiteHome], Linked], home: SiteHome, hub: Any, wait_until: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    site = link(home)
    wait_until(lambda: bool(hub.reports and hub.watches), "the hub hears of the site")
    before = len(hub.reports), len(hub.watches)
    site.connection.drop()  # as after a renewal
    wait_until(lambda: len(hub.reports) > before[0] and len(hub.watches) > before[1], "both go on")
    assert "does not answer" not in caplog.text


REFUSALS = {
    "revoked": (grpc.StatusCode.PERMISSION_DENIED, "FL-TRUST-008", "has revoked this site"),
    "of another age": (grpc.StatusCode.FAILED_PRECONDITION, "FL-TRUST-009", "too far apart"),
}


@pytest.mark.parametrize(("status", "code", "sentence"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_site_that_is_refused_says_so_and_stops(
    link: Callable[[SiteHome], Linked],
    home: SiteHome,
    hub: Any,
    wait_until: Wait,
    caplog: pytest.LogCaptureFixture,
    status: grpc.StatusCode,
    code: str,
    sentence: str,
) -> None:
    site = link(home)
    wait_until(lambda: bool(hub.reports), "the first report")
    hub.refuse = (status, code)  # a stream that is open ends too
    wait_until(lambda: site.daemon.activity().kind is ActivityKind.STOPPED, "the site is stopped")
    assert site.daemon.activity().code == code
    assert sentence in site.link.standing.trouble
    assert "STOPPED" in caplog.text
    wait_until(lambda: site.shown[-1][0].kind is ActivityKind.STOPPED, "it is shown")


def test_a_certificate_that_expires_meanwhile_is_said_and_the_site_goes_on_with_a_new_one(
    link: Callable[[SiteHome], Linked], home: SiteHome, hub: Any, coordinator: Any, wait_until: Wait
) -> None:
    site = link(home)
    wait_until(lambda: bool(hub.reports), "the first report")
    hub.refuse = (grpc.StatusCode.UNAUTHENTICATED, "FL-TRUST-005")
    wait_until(lambda: "expired" in site.link.standing.trouble, "the hub refuses the certificate")
    assert site.daemon.activity().kind is ActivityKind.IDLE  # nothing that a person must act on
    wait_until(lambda: site.renewals > 0, "a new certificate is asked for, which needs no good one")
    coordinator.certify(home)  # as the renewal does, which needs no certificate
    hub.refuse = None
    before = len(hub.reports)
    wait_until(lambda: len(hub.reports) > before and site.link.standing.trouble == "", "it is back")


def test_a_hub_of_another_age_is_refused_by_the_site_too(
    link: Callable[[SiteHome], Linked], home: SiteHome, hub: Any, wait_until: Wait
) -> None:
    hub.protocol = PROTOCOL + 2
    site = link(home)
    wait_until(lambda: site.daemon.activity().code == "FL-TRUST-009", "the site is stopped")
    assert "generation" in site.link.standing.trouble


def test_a_hub_that_is_busy_is_no_broken_connection(
    link: Callable[[SiteHome], Linked], home: SiteHome, hub: Any, wait_until: Wait
) -> None:
    site = link(home)
    wait_until(lambda: bool(hub.reports and hub.watches), "the hub hears of the site")
    client = site.connection.client()
    hub.refuse_reports = (grpc.StatusCode.RESOURCE_EXHAUSTED, "FL-EDGE-011")
    wait_until(lambda: "FL-EDGE-011" in site.link.standing.trouble, "it is busy")
    hub.refuse_reports = None
    wait_until(lambda: site.link.standing.trouble == "", "it is not busy any more")
    assert site.connection.client() is client
    assert len(hub.watches) == 1


def test_a_clock_that_differs_is_said_once_in_one_sentence(
    link: Callable[[SiteHome], Linked], home: SiteHome, hub: Any, wait_until: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    hub.ahead = -10
    site = link(home)
    wait_until(lambda: len(hub.reports) >= 3, "some reports")
    assert caplog.text.count("ahead of the coordinator's") == 1
    assert abs(site.link.standing.skew_seconds - 10) <= 2
    hub.ahead = 0
    wait_until(lambda: abs(site.link.standing.skew_seconds) <= 2, "the clocks agree")
    hub.ahead = 10
    wait_until(lambda: "s behind the coordinator's" in caplog.text, "the other side is said too")


def test_a_site_that_leaves_signs_it(
    link: Callable[[SiteHome], Linked], home: SiteHome, hub: Any, wait_until: Wait
) -> None:
    link(home)
    home.standing().leave()
    wait_until(lambda: hub.last.leaving, "the leave is reported")
    report = SiteReport()
    report.CopyFrom(hub.last)
    signature = report.signature
    report.ClearField("signature")
    assert home.signing_key().verifying.verifies(signature, report.SerializeToString(deterministic=True))


def test_new_authorities_are_trusted_and_the_connection_is_made_anew(
    link: Callable[[SiteHome], Linked], home: SiteHome, hub: Any, coordinator: Any, task: Task, wait_until: Wait
) -> None:
    link(home)
    wait_until(lambda: bool(hub.reports), "the first report")
    successor = CertificateAuthority.create("coordinator", int(time.time()))
    bundle = coordinator.authority.certificate + successor.certificate
    hub.post(coordinator.instruction(task, {}, run_id="", trust_authorities=TrustAuthorities(certificates=bundle)))
    wait_until(lambda: home.authorities.read_bytes() == bundle, "the bundle is stored")
    wait_until(lambda: hub.last.trusted_bundle == bundle_name(bundle), "the site says whom it trusts now")
    hub.stop()
    coordinator.certify(home, successor)  # as a renewal does
    home.authorities.write_bytes(bundle)
    before = len(hub.reports)
    hub.start(hub.port, successor)
    wait_until(lambda: len(hub.reports) > before, "the hub under the new authority is reached")


def test_authorities_that_are_refused_are_not_said_to_be_trusted(
    link: Callable[[SiteHome], Linked], home: SiteHome, hub: Any, coordinator: Any, task: Task, wait_until: Wait
) -> None:
    site = link(home)
    held = home.authorities.read_bytes()

    def notice(certificates: bytes, expires_unix: int) -> bytes:
        trusted = TrustAuthorities(certificates=certificates)
        envelope: bytes = coordinator.instruction(
            task, {}, run_id="", trust_authorities=trusted, expires_unix=expires_unix
        )
        return envelope

    later = int(time.time()) + 1000
    site.daemon.notice(notice(held, later))
    other = CertificateAuthority.create("coordinator", int(time.time())).certificate
    number = hub.post(notice(other, later - 1))  # older than the one that holds
    wait_until(lambda: hub.acknowledged == number, "it is acknowledged all the same")
    before = len(hub.reports)
    wait_until(lambda: len(hub.reports) > before, "one more report")
    assert {report.trusted_bundle for report in hub.reports} == {bundle_name(held)}
    assert home.authorities.read_bytes() == held


def test_a_hub_of_a_stranger_hears_nothing(
    link: Callable[[SiteHome], Linked], home: SiteHome, hub: Any, wait_until: Wait
) -> None:
    hub.stop()
    hub.start(hub.port, CertificateAuthority.create("coordinator", int(time.time())))
    site = link(home)
    wait_until(lambda: site.link.standing.trouble != "", "the stranger is refused")
    assert not hub.reports
    assert not hub.watches


# --- a proxy -------------------------------------------------------------------------------------------------------


class Proxy(socketserver.ThreadingTCPServer):
    """An HTTP proxy that knows one name, as an institution's proxy knows names that its machines do not."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, leads_to: int) -> None:
        self.leads_to = leads_to
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Tunnel)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Tunnel(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Proxy)
        self.server.asked.append(self.rfile.readline().decode().strip())
        while self.rfile.readline().strip():
            pass
        with socket.create_connection(("127.0.0.1", self.server.leads_to)) as far:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_pour, args=(far, self.connection), daemon=True)
            back.start()
            _pour(self.connection, far)
            back.join(10)


def _pour(source: socket.socket, sink: socket.socket) -> None:
    try:
        while chunk := source.recv(65536):
            sink.sendall(chunk)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


def test_the_hub_is_reached_through_the_proxy_of_site_toml_and_by_no_other(
    link: Callable[[SiteHome], Linked],
    coordinator: Any,
    make_hub: Callable[..., Any],
    wait_until: Wait,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody is there
    hub = make_hub(names=("coordinator.test",))
    home = coordinator.home(hub.address)
    with Proxy(hub.port) as proxy:
        text = home.settings_file.read_text()
        address = proxy.server_address[1]
        home.settings_file.write_text(text.replace("[data]", f'proxy = "http://127.0.0.1:{address}"\n\n[data]', 1))
        link(home)
        wait_until(lambda: bool(hub.reports and hub.watches), "the hub hears of the site")
        assert set(proxy.asked) == {f"CONNECT coordinator.test:{hub.port} HTTP/1.1"}
        proxy.shutdown()


def test_without_a_proxy_in_site_toml_the_environments_is_not_looked_at(
    link: Callable[[SiteHome], Linked], home: SiteHome, hub: Any, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    link(home)
    wait_until(lambda: bool(hub.reports), "the hub hears of the site")


# --- renewal -------------------------------------------------------------------------------------------------------


class Renewals:
    """A coordinator's renewals: a new certificate, or an error."""

    def __init__(self, coordinator: Any) -> None:
        self.coordinator = coordinator
        self.error: Exception | None = None
        self.asked = 0

    def __call__(self, home: SiteHome) -> Renewal:
        self.asked += 1
        if self.error is not None:
            raise self.error
        self.coordinator.certify(home)
        return Renewal(int(time.time()) + 90 * 86_400, 0)


def test_a_certificate_renews_itself_at_half_of_its_life_and_when_the_coordinator_asks(
    home: SiteHome, coordinator: Any
) -> None:
    renewals, told = Renewals(coordinator), []
    now = [time.time()]
    renewing = Renewing(home, lambda: told.append(1), lambda: now[0], renewals)
    renewing.ask()
    renewing.once()
    assert (renewals.asked, len(told)) == (1, 1)
    now[0] += 46 * 86_400
    renewals.error = StorageError("full")
    with pytest.raises(StorageError):
        renewing.once()
    renewals.error = None
    renewing.once()
    assert (renewals.asked, len(told)) == (3, 2)


def test_half_of_a_life() -> None:
    assert renewal_time(100, 300) == 200


def test_a_certificate_of_the_institutions_own_is_never_asked_of_the_coordinator(
    home: SiteHome, coordinator: Any, caplog: pytest.LogCaptureFixture
) -> None:
    home.store_membership(home.membership().model_copy(update={"own_authority": True}))
    renewals = Renewals(coordinator)
    renewing = Renewing(home, lambda: None, lambda: time.time() + 60 * 86_400, renewals)
    renewing.once()
    renewing.once()
    assert renewals.asked == 0
    assert caplog.text.count("institution's own") == 1


def test_the_hub_asks_for_a_renewal_in_its_answer_to_a_report(
    link: Callable[[SiteHome], Linked], home: SiteHome, hub: Any, wait_until: Wait
) -> None:
    hub.renewal_due = True
    site = link(home)
    wait_until(lambda: site.renewals > 0, "the renewal is asked for")


# --- threads -------------------------------------------------------------------------------------------------------


def test_waiting_doubles_to_a_bound_and_begins_anew_after_a_success() -> None:
    backoff = Backoff(1.0, 8.0)
    waits = [backoff.failed() for _ in range(40)]
    for wait, bound in zip(waits, [1.0, 2.0, 4.0, *[8.0] * 37], strict=True):
        assert bound / 2 <= wait <= bound
    backoff.succeeded()
    assert backoff.failed() <= 1.0


@pytest.mark.parametrize("error", [StorageError("full"), RuntimeError("a mistake"), MemoryError()])
def test_a_part_that_fails_goes_on(error: Exception, wait_until: Wait, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []
    stop = threading.Event()

    def once() -> float:
        calls.append(1)
        if len(calls) == 1:
            raise error
        return 0.01

    thread = keep_going("a part", once, stop)
    wait_until(lambda: len(calls) > 2, "it goes on")
    stop.set()
    thread.join(10)
    assert "a part" in caplog.text
