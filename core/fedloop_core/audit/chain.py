"""Whether entries follow one another. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from fedloop_core.audit.entries import MAXIMUM_LINE, AuditEntry
from fedloop_core.errors import AuditBroken

__all__ = ["AuditHead", "follow", "read_line"]

_HINT = "Keep the file as it is, compare it with a backup, and ask who could write to it."


@dataclass(frozen=True)
class AuditHead:
    """Number and SHA-256 of the newest entry; 0 and zeros of an empty log."""

    sequence: int = 0
    digest: bytes = bytes(32)


def read_line(where: str, number: int, line: bytes) -> AuditEntry:
    """The entry on a line, written exactly as this log writes it.

    Args:
        where: the log, as an error names it.
        number: of the line, from 1; 0 when it was not counted.
        line: without its end.

    Raises:
        AuditBroken: the line is no entry, or its digest is not its own.
    """
    place = f"{where}, line {number}" if number else f"the last line of {where}"
    if len(line) > MAXIMUM_LINE:
        raise AuditBroken(f"{place} is longer than any audit entry.", hint=_HINT, line=number)
    try:
        entry = AuditEntry.model_validate_json(line)
    except ValidationError as error:
        raise AuditBroken(f"{place} is not an audit entry.", hint=_HINT, line=number) from error
    if entry.computed_digest() != entry.digest or entry.to_line().encode() != line:
        raise AuditBroken(
            f"{place}: entry {entry.sequence} ({entry.action}) was altered: its digest is that of another entry.",
            hint=_HINT,
            line=number,
        )
    return entry


def follow(where: str, lines: Iterable[bytes]) -> Iterator[AuditEntry]:
    """The entries of a log from its beginning, each checked against the one before it.

    Raises:
        AuditBroken: names the first entry that does not follow.
    """
    head = AuditHead()
    for number, line in enumerate(lines, 1):
        entry = read_line(where, number, line)
        if entry.sequence != head.sequence + 1 or entry.previous != head.digest.hex():
            raise AuditBroken(
                f"{where}, line {number}: entry {entry.sequence} ({entry.action}) does not follow entry {head.sequence}: "
                "entries were removed, inserted or put in another order.",
                hint=_HINT,
                line=number,
            )
        head = AuditHead(entry.sequence, bytes.fromhex(entry.digest))
        yield entry
