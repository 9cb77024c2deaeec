"""Every store of a site: what it holds, for how long, who deletes, and what stays and why. Pure."""

from __future__ import annotations

from fedloop_clients.settings import RetentionSettings
from fedloop_core.certificates import DAY_SECONDS
from fedloop_core.retention import Store, backups, kept_for_ever, logs, passing

__all__ = ["goes_unix", "is_due_before", "site_stores"]

_YOU = "the site's people"


def is_due_before(days: int, now_unix: int) -> int:
    """Moment (seconds since 1970) before which what was kept is due to be deleted."""
    return now_unix - days * DAY_SECONDS


def goes_unix(oldest_unix: int, days: int | None) -> int | None:
    """When the oldest of a store is due; None where nothing is held, or nothing goes by its age."""
    return None if days is None or oldest_unix == 0 else oldest_unix + days * DAY_SECONDS


def site_stores(limits: RetentionSettings) -> tuple[Store, ...]:
    """All stores of a site with these limits; those that fedloop deletes from come first."""
    return (*_limited(limits), *_evidence(), *_others())


def _limited(limits: RetentionSettings) -> tuple[Store, ...]:
    feedback = limits.feedback_days
    return (
        Store(
            name="outbox",
            place="outbox.db",
            holds="answers to the coordinator, with the updates and numbers in them, as they left or are about to leave",
            days=limits.outbox_days,
            setting="retention.outbox_days",
            kept=f"{limits.outbox_days} days after each was made; and no more than 256 of them and 1 GiB",
            deleted_by="the site's daemon, each hour",
            stays="a digest of each question, so that it is refused when it comes again and is neither answered anew nor charged again; the "
            "documents of tasks, and what secure aggregation has promised, as digests",
        ),
        Store(
            name="feedback",
            place="feedback.db",
            holds="labelled examples from the site's devices",
            days=feedback,
            setting="retention.feedback_days",
            kept="as the task's feedback.retention_days says"
            if feedback is None
            else f"{feedback} days, or less if the task says so",
            deleted_by="the site's daemon, each hour",
            stays="numbers of examples, so that one that is sent again is not taken for news; rows that have joined the site's data",
        ),
        logs(limits.log_days),
    )


def _evidence() -> tuple[Store, ...]:
    return (
        kept_for_ever(
            "ledger",
            "ledger.db",
            "what every release was charged to which block of rows; no row",
            "a charge that is forgotten could be spent again, and each entry is under the digest of the next",
        ),
        kept_for_ever(
            "audit log",
            "audit.jsonl",
            "who did what, and what was refused; people who were erased by the beginning of a digest",
            "it is the evidence of what was done, and each entry is under the digest of the next",
        ),
        Store(
            name="erased people",
            place="erased.json",
            holds="a digest, under the site's own secret, of each person who takes no part",
            kept="until `fedloop site readmit`",
            deleted_by=_YOU,
            stays="all of it: without the list their rows would be trained on again",
        ),
        Store(
            name="approvals",
            place="approvals.json",
            holds="runs that wait for a person, and who decided on which",
            kept="the newest 100 that wait and 100 that were decided on; decisions for ever",
            deleted_by="nobody",
            stays="decisions: one that was forgotten would no longer hold",
        ),
    )


def _others() -> tuple[Store, ...]:
    return (
        Store(
            name="membership",
            place="membership.json, keys/, and small state files",
            holds="addresses, keys and certificates of the site; no data of people",
            kept="as long as the site is a member; folders of keys that joining again has set aside are never used again",
            deleted_by=_YOU,
            stays="all of it",
        ),
        Store(
            name="data file",
            place="data.file in site.toml",
            holds="the rows",
            kept="as the site decides",
            deleted_by=_YOU,
            stays="all of it: fedloop reads it and never writes to it",
        ),
        passing(
            "Flower",
            "memory of the processes supernode and superexec",
            "messages on their way, with the updates in them",
            "until they have been passed on; flower/ holds programs and no message",
            "Flower",
        ),
        backups("fedloop site backup", "all stores but logs and Flower's, as they were", _YOU),
    )
