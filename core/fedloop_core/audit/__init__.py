"""Who did what: an append-only log, each entry bound to the one before it, whose head others countersign."""

from fedloop_core.audit.chain import AuditHead
from fedloop_core.audit.countersignatures import (
    Countersignature,
    Countersignatures,
    Countersigned,
    KeyFrom,
    check_countersignatures,
    countersigned,
)
from fedloop_core.audit.entries import AuditAction, AuditEntry
from fedloop_core.audit.export import export_json_lines, export_syslog, selected
from fedloop_core.audit.log import AuditLog, AuditReport

__all__ = [
    "AuditAction",
    "AuditEntry",
    "AuditHead",
    "AuditLog",
    "AuditReport",
    "Countersignature",
    "Countersignatures",
    "Countersigned",
    "KeyFrom",
    "check_countersignatures",
    "countersigned",
    "export_json_lines",
    "export_syslog",
    "selected",
]
