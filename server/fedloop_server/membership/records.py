"""What is known of a site, as others read it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fedloop_server.membership.machine import SiteState

__all__ = ["Activity", "ActivityKind", "IssuedCertificate", "JoinedSite", "SiteRecord", "TokenRecord"]


class ActivityKind(StrEnum):
    """What a site says that it does."""

    UNKNOWN = "unknown"
    IDLE = "idle"
    TRAINING = "training"
    EVALUATING = "evaluating"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Activity:
    """What a site said last: of which run and round, how far, and the error code when it has stopped."""

    kind: ActivityKind = ActivityKind.UNKNOWN
    run_id: str = ""
    round: int = 0
    step: int = 0
    steps: int = 0
    code: str = ""


@dataclass(frozen=True)
class TokenRecord:
    """A token that was issued: never its secret."""

    expires_unix: int
    tries: int
    used: bool


@dataclass(frozen=True)
class IssuedCertificate:
    """A site's certificate: PEM with its chain, hex SHA-256 of the first one's DER, and its last valid second."""

    pem: bytes
    fingerprint: str
    expires_unix: int


@dataclass(frozen=True)
class JoinedSite:
    """What a site brought when it joined: ``node_key`` is PEM as Flower sends it, ``signing_key`` 32 raw bytes."""

    node_key: bytes
    signing_key: bytes
    certificate: IssuedCertificate
    protocol: int
    software_version: str


@dataclass(frozen=True)
class SiteRecord:
    """A site. Times are Unix seconds, 0 for never; ``clock_skew_seconds`` is positive when its clock is ahead.

    ``node_key`` is the PEM of its Flower node's public key, as Flower's header carries it in base64; ``node_id`` is Flower's
    name of that node while it is registered. ``authority`` is the PEM of the institution's own authority, or empty.
    """

    name: str
    state: SiteState
    node_id: int | None
    node_key: bytes
    signing_key: bytes
    certificate_fingerprint: str
    certificate_expiry_unix: int
    software_version: str
    protocol: int
    added_unix: int
    joined_unix: int
    last_seen_unix: int
    clock_skew_seconds: int
    activity: Activity
    authority: bytes
    trusted_bundle: str
    reason: str
    token: TokenRecord | None
