"""What an audit entry says, and the one line of JSON that it is on the disk. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from fedloop_core.strict import Strict

__all__ = ["MAXIMUM_LINE", "AuditAction", "AuditEntry", "Detail", "bounded_details", "bounded_text"]

Detail = str | int | float

MAXIMUM_LINE = 128 * 1024
"""Bytes of the longest line; what is told is cut so that no entry comes near it."""

_NAME_LENGTH = 200  # characters of actor and subject
_DETAIL_LENGTH = 500  # characters of a detail's text: at most 12 bytes of JSON each
_DETAILS = 16
_INTEGER = 2**63
_DIGEST = r"^[0-9a-f]{64}$"


class AuditAction(StrEnum):
    """What was done, or refused."""

    INITIALISE = "initialise"
    SITE_ADDED = "site-added"
    SITE_JOINED = "site-joined"
    SITE_RENEWED = "site-renewed"
    SITE_REVOKED = "site-revoked"
    SITE_LEFT = "site-left"
    TOKEN_ISSUED = "token-issued"  # noqa: S105 - an action, no password
    AUTHORITY_ROLLED = "authority-rolled"
    RUN_STARTED = "run-started"
    RUN_STOPPED = "run-stopped"
    RUN_RESUMED = "run-resumed"
    RUN_FINISHED = "run-finished"
    RUN_FAILED = "run-failed"
    RUN_REMOVED = "run-removed"
    WHOLE_SITES_CHARGED = "whole-sites-charged"
    RELEASE = "release"
    OVERRIDE = "override"
    BUDGET_REFUSED = "budget-refused"
    POLICY_REFUSED = "policy-refused"
    ENVELOPE_REFUSED = "envelope-refused"
    REQUEST_REFUSED = "request-refused"
    SITE_LEFT_OUT = "site-left-out"
    LEDGER_ROLLED_BACK = "ledger-rolled-back"
    BACKUP = "backup"
    RESTORE = "restore"
    APPROVED = "approved"
    PAUSED = "paused"
    UNPAUSED = "unpaused"
    PERSON_ERASED = "person-erased"
    PERSON_READMITTED = "person-readmitted"
    CONSORTIUM_ACCEPTED = "consortium-accepted"
    CONSORTIUM_REMOVED = "consortium-removed"
    DATA_DELETED = "data-deleted"  # what had been kept for as long as a setting allows
    LINE_CUT = "line-cut"  # a line that a crash left unfinished was taken away


class AuditEntry(Strict):
    """One entry. ``digest`` is the hex SHA-256 of the entry's canonical JSON without it, ``previous`` that of the one before.

    ``unix`` is in seconds since 1970; ``actor`` is who did it (``operator:NAME``, ``site:NAME``, a process), ``subject`` what
    it was done to.
    """

    sequence: Annotated[int, Field(ge=1)]
    unix: int
    actor: str
    action: AuditAction
    subject: str
    details: Annotated[Mapping[str, Detail], Field(max_length=_DETAILS)]
    previous: Annotated[str, Field(pattern=_DIGEST)]
    digest: Annotated[str, Field(pattern=_DIGEST)]

    def computed_digest(self) -> str:
        """What ``digest`` must be."""
        body = self.model_dump(mode="json", exclude={"digest"})
        return hashlib.sha256(_canonical(body).encode()).hexdigest()

    def to_line(self) -> str:
        """The entry as one line of JSON, without its end."""
        return _canonical(self.model_dump(mode="json"))

    def sealed(self) -> AuditEntry:
        """This entry with the digest that it must have."""
        return self.model_copy(update={"digest": self.computed_digest()})


def bounded_text(text: str, length: int = _NAME_LENGTH) -> str:
    """At most ``length`` characters, and a count of those that were cut; what is no Unicode becomes ``?``.

    A refusal to log would lose the event, and an entry without bound would let a peer fill the disk.
    """
    clean = text.encode("utf-8", "replace").decode()
    return clean if len(clean) <= length else f"{clean[:length]}… ({len(clean) - length} more)"


def bounded_details(details: Mapping[str, Detail]) -> dict[str, Detail]:
    """Details as an entry takes them: text cut, numbers that JSON has no word for as text, at most 16.

    Raises:
        ValueError: more than 16 details.
    """
    if len(details) > _DETAILS:
        raise ValueError(f"an audit entry takes {_DETAILS} details, not {len(details)}")
    return {bounded_text(name, 64): _bounded(value) for name, value in details.items()}


def _bounded(value: Detail) -> Detail:
    if isinstance(value, str):
        return bounded_text(value, _DETAIL_LENGTH)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value if -_INTEGER <= value < _INTEGER else bounded_text(hex(value), _DETAIL_LENGTH)
    return float(value) if math.isfinite(value) else str(float(value))


def _canonical(body: Mapping[str, object]) -> str:
    return json.dumps(body, ensure_ascii=True, sort_keys=True, separators=(",", ":"), allow_nan=False)
