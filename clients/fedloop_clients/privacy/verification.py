"""Reads a whole ledger again and trusts nothing of it: the chain, the signatures, every admission, every sum."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from fedloop_clients.privacy.chain import EMPTY, Head, LedgerRow, digest_after, signs_digest
from fedloop_clients.privacy.entries import (
    MOST_RESUMPTIONS,
    AnyEntry,
    LedgerState,
    OpenEntry,
    ReserveEntry,
    ResumeEntry,
    SettleEntry,
    WriterEntry,
    parse_entry,
)
from fedloop_core.errors import FedloopError, StorageError
from fedloop_core.keys import VerifyingKey
from fedloop_core.privacy.accounting import conversion

__all__ = ["Verified", "verify_rows", "wrong_entry"]

_SLACK = 1e-6  # relative: another release of the accounting library may round otherwise


@dataclass(frozen=True)
class Verified:
    """A ledger that holds. ``sequence`` and ``digest`` are of its newest entry.

    ``signed``: how many entries carry a signature of their own. ``vouched``: up to which number the newest signature by the
    expected key, which covers all before it, reaches. ``keys``: those that have signed, in hex, oldest first.
    ``clock_back``: entries dated before the one before them: a clock was set back, which changes no sum.
    """

    sequence: int
    digest: bytes
    signed: int
    vouched: int
    keys: tuple[str, ...]
    clock_back: tuple[int, ...]

    @property
    def head(self) -> Head:
        """The newest entry."""
        return Head(self.sequence, self.digest)


def verify_rows(rows: Iterable[LedgerRow], key: VerifyingKey | None, name: str) -> Verified:
    """Reads all entries in their order.

    Args:
        rows: of the file, from the first.
        key: that must have signed the newest entry; None asks for no signature.
        name: of the ledger, for messages.

    Raises:
        StorageError: names the first entry that is wrong, and what is wrong with it.
    """
    state, head, signed, vouched = LedgerState(), EMPTY, 0, 0
    keys: list[str] = []
    back: list[int] = []
    moment = 0
    for row in rows:
        if row.sequence != head.sequence + 1 or row.digest != digest_after(head, row.body):
            raise wrong_entry(name, row.sequence, "does not follow from the one before it")
        try:
            entry = parse_entry(row.body)
            _check(state, entry)
        except ValidationError as error:
            raise wrong_entry(name, row.sequence, "cannot be read by this version of fedloop") from error
        except (FedloopError, KeyError, ValueError) as error:
            said = error.message if isinstance(error, FedloopError) else str(error)
            raise wrong_entry(name, row.sequence, f"should never have been written: {said.rstrip('.')}") from error
        state.apply(row.sequence, entry)
        writer = state.writer
        if not _is_signed_as_said(row, writer):
            raise wrong_entry(name, row.sequence, "is not signed by the key that its writer named")
        if row.signature is not None and writer is not None:
            signed += 1
            if writer.key not in keys:
                keys.append(writer.key)
            if key is not None and writer.key == key.raw.hex():
                vouched = row.sequence
        if entry.time_unix < moment:
            back.append(row.sequence)
        moment = entry.time_unix
        head = Head(row.sequence, row.digest)
    _check_sums(state, head, name)
    if key is not None and head.sequence and vouched != head.sequence:
        raise wrong_entry(name, vouched + 1, "and those after it are not signed by this site's key")
    return Verified(head.sequence, head.digest, signed, vouched, tuple(keys), tuple(back))


def wrong_entry(name: str, sequence: int, what: str) -> StorageError:
    """An error that names an entry."""
    return StorageError(
        f"ledger {name}: entry {sequence} {what}.",
        hint="The file was altered, or put together by hand: stop, keep it as evidence, and restore the newest sound copy.",
        entry=sequence,
    )


def _is_signed_as_said(row: LedgerRow, writer: WriterEntry | None) -> bool:
    if writer is None or not writer.key:
        return row.signature is None
    return row.signature is not None and signs_digest(
        row.signature, row.digest, VerifyingKey(bytes.fromhex(writer.key))
    )


def _check(state: LedgerState, entry: AnyEntry) -> None:
    """Whether the ledger would have admitted the entry.

    Raises:
        FedloopError, KeyError, ValueError: why it would not.
    """
    match entry:
        case WriterEntry():
            pass
        case OpenEntry():
            if entry.block in state.blocks:
                raise ValueError(f"block {entry.block!r} is open already")
            if (entry.order is None) != math.isinf(entry.epsilon):
                raise ValueError(f"block {entry.block!r} has a budget and no order, or an order and no budget")
            if entry.order is not None and entry.epsilon <= conversion(entry.order, entry.delta):
                raise ValueError(f"the budget of block {entry.block!r} holds nothing at order {entry.order:g}")
        case ReserveEntry():
            state.check_reserve(entry, slack=_SLACK)
        case ResumeEntry():
            if entry.reservation not in state.reserved:
                raise ValueError(f"reservation {entry.reservation} is unknown or settled already")
            if state.resumed.get(entry.reservation, 0) >= MOST_RESUMPTIONS:
                raise ValueError(f"reservation {entry.reservation} has carried {MOST_RESUMPTIONS} resumptions already")
        case SettleEntry():
            state.check_settle(entry.reservation, entry.executed)


def _check_sums(state: LedgerState, head: Head, name: str) -> None:
    """Adds each block's charges up from the list alone, and compares."""
    for block, known in state.blocks.items():
        again = math.fsum(known.cost(charge) for _, charge in known.charges.values())
        if abs(again - known.divergence) > _SLACK * (1 + again):
            raise wrong_entry(name, head.sequence, f"leaves block {block!r} with a sum that its charges do not give")
