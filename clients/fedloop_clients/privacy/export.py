"""A ledger as JSON lines, for auditors: everything that is needed to verify it without the site."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from fedloop_clients.privacy.chain import EMPTY, Head, LedgerRow
from fedloop_core.errors import StorageError

__all__ = ["EXPORT_FORMAT", "FIELDS", "export_lines", "read_export"]

EXPORT_FORMAT = "fedloop-ledger-export-1"
_ENTRY = ',"entry":'

_LINE = {
    "sequence": "number of the entry, from 1",
    "previous": "SHA-256 of the entry before, in hex; 64 zeros before the first",
    "digest": "SHA-256, in hex, over: the 32 bytes of previous, sequence as 8 bytes big endian, and the bytes of entry exactly as "
    "they stand in the line",
    "signature": "Ed25519, in hex, by the key of the newest writer entry up to this one, over the 21 bytes 'fedloop ledger "
    "entry' and one zero byte, then the 32 bytes of digest; empty where nothing was signed",
    "entry": "what was written",
}
FIELDS: dict[str, str] = {
    "kind": "writer: who writes what follows; open: a block gets its budget; reserve: the most a release may cost; settle: what "
    "was executed of it; resume: its work broke off before anything left, and begins anew under the same charge",
    "time_unix": "the site's clock, seconds since 1970; no sum depends on it",
    "format": "of entries and file",
    "site": "whose ledger it is",
    "key": "public Ed25519 key in hex; empty: what follows is not signed",
    "neighbours": "the relation that every charge is about: two tables that differ by one unit added or removed",
    "software": "versions of what accounts, draws noise and trains",
    "code": "SHA-256 over the site's packages",
    "block": "a set of units with one budget for life",
    "epsilon": "of an open entry: the block's budget for life; of a pure charge: of one release",
    "delta": "probability beside epsilon, for life",
    "order": "the one order at which the block's divergences add up; absent without a budget",
    "run_id": "the run that the release is part of",
    "purpose": "which of its releases",
    "blocks": "all blocks whose rows the release reads: each is charged",
    "charge": "the mechanism and its parameters",
    "noise_multiplier": "deviation of the Gaussian noise over the norm to which one unit's part is clipped",
    "sampling_rate": "probability of each unit to be in a step",
    "steps": "of DP-SGD",
    "count": "how many releases of this kind",
    "grounds": "what the release was computed from; absent for what devices have seen, and before format 2",
    "task": "SHA-256 of the task document, in hex",
    "unit": "the column that names whose privacy is charged; empty: each row is a unit",
    "rows": "HMAC of the rows that were read, keyed with the site's secret, in hex",
    "model": "digest of the arrays that came with the question, in hex; empty where none did",
    "reservation": "sequence of the reserve entry",
    "executed": "the charge that stands from now on, at most what was reserved",
    "released": "digest of the arrays that were answered, in hex; empty where none were or where it is not known",
}
"""What each field of an entry means."""


def export_lines(
    rows: Iterable[LedgerRow], site: str, tasks: Mapping[str, Mapping[str, str]] | None = None
) -> Iterator[str]:
    """A header that explains the fields, then a line for each entry, whose JSON stands in it byte for byte.

    ``tasks``: name and purpose of each task by the SHA-256 of its document, which entries name as ``task``. The header is not
    signed; whoever has the document can check what it says of it.
    """
    header = {"format": EXPORT_FORMAT, "site": site, "line": _LINE, "fields": FIELDS, "tasks": dict(tasks or {})}
    yield json.dumps(header)
    previous = EMPTY.digest
    for row in rows:
        signature = "" if row.signature is None else row.signature.hex()
        yield (
            f'{{"sequence":{row.sequence},"previous":"{previous.hex()}","digest":"{row.digest.hex()}",'
            f'"signature":"{signature}"{_ENTRY}{row.body.decode()}}}'
        )
        previous = row.digest


def read_export(lines: Iterable[str], name: str) -> tuple[LedgerRow, ...]:
    """The entries of an export.

    Args:
        lines: of the file.
        name: of it, for messages.

    Raises:
        StorageError: it is no export, or a line of it is none.
    """
    rows: list[LedgerRow] = []
    head: Head = EMPTY
    for number, line in enumerate(lines, 1):
        try:
            if number == 1:
                if json.loads(line)["format"] != EXPORT_FORMAT:
                    raise ValueError("another format")
                continue
            start, found, rest = line.rstrip("\n").partition(_ENTRY)
            said = json.loads(start + "}")
            if not found or not rest.endswith("}") or bytes.fromhex(said["previous"]) != head.digest:
                raise ValueError("not an entry, or not the next one")
            signature = bytes.fromhex(said["signature"]) or None
            row = LedgerRow(int(said["sequence"]), rest[:-1].encode(), bytes.fromhex(said["digest"]), signature)
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{name}: line {number} is not of a ledger's export.", hint="Export it again, and send it unchanged."
            ) from error
        rows.append(row)
        head = Head(row.sequence, row.digest)
    if not rows:
        raise StorageError(f"{name} holds no entry.", hint="Export it again, and send it unchanged.")
    return tuple(rows)
