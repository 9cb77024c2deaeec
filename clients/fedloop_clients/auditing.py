"""What a site's daemon writes into the site's own audit log."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from fedloop_clients.privacy.ledger import Head
from fedloop_core.audit import AuditAction, AuditLog
from fedloop_core.errors import (
    BudgetExhausted,
    EnvelopeRefused,
    FedloopError,
    LedgerRolledBack,
    PolicyRefused,
    StorageError,
    VersionRefused,
)

__all__ = ["SiteAudit"]

_LOG = logging.getLogger(__name__)
_REPEATED_SECONDS = 60.0
_KEPT = 256
_ACTIONS: tuple[tuple[type[FedloopError], AuditAction], ...] = (
    (EnvelopeRefused, AuditAction.ENVELOPE_REFUSED),
    (VersionRefused, AuditAction.ENVELOPE_REFUSED),
    (PolicyRefused, AuditAction.POLICY_REFUSED),
    (BudgetExhausted, AuditAction.BUDGET_REFUSED),
    (LedgerRolledBack, AuditAction.LEDGER_ROLLED_BACK),
)
_Key = tuple[AuditAction, str, str]


class SiteAudit:
    """Records what the daemon did and refused.

    The same refusal of the same run is recorded once a minute, with the number of those in between: whoever can reach the
    site's relay can make it refuse, and must not fill its disk.

    Args:
        site: the site's name.
        log: the site's log; None records nothing, for rehearsals.
        clock: monotonic seconds.
    """

    def __init__(self, site: str, log: AuditLog | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._actor = f"site:{site}"
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._said: OrderedDict[_Key, tuple[float, int]] = OrderedDict()  # when last recorded, and how many since

    def did(self, action: AuditAction, subject: str, **details: str | float) -> None:
        """Records what is about to be done.

        Raises:
            StorageError: the log cannot be written; then it must not be done.
        """
        if self._log is not None:
            self._log.record(self._actor, action, subject, **details)

    def noticed(self, action: AuditAction, subject: str, **details: str | float) -> None:
        """Records what has happened already: a log that cannot be written is told to the daemon's own log alone."""
        try:
            self.did(action, subject, **details)
        except StorageError:
            _LOG.exception("%s: the audit log cannot be written; not recorded: %s of %s", self._actor, action, subject)

    def contradicted(self, named: Head, remembered: Head) -> None:
        """Records that the coordinator named a head of its own log that cannot follow the one it had named before."""
        with self._lock:
            repeated = self._repeated((AuditAction.ENVELOPE_REFUSED, "coordinator's audit log", str(named.sequence)))
        if repeated is not None:
            self.noticed(
                AuditAction.ENVELOPE_REFUSED,
                "coordinator's audit log",
                reason="contradiction",
                named=named.sequence,
                named_digest=named.digest.hex(),
                remembered=remembered.sequence,
                remembered_digest=remembered.digest.hex(),
            )

    def refused(self, error: FedloopError, run_id: str) -> None:
        """Records a refusal of one of the kinds that an auditor asks for; others are failures and not recorded."""
        action = next((action for kind, action in _ACTIONS if isinstance(error, kind)), None)
        if action is None:
            return
        wire = error.wire()
        reason = next(iter(wire.fields.values()), "")
        with self._lock:
            repeated = self._repeated((action, run_id, reason))
        if repeated is not None:
            counted = {"repeated": repeated} if repeated else {}
            self.noticed(action, run_id or "unknown run", code=wire.code, reason=reason, **counted)

    def _repeated(self, key: _Key) -> int | None:
        """How many of the same were left out since it was last recorded; None leaves this one out too."""
        now = self._clock()
        last, count = self._said.get(key, (-_REPEATED_SECONDS, 0))
        if now - last < _REPEATED_SECONDS:
            self._said[key] = (last, count + 1)
            return None
        self._said[key] = (now, 0)
        self._said.move_to_end(key)
        if len(self._said) > _KEPT:
            self._said.popitem(last=False)
        return count
