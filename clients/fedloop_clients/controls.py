"""What a person at the site holds in hand while the daemon runs: policy, pause, approvals, the stop, the audit log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fedloop_clients import approvals as approvals_module
from fedloop_clients import heads, standing, trusted
from fedloop_clients.approvals import Approvals
from fedloop_clients.auditing import SiteAudit
from fedloop_clients.policy import SitePolicy
from fedloop_clients.standing import StandingFile
from fedloop_clients.trusted import TrustedFile
from fedloop_core.audit import AuditLog

__all__ = ["SiteControls"]


@dataclass(frozen=True)
class SiteControls:
    """The controls of one site.

    ``policy`` reads the rules as they are now; it raises PolicyRefused (rule ``settings``) while they cannot be read.
    ``guard`` is the file of the stop, None in memory.
    """

    policy_source: Callable[[], SitePolicy]
    approvals: Approvals
    standing: StandingFile
    guard: Path | None
    audit: SiteAudit
    trusted: TrustedFile

    @classmethod
    def in_memory(cls, site: str, policy: SitePolicy) -> Self:
        """Of a rehearsal: nothing is kept, nobody changes anything."""
        return cls(lambda: policy, Approvals(None), StandingFile(None), None, SiteAudit(site, None), TrustedFile(None))

    @classmethod
    def of_folder(cls, site: str, folder: Path, policy_source: Callable[[], SitePolicy], log: AuditLog | None) -> Self:
        """Of a site whose home is ``folder``."""
        return cls(
            policy_source,
            Approvals(folder / approvals_module.FILE_NAME),
            StandingFile(folder / standing.FILE_NAME),
            folder / heads.FILE_NAME,
            SiteAudit(site, log),
            TrustedFile(folder / trusted.FILE_NAME),
        )

    def policy(self) -> SitePolicy:
        """The rules that hold now, with what was asked by command.

        Raises:
            PolicyRefused: the settings cannot be read.
            StorageError: the standing cannot be read.
        """
        policy, asked = self.policy_source(), self.standing.read()
        if (asked.paused, asked.leaving) == (False, False):
            return policy
        update = {"paused": policy.paused or asked.paused, "leaving": policy.leaving or asked.leaving}
        return policy.model_copy(update=update)
