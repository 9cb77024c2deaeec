"""How the daemon stands with the coordinator: notices are acted on and acknowledged, and the site says what it does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Protocol

from fedloop_clients.activity import Activity, ActivityBoard, ActivityKind
from fedloop_clients.hub_client import SiteHubClient
from fedloop_clients.notices import AuthoritiesTrusted, NoticeTaken
from fedloop_clients.service.connection import HubConnection
from fedloop_clients.service.threads import Backoff
from fedloop_core.errors import (
    CertificateRefused,
    ClockSkewed,
    CoordinatorUnreachable,
    EnvelopeRefused,
    FedloopError,
    SiteRevoked,
    VersionRefused,
)
from fedloop_core.federation.protocol import PROTOCOL, check_protocol
from fedloop_core.keys import SigningKey
from fedloop_proto.membership.v1.membership_pb2 import (
    SITE_ACTIVITY_EVALUATING,
    SITE_ACTIVITY_IDLE,
    SITE_ACTIVITY_PAUSED,
    SITE_ACTIVITY_STOPPED,
    SITE_ACTIVITY_TRAINING,
    Notice,
    ReportReceived,
    SiteReport,
    WatchRequest,
)

__all__ = ["HubLink", "HubStanding", "LinkActions", "LinkedDaemon", "report_of"]

_LOG = logging.getLogger(__name__)
_REPORT_SECONDS = 10.0
_LEAST_SECONDS = 1.0  # between reports, however much changes
_REFUSED_SECONDS = 60.0
_CLOSED_SECONDS = 0.1
_SKEW_SECONDS = 3.0
_LONGEST_NAME = 200
_KINDS = {
    ActivityKind.IDLE: SITE_ACTIVITY_IDLE,
    ActivityKind.TRAINING: SITE_ACTIVITY_TRAINING,
    ActivityKind.EVALUATING: SITE_ACTIVITY_EVALUATING,
    ActivityKind.PAUSED: SITE_ACTIVITY_PAUSED,
    ActivityKind.STOPPED: SITE_ACTIVITY_STOPPED,
}


class LinkedDaemon(Protocol):
    """What the link needs of the site's daemon."""

    @property
    def board(self) -> ActivityBoard:
        """Where to wait for changes."""

    def activity(self) -> Activity:
        """What the site does now."""

    def notice(self, envelope: bytes) -> NoticeTaken:
        """Acts on a notice.

        Raises:
            EnvelopeRefused: it is refused for good.
            FedloopError: it cannot be acted on now.
        """


@dataclass(frozen=True)
class LinkActions:
    """What the link has others do: trust new authorities (PEM), renew the certificate, show how things stand."""

    trust: Callable[[bytes], None]
    renew: Callable[[], None]
    show: Callable[[Activity, HubStanding], None]


@dataclass(frozen=True)
class HubStanding:
    """Why the hub is not reached (empty while it is), and how far this clock is ahead of the coordinator's, in seconds."""

    trouble: str = ""
    skew_seconds: float = 0.0


class HubLink:
    """Two loops over one connection: ``watch_once`` and ``report_once``, for ``keep_going``.

    Args:
        daemon: the site's daemon.
        connection: the way to the hub.
        signing: signs that the site leaves.
        actions: what others do.
        clock: seconds since 1970.
        report_seconds: between reports while nothing changes.
    """

    def __init__(
        self,
        daemon: LinkedDaemon,
        connection: HubConnection,
        signing: SigningKey,
        actions: LinkActions,
        clock: Callable[[], float] = time.time,
        report_seconds: float = _REPORT_SECONDS,
    ) -> None:
        self._daemon = daemon
        self._connection = connection
        self._signing = signing
        self._actions = actions
        self._clock = clock
        self._report_seconds = report_seconds
        self._lock = threading.Lock()
        self._acknowledged = 0
        self._standing = HubStanding()
        self._revision = -1
        self._tries = {"watch": Backoff(), "report": Backoff()}

    @property
    def standing(self) -> HubStanding:
        """How things stand."""
        with self._lock:
            return self._standing

    def watch_once(self) -> float:
        """Follows notices until the connection ends; returns the seconds until the next try."""
        client: SiteHubClient | None = None
        try:
            client = self._connection.client()
            request = WatchRequest(
                acknowledged=self._acknowledged, protocol=PROTOCOL, software_version=version("fedloop")
            )
            for notice in client.watch(request):
                check_protocol(notice.protocol, peer="the coordinator")
                self._tries["watch"].succeeded()
                self._compare_clocks(notice.now_unix)
                self._take(notice)
        except FedloopError as error:
            return self._failed("watch", error, client)
        return self._tries["watch"].failed()

    def report_once(self) -> float:
        """Reports now, then waits for a change or for the time of the next report."""
        seconds, began = 0.0, time.monotonic()
        client: SiteHubClient | None = None
        try:
            client = self._connection.client()
            self._report(client)
            self._tries["report"].succeeded()
        except FedloopError as error:
            seconds = self._failed("report", error, client)
            if isinstance(error, CoordinatorUnreachable) and error.fields.get("stage") == "hub":
                self._connection.drop()  # a broken connection may hold the watch for minutes without a word
        self._actions.show(self._daemon.activity(), self.standing)
        if seconds == 0.0:
            self._revision = self._daemon.board.wait(self._revision, self._report_seconds)
            seconds = max(_LEAST_SECONDS - (time.monotonic() - began), 0.0)
        return seconds

    def _report(self, client: SiteHubClient) -> None:
        acted = self._acknowledged
        report = report_of(self._daemon.activity(), int(self._clock()), acted, client.trusted_bundle, self._signing)
        received: ReportReceived = client.report(report)
        with self._lock:
            if self._acknowledged == acted:
                self._acknowledged = 0  # it is known there; said again after a restore, it would hide newer notices
        self._daemon.board.resume()
        self._set(trouble="")
        self._compare_clocks(received.now_unix)
        check_protocol(received.protocol, peer="the coordinator")
        if received.certificate_renewal_due:
            self._actions.renew()

    def _take(self, notice: Notice) -> None:
        """Acts on a notice and acknowledges it; one that can never be acted on is acknowledged too, or it would come for ever.

        What the coordinator believes is not that, but which authorities the next report names.
        """
        if notice.number == 0:
            return
        try:
            taken = self._daemon.notice(notice.envelope)
            if isinstance(taken, AuthoritiesTrusted):
                self._actions.trust(taken.certificates)
        except (EnvelopeRefused, CertificateRefused) as error:
            _LOG.warning("notice %d is refused: %s", notice.number, error)
        with self._lock:
            self._acknowledged = notice.number
        self._daemon.board.touch()  # a report acknowledges it at once

    def _failed(self, what: str, error: FedloopError, client: SiteHubClient | None) -> float:
        if client is not None and isinstance(error, CoordinatorUnreachable) and not self._connection.holds(client):
            return _CLOSED_SECONDS  # by this side, for a new certificate say: no trouble of the hub's
        trouble = str(error)
        new = self._set(trouble=trouble)
        if isinstance(error, SiteRevoked | VersionRefused):
            self._daemon.board.stop(error.code)
            if new:
                _LOG.critical("STOPPED, %s", trouble)
                self._daemon.board.touch()  # so that it is shown at once, too
            return _REFUSED_SECONDS
        if new:
            _LOG.warning("%s: %s", what, trouble)
        if isinstance(error, CertificateRefused):
            self._actions.renew()  # which needs no certificate, but the signing key
        return self._tries[what].failed()

    def _compare_clocks(self, theirs: int) -> None:
        """Says once when the clocks drift apart, and once when they agree again."""
        ahead = float(int(self._clock()) - theirs)
        was = abs(self.standing.skew_seconds) > _SKEW_SECONDS
        self._set(skew_seconds=ahead)
        if abs(ahead) > _SKEW_SECONDS and not was:
            side = "ahead of" if ahead > 0 else "behind"
            skewed = ClockSkewed(
                f"this machine's clock is {abs(ahead):.0f} s {side} the coordinator's.",
                hint="Set it by NTP: Flower refuses a clock that is 5 s ahead, and instructions expire.",
                seconds=ahead,
            )
            _LOG.warning("%s", skewed)
        elif was and abs(ahead) <= _SKEW_SECONDS:
            _LOG.info("this machine's clock agrees with the coordinator's again")

    def _set(self, *, trouble: str | None = None, skew_seconds: float | None = None) -> bool:
        with self._lock:
            before = self._standing
            self._standing = replace(
                before,
                trouble=before.trouble if trouble is None else trouble,
                skew_seconds=before.skew_seconds if skew_seconds is None else skew_seconds,
            )
            return self._standing.trouble != before.trouble


def report_of(
    activity: Activity, now_unix: int, acknowledged: int, trusted_bundle: str, signing: SigningKey
) -> SiteReport:
    """What is said of an activity, and of the authorities by which the coordinator is known; signed when the site leaves."""
    report = SiteReport(
        now_unix=now_unix,
        activity=_KINDS[activity.kind],
        run_id=activity.run_id[:_LONGEST_NAME],
        round=activity.round,
        step=activity.step,
        steps=activity.steps,
        code=activity.code,
        software_version=version("fedloop"),
        protocol=PROTOCOL,
        leaving=activity.leaving,
        acknowledged=acknowledged,
        trusted_bundle=trusted_bundle,
    )
    if report.leaving:
        report.signature = signing.sign(report.SerializeToString(deterministic=True))
    return report
