"""Entries for other systems: JSON lines as they are in the log, and syslog (RFC 5424). Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import UTC, datetime

from fedloop_core.audit.entries import AuditAction, AuditEntry, Detail

__all__ = ["REFUSALS", "export_json_lines", "export_syslog", "selected"]

REFUSALS = frozenset(
    {
        AuditAction.SITE_REVOKED,
        AuditAction.RUN_FAILED,
        AuditAction.OVERRIDE,
        AuditAction.BUDGET_REFUSED,
        AuditAction.POLICY_REFUSED,
        AuditAction.ENVELOPE_REFUSED,
        AuditAction.REQUEST_REFUSED,
        AuditAction.SITE_LEFT_OUT,
        AuditAction.LEDGER_ROLLED_BACK,
        AuditAction.RESTORE,
        AuditAction.LINE_CUT,
    }
)
"""Actions that syslog hears as warnings; all others are notices."""

_FACILITY = 13  # "log audit"
_WARNING, _NOTICE = 4, 5
_ENTERPRISE = 32473  # RFC 5612 keeps it for examples: no number was assigned to fedloop
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def selected(
    entries: Iterable[AuditEntry], *, since_unix: float = 0, actions: Container[AuditAction] = frozenset(AuditAction)
) -> Iterator[AuditEntry]:
    """Entries from a moment on (seconds since 1970) and of some actions."""
    return (entry for entry in entries if entry.unix >= since_unix and entry.action in actions)


def export_json_lines(entries: Iterable[AuditEntry]) -> Iterator[str]:
    """Each entry as the log has it: whoever receives all of them can check the chain."""
    return (entry.to_line() for entry in entries)


def export_syslog(entries: Iterable[AuditEntry], host: str) -> Iterator[str]:
    """Each entry as one syslog message on one line, after RFC 5424, section 6.

    The entry's own fields are parameters of ``fedloop@32473``, its details those of ``details@32473``.
    """
    name = _printable(host, 255)
    return (_syslog(entry, name) for entry in entries)


def _syslog(entry: AuditEntry, host: str) -> str:
    severity = _WARNING if entry.action in REFUSALS else _NOTICE
    moment = datetime.fromtimestamp(entry.unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    own: dict[str, Detail] = {
        "sequence": entry.sequence,
        "actor": entry.actor,
        "subject": entry.subject,
        "previous": entry.previous,
        "digest": entry.digest,
    }
    data = _element("fedloop", own) + (_element("details", entry.details) if entry.details else "")
    words = _one_line(f"{entry.actor} {entry.action} {entry.subject}").encode("ascii", "backslashreplace").decode()
    return f"<{_FACILITY * 8 + severity}>1 {moment} {host} fedloop - {_printable(entry.action, 32)} {data} {words}"


def _element(name: str, parameters: Mapping[str, Detail]) -> str:
    said = "".join(f' {_parameter(key)}="{_escaped(str(value))}"' for key, value in parameters.items())
    return f"[{name}@{_ENTERPRISE}{said}]"


def _parameter(name: str) -> str:
    return re.sub(r'[=\]"]', "_", _printable(name, 32))


def _escaped(value: str) -> str:
    return re.sub(r'(["\\\]])', r"\\\1", _one_line(value))


def _one_line(text: str) -> str:
    """Control characters by their numbers: receivers that split at line ends must not see two messages."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def _printable(text: str, length: int) -> str:
    """Printable ASCII without spaces, as RFC 5424 wants names; ``-`` when nothing is left."""
    return re.sub(r"[^\x21-\x7e]", "_", text)[:length] or "-"
