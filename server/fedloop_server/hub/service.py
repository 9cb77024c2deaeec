"""The two calls of SiteHub."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from fedloop_core.audit import AuditAction, AuditLog
from fedloop_core.certificates import certificate_validity, is_issued_by
from fedloop_core.errors import FeedbackRefused, HubBusy, SiteRevoked
from fedloop_core.federation.protocol import PROTOCOL, check_protocol
from fedloop_core.keys import VerifyingKey
from fedloop_edge.hub.boundary import answering
from fedloop_edge.hub.services import StreamLimit
from fedloop_proto.membership.v1 import membership_pb2 as messages
from fedloop_proto.membership.v1 import membership_pb2_grpc
from fedloop_server.hub.board import MembershipBoard
from fedloop_server.hub.caller import Caller, SiteCaller
from fedloop_server.membership import Activity, ActivityKind, Authorities, Members, Notices, SiteRecord
from fedloop_server.rates import Rates
from fedloop_server.settings import HubLimits

__all__ = ["HubParts", "SiteHubService"]

_RECHECK_SECONDS = 0.5  # how long a revoked or expired site's stream may stay open
_LONGEST_NAME = 200
_CODE = re.compile(r"(FL-[A-Z]{1,12}-\d{3})?")
_BUNDLE = re.compile(r"([0-9a-f]{64})?")
_LATEST_UNIX = 1 << 40  # years beyond anything that a clock says, and far from what a database does not take
_LEAVING_SECONDS = 86_400
_KINDS: Mapping[int, ActivityKind] = {
    messages.SITE_ACTIVITY_IDLE: ActivityKind.IDLE,
    messages.SITE_ACTIVITY_TRAINING: ActivityKind.TRAINING,
    messages.SITE_ACTIVITY_EVALUATING: ActivityKind.EVALUATING,
    messages.SITE_ACTIVITY_PAUSED: ActivityKind.PAUSED,
    messages.SITE_ACTIVITY_STOPPED: ActivityKind.STOPPED,
}


@dataclass(frozen=True)
class HubParts:
    """What the hub works with."""

    members: Members
    notices: Notices
    authorities: Authorities
    audit: AuditLog
    board: MembershipBoard
    limits: HubLimits


class SiteHubService(membership_pb2_grpc.SiteHubServicer):
    """Serves sites; each is who its certificate says."""

    def __init__(self, parts: HubParts) -> None:
        self._parts = parts
        self._caller = SiteCaller(parts.members)
        self._streams = StreamLimit(parts.limits.streams)
        self._rates = Rates(parts.limits.reports_per_second, parts.limits.report_burst, names=100_000)
        self._watching: dict[str, object] = {}
        self._lock = threading.Lock()

    def Watch(  # noqa: N802  gRPC's spelling
        self, request: messages.WatchRequest, context: grpc.ServicerContext
    ) -> Iterator[messages.Notice]:
        """A greeting, then the site's notices, each once in this stream; a later stream of the same site ends this one."""
        with answering(context), self._streams.one():
            revision = self._parts.board.revision
            caller = self._caller.of(context)
            site = self._admitted(caller.check(), request.protocol)
            self._parts.notices.acknowledge(site.name, request.acknowledged)
            self._parts.members.seen(site.name)
            told = request.acknowledged
            with self._newest_of(site.name) as is_newest:
                yield self._notice(0, b"")
                while context.is_active() and not self._parts.board.closed and is_newest():
                    for notice in self._parts.notices.pending(site.name, told):
                        yield self._notice(notice.number, notice.envelope)
                        told = notice.number
                    revision = self._quiet(caller, revision, context, is_newest)
                    caller.check()

    def Report(  # noqa: N802
        self, request: messages.SiteReport, context: grpc.ServicerContext
    ) -> messages.ReportReceived:
        """Stores that the site is there and what it does; or that it leaves."""
        with answering(context):
            site = self._admitted(self._caller.of(context).check(), request.protocol)
            if not self._rates.take(site.name, time.monotonic()):
                raise HubBusy(f"site {site.name} reports too often.")
            _check(request)
            if request.acknowledged:
                self._parts.notices.acknowledge(site.name, request.acknowledged)
            self._parts.members.record_report(
                site.name,
                _activity(request),
                site_unix=request.now_unix,
                protocol=request.protocol,
                software_version=request.software_version,
                trusted_bundle=request.trusted_bundle,
            )
            if request.leaving:
                self._leave(site, request)
            return messages.ReportReceived(
                now_unix=self._parts.members.clock(),
                protocol=PROTOCOL,
                certificate_renewal_due=not request.leaving and self._renewal_due(site),
            )

    def _quiet(self, caller: Caller, revision: int, context: grpc.ServicerContext, is_newest: _IsNewest) -> int:
        """Waits without asking the database until something changed; gives the newest revision."""
        board = self._parts.board
        newest = revision
        while newest == revision and context.is_active() and not board.closed and is_newest():
            caller.check_time()
            newest = board.wait(revision, _RECHECK_SECONDS)
        return newest

    def _admitted(self, site: SiteRecord, protocol: int) -> SiteRecord:
        check_protocol(protocol, peer=f"site {site.name}")
        return site

    def _leave(self, site: SiteRecord, request: messages.SiteReport) -> None:
        """A certificate alone does not let a site leave: its signing key says so."""
        signed = messages.SiteReport()
        signed.CopyFrom(request)
        signed.ClearField("signature")
        content = signed.SerializeToString(deterministic=True)
        fresh = abs(request.now_unix - self._parts.members.clock()) <= _LEAVING_SECONDS
        if not fresh or not VerifyingKey(site.signing_key).verifies(request.signature, content):
            raise SiteRevoked(f"site {site.name} says that it leaves, and not by its signing key.", site=site.name)
        self._parts.members.mark_left(site.name)
        self._parts.audit.record(f"site:{site.name}", AuditAction.SITE_LEFT, site.name)

    def _renewal_due(self, site: SiteRecord) -> bool:
        """At half of its life, and at once when a newer authority signs for sites."""
        pem = self._parts.members.certificate(site.name)
        begin, end = certificate_validity(pem)
        if self._parts.members.clock() >= (begin + end) // 2:
            return True
        return not site.authority and not is_issued_by(pem, self._parts.authorities.newest().certificate)

    def _notice(self, number: int, envelope: bytes) -> messages.Notice:
        return messages.Notice(
            number=number, envelope=envelope, protocol=PROTOCOL, now_unix=self._parts.members.clock()
        )

    @contextmanager
    def _newest_of(self, site: str) -> Iterator[_IsNewest]:
        """A connection that broke without a word holds its stream for a while: the site's next one takes its place."""
        own = object()
        with self._lock:
            self._watching[site] = own
        self._parts.board.wake()
        try:
            yield _IsNewest(self._watching, site, own)
        finally:
            with self._lock:
                if self._watching.get(site) is own:
                    del self._watching[site]


@dataclass(frozen=True)
class _IsNewest:
    watching: Mapping[str, object]
    site: str
    own: object

    def __call__(self) -> bool:
        return self.watching.get(self.site) is self.own


def _check(request: messages.SiteReport) -> None:
    """People read these texts in a terminal, in logs and in tables."""
    for text in (request.run_id, request.software_version):
        if len(text) > _LONGEST_NAME or not text.isprintable():
            raise FeedbackRefused("a report holds a text that is too long, or that cannot be printed.")
    if not (_CODE.fullmatch(request.code) and _BUNDLE.fullmatch(request.trusted_bundle)):
        raise FeedbackRefused("a report holds a code that is none, or a name of authorities that is none.")
    if abs(request.now_unix) > _LATEST_UNIX:
        raise FeedbackRefused("a report was written at no time.")


def _activity(request: messages.SiteReport) -> Activity:
    return Activity(
        kind=_KINDS.get(request.activity, ActivityKind.UNKNOWN),
        run_id=request.run_id,
        round=request.round,
        step=request.step,
        steps=request.steps,
        code=request.code,
    )
