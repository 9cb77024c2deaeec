"""What surrounds the drive of a run: who the sites are, what is known of them, and who must hear of what happens.

The driver knows these by their protocols alone. Deployed they are the coordinator's database, log and front; in a simulation
they are objects in memory, and most are absent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedloop_core.audit import AuditAction, AuditEntry, AuditHead
from fedloop_core.audit.entries import Detail
from fedloop_core.errors import StorageError
from fedloop_core.keys import VerifyingKey
from fedloop_server.runs.heads import LedgerHeads, MemoryHeads
from fedloop_server.whole_sites.budget import SiteBudget

__all__ = [
    "Arrivals",
    "ArrivedReplies",
    "Audit",
    "Countersignatures",
    "Directory",
    "Doorbell",
    "FixedDirectory",
    "IdleSites",
    "Refusals",
    "RefusedRequest",
    "SiteKey",
    "StopWish",
    "Surroundings",
]


@dataclass(frozen=True)
class SiteKey:
    """A site and the key that it registered for its answers."""

    site: str
    signing_key: VerifyingKey


class Directory(Protocol):
    """The sites that may take part, as they are at the moment of each call."""

    def nodes(self) -> Mapping[int, SiteKey]:
        """Active sites by Flower's node id. A site that joins anew has none for a while, and then another one."""

    def active(self) -> frozenset[str]:
        """Names of the active sites, with or without a node; one that was revoked or has left is not among them."""


@dataclass(frozen=True)
class FixedDirectory:
    """Sites that neither come nor go."""

    sites: Mapping[int, SiteKey]

    def nodes(self) -> Mapping[int, SiteKey]:
        """Always the same."""
        return self.sites

    def active(self) -> frozenset[str]:
        """All of them."""
        return frozenset(key.site for key in self.sites.values())


class Doorbell(Protocol):
    """Wakes sites that wait for a question."""

    def ring(self) -> None:
        """Questions were sent."""


@dataclass(frozen=True)
class RefusedRequest:
    """Something that the front turned away of a site and that does not pass by itself. Numbers only rise."""

    number: int
    site: str
    code: str
    reason: str


class Refusals(Protocol):
    """What the front turned away of the sites' replies."""

    def since(self, number: int) -> Sequence[RefusedRequest]:
        """Refusals whose number is above ``number``, in their order."""


@dataclass(frozen=True)
class ArrivedReplies:
    """Ids of messages whose replies have come whole; ``number`` is the last one's. ``begun``: of those that have not yet."""

    number: int
    messages: frozenset[str]
    begun: frozenset[str] = frozenset()


class Arrivals(Protocol):
    """Which replies have come whole. Some may never be told of, such as errors that Flower itself replies."""

    def since(self, number: int, seconds: float) -> ArrivedReplies:
        """Those after ``number``, 0 at first; waits at most ``seconds`` for one, or not at all when nobody can tell."""


class IdleSites(Protocol):
    """Which sites wait for a question."""

    def seconds(self) -> Mapping[str, float]:
        """By site, how long it has been waiting; sites that work, are not connected or cannot be seen are not there."""


class StopWish(Protocol):
    """Whether a person wants a run to stop."""

    def wished(self) -> bool:
        """Asked about once a second."""


class Audit(Protocol):
    """Who did what, as ``fedloop_core.audit.AuditLog`` keeps it."""

    def record(self, actor: str, action: AuditAction, subject: str, **details: Detail) -> AuditEntry:
        """Appends an entry."""

    def head(self) -> AuditHead:
        """The newest entry."""


class Countersignatures(Protocol):
    """Where answers are kept in which sites signed the coordinator's audit head."""

    def keep(self, site: str, signed_answer: bytes, head: AuditHead, key: VerifyingKey | None = None) -> None:
        """Keeps a serialised ``SignedAnswer`` that names ``head``, and the key that it was checked with."""


@dataclass(frozen=True)
class Surroundings:
    """Everything around one drive of a run; only the directory is always there."""

    directory: Directory
    heads: LedgerHeads = field(default_factory=MemoryHeads)
    audit: Audit | None = None
    countersignatures: Countersignatures | None = None
    doorbell: Doorbell | None = None
    refusals: Refusals | None = None
    arrivals: Arrivals | None = None
    idle: IdleSites | None = None
    stop: StopWish | None = None
    whole_site_budget: SiteBudget | None = None  # None: that of the coordinator's settings
    room: Callable[[StorageError], None] | None = None  # is told of a failing disk or database; returns for another try
