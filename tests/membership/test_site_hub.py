"""The hub: who may speak, notices, reports, and streams that end when they must."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.membership.coordinators import DEADLINE, Coordinator, SiteEnd, wait_until

from fedloop_core.audit import AuditAction
from fedloop_core.certificates import (
    CertificateAuthority,
    certificate_expiry,
    certificate_fingerprint,
    certificate_request,
    key_id,
)
from fedloop_core.errors import CertificateRefused, EnvelopeRefused
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.keys import SigningKey, seal, unseal
from fedloop_proto.coordination.v1.coordination_pb2 import CancelRun, Instruction
from fedloop_proto.membership.v1 import membership_pb2 as messages
from fedloop_server.membership import ActivityKind, SiteState
from fedloop_server.membership.records import IssuedCertificate

Make = Callable[..., Coordinator]


class Watching:
    """An open Watch, read by a thread."""

    def __init__(self, stub: Any, acknowledged: int = 0, protocol: int = PROTOCOL) -> None:
        self._stream = stub.Watch(messages.WatchRequest(acknowledged=acknowledged, protocol=protocol))
        self.notices: queue.Queue[messages.Notice] = queue.Queue()
        self.error: grpc.RpcError | None = None
        self.ended_at = 0.0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for notice in self._stream:
                self.notices.put(notice)
        except grpc.RpcError as error:
            self.error = error
        self.ended_at = time.monotonic()

    def next(self) -> messages.Notice:
        return self.notices.get(timeout=DEADLINE)

    def end(self) -> grpc.RpcError | None:
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()
        return self.error

    def cancel(self) -> None:
        self._stream.cancel()
        self._thread.join(DEADLINE)


def _cancel(coordinator: Coordinator, site: str, run_id: str = "r1") -> bytes:
    instruction = Instruction(
        run_id=run_id, attempt=1, site=site, expires_unix=int(time.time()) + 600, cancel_run=CancelRun()
    )
    return seal(instruction, coordinator.home.envelope_key)


def test_a_greeting_comes_at_once_then_notices_until_they_are_acknowledged(coordinator: Coordinator) -> None:
    site = coordinator.joined("north")
    coordinator.notices.post("north", _cancel(coordinator, "north", "before"))
    with coordinator.hub(site) as stub:
        watching = Watching(stub)
        greeting = watching.next()
        assert (greeting.number, greeting.envelope, greeting.protocol) == (0, b"", PROTOCOL)
        assert abs(greeting.now_unix - time.time()) < 30
        first = watching.next()
        posted = time.monotonic()
        coordinator.notices.post("north", _cancel(coordinator, "north", "during"))
        second = watching.next()
        assert time.monotonic() - posted < 5
        assert [first.number, second.number] == [1, 2]
        opened, _ = unseal(
            second.envelope,
            coordinator.home.envelope_key.verifying,
            site="north",
            now_unix=int(time.time()),
        )
        assert opened.run_id == "during"
        watching.cancel()
        again = Watching(stub, acknowledged=1)
        assert [again.next().number, again.next().number] == [0, 2]
        stub.Report(site.report(acknowledged=2))
        assert coordinator.notices.pending("north") == ()
        again.cancel()


def test_notices_outlive_the_service_and_are_each_sites_own(coordinators: Make) -> None:
    coordinator = coordinators().start()
    site, other = coordinator.joined("north"), coordinator.joined("south")
    coordinator.notices.post("north", _cancel(coordinator, "north"))
    with pytest.raises(EnvelopeRefused):
        coordinator.notices.post("north", _cancel(coordinator, "south"))
    assert coordinator.service is not None
    coordinator.service.stop()
    coordinator.service = None
    coordinator._door.shutdown()  # type: ignore[union-attr]
    coordinator._door.server_close()  # type: ignore[union-attr]
    coordinator.start()
    with coordinator.hub(site) as stub:
        watching = Watching(stub)
        assert [watching.next().number, watching.next().number] == [0, 1]
        watching.cancel()
    with coordinator.hub(other) as stub:
        watching = Watching(stub)
        assert watching.next().number == 0
        time.sleep(0.6)
        assert watching.notices.empty()
        watching.cancel()


def test_a_stream_ends_at_once_when_its_site_is_revoked_and_others_go_on(coordinator: Coordinator) -> None:
    site, other = coordinator.joined("north"), coordinator.joined("south")
    with coordinator.hub(site) as stub, coordinator.hub(other) as others:
        watching, undisturbed = Watching(stub), Watching(others)
        watching.next()
        undisturbed.next()
        revoked = time.monotonic()
        coordinator.members.revoke("north", "test")
        error = watching.end()
        assert watching.ended_at - revoked < 5  # a second on an idle machine
        assert error is not None
        assert (error.code(), error.details()) == (grpc.StatusCode.PERMISSION_DENIED, "FL-TRUST-008")
        with pytest.raises(grpc.RpcError) as refused:
            stub.Report(site.report())
        assert refused.value.details() == "FL-TRUST-008"
        coordinator.notices.post("south", _cancel(coordinator, "south"))
        assert undisturbed.next().number == 1
        undisturbed.cancel()


def test_a_stream_ends_when_its_certificate_expires(coordinator: Coordinator) -> None:
    site = coordinator.joined("north")
    now = int(time.time())
    authority = coordinator.home.authorities().current()
    pem = authority.issue_site(certificate_request(site.key), "north", now_unix=now - 86_400 + 6, days=1)
    coordinator.members.record_renewal(
        "north",
        IssuedCertificate(pem, certificate_fingerprint(pem), certificate_expiry(pem)),
        key_id(site.key.public_key()),
        now,
    )
    site.certificate = pem
    with coordinator.hub(site) as stub:
        watching = Watching(stub)
        watching.next()
        assert stub.Report(site.report()).certificate_renewal_due
        error = watching.end()
        assert time.time() >= certificate_expiry(pem)
        assert error is not None
        assert error.details() == "FL-TRUST-005"
    renewed = coordinator.renew(site, site.renew_request(now + 1))
    site.certificate = renewed.certificate
    with coordinator.hub(site) as stub:
        assert not stub.Report(site.report()).certificate_renewal_due


def test_a_later_stream_takes_the_place_of_an_earlier_one(coordinator: Coordinator) -> None:
    site = coordinator.joined("north")
    with coordinator.hub(site) as stub:
        first = Watching(stub)
        first.next()
        second = Watching(stub)
        second.next()
        assert first.end() is None
        coordinator.notices.post("north", _cancel(coordinator, "north"))
        assert second.next().number == 1
        second.cancel()


def test_reports_tell_what_a_site_does_and_how_its_clock_goes(coordinator: Coordinator) -> None:
    site = coordinator.joined("north")
    with coordinator.hub(site) as stub:
        answer = stub.Report(
            site.report(
                now_unix=int(time.time()) + 10,
                activity=messages.SITE_ACTIVITY_TRAINING,
                run_id="r1",
                round=3,
                step=5,
                steps=20,
                software_version="0.2.1",
            )
        )
        assert answer.protocol == PROTOCOL
        assert abs(answer.now_unix - time.time()) < 30
        assert not answer.certificate_renewal_due
    record = coordinator.members.site("north")
    assert 8 <= record.clock_skew_seconds <= 10
    assert abs(record.last_seen_unix - time.time()) < 30
    assert (record.activity.kind, record.activity.run_id) == (ActivityKind.TRAINING, "r1")
    assert (record.activity.round, record.activity.step, record.activity.steps) == (3, 5, 20)
    assert record.software_version == "0.2.1"


def test_a_site_leaves_by_its_own_signature(coordinator: Coordinator) -> None:
    site = coordinator.joined("north")
    with coordinator.hub(site) as stub:
        watching = Watching(stub)
        watching.next()
        for bad in (
            site.leaving(SigningKey.generate()),
            site.report(leaving=True),
            site.leaving(now_unix=int(time.time()) - 100_000),
        ):
            with pytest.raises(grpc.RpcError):
                stub.Report(bad)
        assert coordinator.members.site("north").state is SiteState.ACTIVE
        stub.Report(site.leaving())
        error = watching.end()
        assert error is not None
        assert error.details() == "FL-TRUST-008"
    assert coordinator.members.site("north").state is SiteState.LEFT
    assert AuditAction.SITE_LEFT in {entry.action for entry in coordinator.home.audit().entries()}


def _own_authority(site: SiteEnd) -> bytes:
    made = CertificateAuthority.create("stranger", int(time.time()))
    return made.issue_site(certificate_request(site.key), "north", now_unix=int(time.time()))


STRANGERS: dict[str, Callable[[Coordinator, SiteEnd, SiteEnd], tuple[bytes, ec.EllipticCurvePrivateKey]]] = {
    "certificate of another authority": lambda c, site, other: (_own_authority(site), site.key),
    "certificate of a stranger, by our authority": lambda c, site, other: (
        c.home.authorities().current().issue_site(certificate_request(site.key), "north", now_unix=int(time.time())),
        site.key,
    ),
    "the certificate before it joined again": lambda c, site, other: _rejoined(c, site),
}


def _rejoined(c: Coordinator, site: SiteEnd) -> tuple[bytes, ec.EllipticCurvePrivateKey]:
    former, key = site.certificate, site.key
    c.joined("north")
    return former, key


@pytest.mark.parametrize("name", STRANGERS)
def test_strangers_are_refused(coordinator: Coordinator, name: str) -> None:
    site, other = coordinator.joined("north"), coordinator.joined("south")
    certificate, key = STRANGERS[name](coordinator, site, other)
    with coordinator.hub(site, certificate=certificate, key=key) as stub:
        with pytest.raises(grpc.RpcError) as refused:
            stub.Report(site.report(), timeout=20)
        assert refused.value.code() in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.PERMISSION_DENIED,
            grpc.StatusCode.UNAUTHENTICATED,
        )
    assert coordinator.members.site("south").last_seen_unix == 0


def test_a_certificate_newer_than_the_backup_is_none_of_a_revoked_site(coordinator: Coordinator) -> None:
    """A coordinator that was put back does not know it; the site's signing key, which it knows, gets a new one."""
    site = coordinator.joined("north")
    made = coordinator.home.authorities().issue_site(certificate_request(site.key), "north", days=90)
    with coordinator.hub(site, certificate=made) as stub, pytest.raises(grpc.RpcError) as refused:
        stub.Report(site.report(), timeout=20)
    assert refused.value.details() == CertificateRefused.code
    site.certificate = coordinator.renew(site, site.renew_request()).certificate
    with coordinator.hub(site) as stub:
        stub.Report(site.report(), timeout=20)


def test_another_sites_certificate_speaks_for_that_site_alone(coordinator: Coordinator) -> None:
    site, other = coordinator.joined("north"), coordinator.joined("south")
    with coordinator.hub(other) as stub, pytest.raises(grpc.RpcError):  # north's word under south's certificate
        stub.Report(site.leaving())
    assert coordinator.members.site("north").state is SiteState.ACTIVE
    assert coordinator.members.site("south").state is SiteState.ACTIVE


def test_a_caller_without_a_certificate_does_not_come_in(coordinator: Coordinator) -> None:
    site = coordinator.joined("north")
    credentials = grpc.ssl_channel_credentials(site.authorities)
    from fedloop_proto.membership.v1 import membership_pb2_grpc

    with grpc.secure_channel(coordinator.home.settings.hub.public, credentials) as channel:
        stub = membership_pb2_grpc.SiteHubStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError) as refused:
            stub.Report(site.report(), timeout=20)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


REPORTS: dict[str, tuple[dict[str, Any], str]] = {
    "a generation too new": ({"protocol": 9}, "FL-TRUST-009"),
    "no generation": ({"protocol": 0}, "FL-TRUST-009"),
    "a name that is too long": ({"run_id": "x" * 500}, "FL-TRUST-003"),
    "a code that is none": ({"code": "<script>"}, "FL-TRUST-003"),
    "a name that clears the terminal": ({"run_id": "r\x1b[2J"}, "FL-TRUST-003"),
    "a name of two lines": ({"run_id": "r1\nr2: approved"}, "FL-TRUST-003"),
    "a version that is written backwards": ({"software_version": "1.0\u202e"}, "FL-TRUST-003"),
    "a version that is too long": ({"software_version": "1" * 500}, "FL-TRUST-003"),
    "authorities that are none": ({"trusted_bundle": "the newest"}, "FL-TRUST-003"),
    "a time that is none": ({"now_unix": -(2**63)}, "FL-TRUST-003"),
}


@pytest.mark.parametrize("name", REPORTS)
def test_reports_that_are_refused(coordinator: Coordinator, name: str) -> None:
    told, code = REPORTS[name]
    site = coordinator.joined("north")
    with coordinator.hub(site) as stub:
        with pytest.raises(grpc.RpcError) as refused:
            stub.Report(site.report(**told))
        assert refused.value.details() == code
    assert coordinator.members.site("north").activity.kind is ActivityKind.UNKNOWN


def test_messages_that_are_too_long_and_reports_too_often_are_refused(coordinator: Coordinator) -> None:
    site = coordinator.joined("north")
    with coordinator.hub(site) as stub:
        with pytest.raises(grpc.RpcError) as refused:
            stub.Report(site.report(run_id="x" * 200_000))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

        def refused_once() -> bool:
            try:
                stub.Report(site.report())
            except grpc.RpcError as error:
                return bool(error.details() == "FL-EDGE-011")
            return False

        wait_until(refused_once, "a report too many is refused")


def test_a_number_from_a_lost_time_is_taken_up(coordinator: Coordinator) -> None:
    site = coordinator.joined("north")
    with coordinator.hub(site) as stub:
        watching = Watching(stub, acknowledged=41)
        watching.next()
        coordinator.notices.post("north", _cancel(coordinator, "north"))
        assert watching.next().number == 42
        watching.cancel()
