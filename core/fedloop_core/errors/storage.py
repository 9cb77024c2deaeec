"""Disk, databases, logs that must not change, backups."""

from __future__ import annotations

from fedloop_core.errors.root import FedloopError

__all__ = ["AuditBroken", "BackupRefused", "ContentDamaged", "DiskFull", "StorageError"]


class StorageError(FedloopError):
    """Disk and databases."""

    code = "FL-STORE-001"
    exit_status = 11


class AuditBroken(StorageError):
    """An audit log whose chain does not hold: names the first entry that does not follow from the one before it."""

    code = "FL-STORE-002"


class BackupRefused(StorageError):
    """A backup that is damaged, of another coordinator, or that would overwrite something."""

    code = "FL-STORE-003"


class DiskFull(StorageError):
    """No space is left on a disk, or a quota is used up; nothing was written, and later tries may succeed."""

    code = "FL-STORE-004"


class ContentDamaged(StorageError):
    """A plan, journal, checkpoint or blob that is not there any more, or is not what was written; no later try succeeds."""

    code = "FL-STORE-005"
