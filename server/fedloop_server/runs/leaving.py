"""How a failure of a site is told in the journal."""

from __future__ import annotations

from fedloop_core.errors import FedloopError, PolicyRefused, SiteRevoked
from fedloop_core.federation.rules import PolicyRule
from fedloop_core.printable import printable
from fedloop_server.runs.events import LeftOut
from fedloop_server.runs.replies import NO_TRAFFIC, SiteAnswer, SiteFailure, Traffic

__all__ = ["left_out_of", "refused_by_gate", "revoked", "waits_for_a_person"]

_LONGEST_REASON = 1000  # characters


def left_out_of(failure: SiteFailure, round_number: int) -> LeftOut:
    """The journal's rendering of a failure: names of arrays and runs in its sentence may be the site's, so it is cut."""
    return LeftOut(
        site=failure.site,
        round=round_number,
        code=failure.code,
        reason=printable(failure.reason, _LONGEST_REASON),
        for_good=failure.for_good,
        seconds=max(failure.traffic.seconds, 0.0),
        bytes_out=failure.traffic.bytes_out,
        bytes_in=failure.traffic.bytes_in,
    )


def refused_by_gate(reply: SiteAnswer, error: FedloopError) -> SiteFailure:
    """An answer that belongs to its question and must not count."""
    return SiteFailure(reply.site, error.code, error.wire().fields, error.message, traffic=reply.traffic)


def revoked(site: str, traffic: Traffic = NO_TRAFFIC) -> SiteFailure:
    """A site that is no longer active."""
    return SiteFailure(site, SiteRevoked.code, {}, "it was revoked, or has left the federation", True, traffic)


def waits_for_a_person(out: LeftOut) -> bool:
    """Whether the site would take part as soon as a person there approves."""
    return out.code == PolicyRefused.code and out.reason.endswith(f"rule {PolicyRule.APPROVAL}")
