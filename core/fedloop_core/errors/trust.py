"""Signatures, envelopes, certificates, tokens, membership."""

from __future__ import annotations

from fedloop_core.errors.root import FedloopError

__all__ = [
    "AnswerRefused",
    "CertificateRefused",
    "ClockSkewed",
    "ConsortiumRefused",
    "DeviceRefused",
    "EnrollmentRefused",
    "EnvelopeRefused",
    "FeedbackRefused",
    "JoinRefused",
    "PolicyRefused",
    "SiteRevoked",
    "TrustError",
    "VersionRefused",
]


class TrustError(FedloopError):
    """Signatures, envelopes, certificates, tokens."""

    code = "FL-TRUST-000"
    exit_status = 6


class EnvelopeRefused(TrustError):
    """An instruction that is not signed by the pinned key, is for another site, expired, altered or replayed.

    ``attempt``: the one that the site has seen, where the instruction's is lower.
    """

    code = "FL-TRUST-001"
    wire_fields = frozenset({"reason", "attempt"})


class EnrollmentRefused(TrustError):
    """An unknown, used or expired token, or a certificate request that is not well-formed."""

    code = "FL-TRUST-002"
    wire_fields = frozenset({"reason"})


class FeedbackRefused(TrustError):
    """Feedback for another site than the one that a device pinned, beyond a limit, or out of order."""

    code = "FL-TRUST-003"


class DeviceRefused(TrustError):
    """A device that is unknown here, revoked, or whose certificate has expired."""

    code = "FL-TRUST-004"


class CertificateRefused(TrustError):
    """A key or certificate that cannot be read, does not fit its partner or has expired."""

    code = "FL-TRUST-005"


class PolicyRefused(TrustError):
    """The site's own policy does not allow what is asked; ``rule`` says which rule. No message can loosen it."""

    code = "FL-TRUST-006"
    wire_fields = frozenset({"rule"})


class JoinRefused(TrustError):
    """A join token that is unknown, used or expired, or a request to join that is not well-formed. ``reason`` says which."""

    code = "FL-TRUST-007"
    wire_fields = frozenset({"reason"})


class SiteRevoked(TrustError):
    """A site that the coordinator has revoked, or that has left: it takes no further part."""

    code = "FL-TRUST-008"


class VersionRefused(TrustError):
    """A peer whose protocol is too old or too new; ``theirs`` and ``ours`` are the generations."""

    code = "FL-TRUST-009"
    wire_fields = frozenset({"theirs", "ours"})


class ClockSkewed(TrustError):
    """A clock that is too far from the coordinator's for signatures with times. ``seconds`` is positive when it is ahead."""

    code = "FL-TRUST-010"
    wire_fields = frozenset({"seconds"})


class AnswerRefused(TrustError):
    """An answer that is not signed by the key that its site registered."""

    code = "FL-TRUST-011"


class ConsortiumRefused(TrustError):
    """A list of sites and keys that a site must not accept, or that nobody has compared. ``reason`` says which, ``peer`` whose key it is."""

    code = "FL-TRUST-012"
