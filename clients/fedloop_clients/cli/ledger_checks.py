"""What an auditor brings to a ledger: an export, the site's key, and a head that others have seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedloop_core.errors import FileMissing, StorageError, UsageError
from fedloop_core.keys import VerifyingKey

if TYPE_CHECKING:
    from fedloop_clients.privacy.chain import LedgerRow

__all__ = ["entry_of", "key_of", "reach_words", "read_rows"]

_DIGITS = 64


def read_rows(file: Path) -> tuple[LedgerRow, ...]:
    """The entries of an export.

    Raises:
        FileMissing: it cannot be read.
        StorageError: it is no export.
    """
    from fedloop_clients.privacy.export import read_export

    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileMissing(
            f"{file} cannot be read.", hint="Name a file that `fedloop site ledger export` wrote."
        ) from error
    return read_export(lines, str(file))


def key_of(text: str) -> VerifyingKey | None:
    """A public key as people hand it on; None for no text.

    Raises:
        UsageError: it is none.
    """
    try:
        return VerifyingKey(_digits(text)) if text else None
    except ValueError as error:
        raise UsageError(
            f"--key {text} is no public key: it takes the key itself, 64 hexadecimal digits, and no file.",
            hint="`fedloop site status` at the site shows it.",
        ) from error


def entry_of(rows: Sequence[LedgerRow], head: str, name: str) -> int | None:
    """The number of the entry that somebody has seen as the newest; None where nobody asks.

    Args:
        rows: of the ledger, verified.
        head: the entry's digest in hex.
        name: of the ledger, for messages.

    Raises:
        UsageError: this is no digest.
        StorageError: the ledger has no such entry.
    """
    if not head:
        return None
    try:
        digest = _digits(head)
    except ValueError as error:
        raise UsageError(
            f"--head {head} is no entry's digest: 64 hexadecimal digits.",
            hint="At the coordinator, `fedloop server site show SITE` tells it.",
        ) from error
    found = next((row.sequence for row in rows if row.digest == digest), None)
    if found is None:
        raise StorageError(
            f"ledger {name}: no entry up to its last, {rows[-1].sequence if rows else 0}, is the one that --head names: entries "
            "after it were cut off, it is older than that entry, or it is another ledger.",
            hint="Ask the site for a new export. If the ledger itself lacks the entry, it was put back from a copy.",
        )
    return found


def reach_words(last: int, compared: int | None, *, exported: bool) -> Iterator[str]:
    """Up to where it is known to be whole."""
    if compared is not None:
        after = "none comes after it" if compared == last else f"{last - compared} more come after it"
        yield f"The entry that --head names is number {compared}; {after}."
    elif exported:
        yield (
            f"This holds up to entry {last} and says nothing about later ones: an export that was cut off at its end looks just so. "
            "Compare the head with the one that the coordinator has seen (`fedloop server site show SITE`), or give that one with --head."
        )


def _digits(text: str) -> bytes:
    if len(text.strip()) != _DIGITS:
        raise ValueError("not 64 digits")
    return bytes.fromhex(text.strip())
