"""Deletes what a site has kept for as long as its settings allow, and says so in its audit log."""

from __future__ import annotations

from fedloop_clients.feedback.store import forget_in
from fedloop_clients.home import SiteHome
from fedloop_clients.outbox import Outbox
from fedloop_clients.retention.stores import is_due_before
from fedloop_core.audit import AuditAction
from fedloop_core.strict import Strict

__all__ = ["Deleted", "delete_due"]


class Deleted(Strict):
    """How many items of a store were deleted, by a limit of so many days."""

    store: str
    items: int
    days: int


def delete_due(home: SiteHome, outbox: Outbox, now_unix: int, *, actor: str) -> tuple[Deleted, ...]:
    """Deletes what is due in outbox and feedback store; logs are the supervisor's.

    Raises:
        NotSetUp, SettingsInvalid: site.toml cannot be read; nothing is deleted then.
        StorageError: a store or the audit log cannot be written.
    """
    limits = home.settings.retention
    made = [
        Deleted(
            store="outbox", items=outbox.forget(is_due_before(limits.outbox_days, now_unix)), days=limits.outbox_days
        )
    ]
    if limits.feedback_days is not None and home.feedback_file.exists():
        gone = forget_in(home.feedback_file, is_due_before(limits.feedback_days, now_unix))
        made.append(Deleted(store="feedback", items=gone, days=limits.feedback_days))
    done = tuple(deleted for deleted in made if deleted.items)
    for deleted in done:
        home.audit().record(actor, AuditAction.DATA_DELETED, deleted.store, items=deleted.items, days=deleted.days)
    return done
