"""The site's ledger: every privacy charge on its blocks, for life, in one append-only SQLite file.

Each entry carries the SHA-256 of the entry before it, so that an altered, absent or reordered entry is noticed. What a
chain cannot show by itself, a file cut short or put back from a snapshot, shows in ``head``, which travels with every
answer. With the site's key each entry is signed, so that nobody without it can write a chain anew. Entries are on the disk
before a call returns.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from fedloop_clients.privacy.accounts import BlockAccount, account_of, runs_left
from fedloop_clients.privacy.chain import EMPTY, Head, LedgerRow, digest_after, sign_digest, signs_digest
from fedloop_clients.privacy.entries import (
    AnyEntry,
    Grounds,
    LedgerState,
    ReserveEntry,
    ResumeEntry,
    SettleEntry,
    Spend,
    WriterEntry,
    parse_entry,
)
from fedloop_clients.privacy.ledger_file import open_ledger_file, rows_after
from fedloop_clients.privacy.software import code_digest, versions
from fedloop_clients.privacy.verification import Verified, verify_rows, wrong_entry
from fedloop_clients.storage import StorageErrors
from fedloop_core.errors import StorageError
from fedloop_core.keys import SigningKey, VerifyingKey
from fedloop_core.privacy.charges import Charge

__all__ = ["Head", "Ledger", "Reservation", "Spend"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reservation:
    """A charge that stands in full until it is settled; ``entry`` names it for good, by number and digest."""

    entry: Head
    charge: Charge
    blocks: tuple[str, ...]

    @property
    def sequence(self) -> int:
        """The number of its entry."""
        return self.entry.sequence


class Ledger:
    """Opens or makes the ledger at ``path`` (":memory:" for rehearsals); several processes may share one file.

    Args:
        path: the file, readable by its owner alone; one of an earlier format is upgraded.
        clock: seconds since 1970, for the entries' times.
        site: whose ledger it is, for those who read it elsewhere.
        key: signs what is written; without it nothing is signed, which is for rehearsals and for reading.

    Raises:
        StorageError: the file cannot be opened, its chain is broken, its newest entry is not signed as it should be, or a
            newer release wrote it.
    """

    def __init__(
        self, path: Path | str, clock: Callable[[], int], *, site: str = "", key: SigningKey | None = None
    ) -> None:
        self._name = str(path)
        self._failures = StorageErrors(f"ledger {path}", "Nothing is released until it can be written.")
        self._shared = self._name != ":memory:"
        self._clock = clock
        self._site = site
        self._key = key
        self._lock = threading.RLock()
        self._state = LedgerState()
        self._head = EMPTY
        with self._failures:
            self._connection = open_ledger_file(path)
        with self._transaction():
            pass
        self._tell_of_another_key()
        self._idle = set(self._state.reserved)  # reservations under which nobody works

    def open_block(self, block: str, epsilon: float, delta: float) -> None:
        """Opens a block with its budget for life (infinite: no budget is kept); nothing when it is open with this one.

        Raises:
            BudgetFixed: the block is open with another budget.
            PrivacyParameterInvalid: the budget holds no charge.
        """
        with self._transaction():
            entry = self._state.check_open(block, epsilon, delta)
            if entry is not None:
                self._append(entry.model_copy(update={"time_unix": self._clock()}))

    def reserve(
        self, charge: Charge, blocks: tuple[str, ...], run_id: str, purpose: str, grounds: Grounds | None = None
    ) -> Reservation:
        """Charges the most that a release may cost, to all blocks or to none, before anything is computed.

        Args:
            charge: the mechanism with its parameters.
            blocks: those whose rows it reads.
            run_id: what it is part of.
            purpose: which of its releases this is.
            grounds: what it is computed from.

        Raises:
            BudgetExhausted: names the block, what it spent, what is asked and its budget.
            UsageError: a block is not open.
        """
        with self._transaction():
            entry = ReserveEntry(
                time_unix=self._clock(), run_id=run_id, purpose=purpose, blocks=blocks, charge=charge, grounds=grounds
            )
            self._state.check_reserve(entry)
            self._append(entry)
            return Reservation(self._head, charge, blocks)

    def resume(self, charge: Charge, blocks: tuple[str, ...], run_id: str, purpose: str) -> Reservation | None:
        """The reservation of just this release whose work broke off before anything left the site, to carry it once more.

        Only one that this object was told of (``broke_off``), or that was there unsettled when it was opened: the work of
        any other may be going on. Who opens a ledger to resume is therefore the only one that releases under it, and has
        settled what was answered (``settle_in_full``). None when there is none, or when it has carried
        ``entries.MOST_RESUMPTIONS`` already.
        """
        with self._transaction():
            like = ReserveEntry(time_unix=0, run_id=run_id, purpose=purpose, blocks=blocks, charge=charge)
            sequence = next((one for one in self._state.resumable(like) if one in self._idle), None)
            if sequence is None:
                return None
            entry = Head(sequence, self._digest_of(sequence) or b"")
            self._append(ResumeEntry(time_unix=self._clock(), reservation=sequence))
        self._idle.discard(sequence)
        return Reservation(entry, charge, blocks)

    def broke_off(self, reservation: Reservation) -> None:
        """Notes that nothing was released under a reservation, and that its work has ended."""
        self._idle.add(reservation.sequence)

    def settle_in_full(self, entry: Head, released: bytes = b"") -> None:
        """Ends a reservation at all that it reserved, so that it carries no further release; repeated, it does nothing.

        Args:
            entry: of the reservation; an entry that this ledger does not have, as one put back from a copy, is passed over.
            released: digest of the arrays that were answered, where it is known.
        """
        with self._transaction():
            reserved = self._state.reserved.get(entry.sequence)
            if reserved is None or self._digest_of(entry.sequence) != entry.digest:
                return
            self._append(
                SettleEntry(
                    time_unix=self._clock(),
                    reservation=entry.sequence,
                    executed=reserved.charge,
                    released=released.hex(),
                )
            )

    def settle_open(self) -> int:
        """Ends every open reservation at all that it reserved, in a ledger that was put back from a copy; returns how many.

        After the copy was made their releases may have left the site, so none of them may carry another one.
        """
        with self._reading():
            reserved = tuple(self._state.reserved.items())
        for sequence, entry in reserved:
            with self._transaction():
                self._state.check_settle(sequence, entry.charge)
                self._append(SettleEntry(time_unix=self._clock(), reservation=sequence, executed=entry.charge))
        return len(reserved)

    def settle(self, reservation: Reservation, executed: Charge) -> None:
        """Lowers a reservation to what was really executed: the same mechanism, with at most as many steps.

        Raises:
            UsageError: it was settled before, or it does not cover what was executed. The reservation stands in full.
        """
        with self._transaction():
            self._state.check_settle(reservation.sequence, executed)
            self._append(SettleEntry(time_unix=self._clock(), reservation=reservation.sequence, executed=executed))

    def has_block(self, block: str) -> bool:
        """Whether the block was opened."""
        with self._reading():
            return block in self._state.blocks

    def budgets(self) -> dict[str, tuple[float, float]]:
        """Epsilon and delta for life of each block that is open; an infinite epsilon: none is kept."""
        with self._reading():
            return {name: (block.opened.epsilon, block.opened.delta) for name, block in self._state.blocks.items()}

    def spend(self, block: str) -> Spend:
        """What the block has spent for life, reservations in full.

        Raises:
            UsageError: the block is not open.
        """
        with self._reading():
            return self._state.block(block).spend()

    def charges(self, block: str, run_id: str | None = None) -> tuple[Charge, ...]:
        """The charges that stand against a block, of one run or of all; exact releases are not listed.

        Raises:
            UsageError: the block is not open.
        """
        with self._reading():
            listed = self._state.block(block).charges.values()
            return tuple(charge for run, charge in listed if run_id in {None, run})

    def runs_left(self, block: str, charge: Charge) -> float:
        """How many more times the block would admit the charge; a fraction counts, infinite without a budget.

        Raises:
            UsageError: the block is not open.
        """
        with self._reading():
            state = self._state.block(block)
            left, cost = max(state.capacity - state.divergence, 0.0), state.cost(charge)
            return left / cost if cost > 0 else float("inf")

    def admitting(self, charge: Charge, blocks: tuple[str, ...]) -> tuple[str, ...]:
        """Those of these blocks whose budgets hold the charge now.

        Raises:
            UsageError: a block is not open.
        """
        with self._reading():
            return tuple(name for name in blocks if self._state.block(name).admits(charge))

    def headroom(self, block: str) -> tuple[float, float] | None:
        """The block's registered order and the RDP it still admits there; absent without a budget.

        Raises:
            UsageError: the block is not open.
        """
        with self._reading():
            state = self._state.block(block)
            if state.opened.order is None:
                return None
            return state.opened.order, max(state.capacity - state.divergence, 0.0)

    def accounts(self) -> tuple[BlockAccount, ...]:
        """The account of each block, in the order in which they were opened."""
        with self._reading():
            open_in = Counter(name for entry in self._state.reserved.values() for name in entry.blocks)
            return tuple(account_of(name, block, open_in[name]) for name, block in self._state.blocks.items())

    def exhausted(self) -> tuple[str, ...]:
        """The blocks that do not hold one more run like their last one."""
        with self._reading():
            left = {name: runs_left(block) for name, block in self._state.blocks.items()}
            return tuple(name for name, runs in left.items() if runs is not None and runs < 1)

    def head(self) -> Head:
        """The newest entry."""
        with self._reading():
            return self._head

    def digest_at(self, sequence: int) -> bytes | None:
        """The digest of an entry by its number; None when the ledger has no such entry.

        Raises:
            StorageError: the file cannot be read.
        """
        with self._reading():
            return self._digest_of(sequence)

    def rows(self) -> tuple[LedgerRow, ...]:
        """All entries as they lie in the file.

        Raises:
            StorageError: the file cannot be read.
        """
        with self._lock, self._failures:
            return tuple(rows_after(self._connection, 0))

    def verify(self) -> Verified:
        """Reads the whole ledger again, trusts nothing of it, and adds it up anew.

        Raises:
            StorageError: names the first entry that is wrong, or says that entries seen earlier are gone.
        """
        with self._lock:
            seen = self._head
            found = verify_rows(self.rows(), None if self._key is None else self._key.verifying, self._name)
            if found.sequence < seen.sequence:
                raise StorageError(
                    f"ledger {self._name}: {seen.sequence - found.sequence} entries are gone.",
                    hint="Charges were undone: stop, and restore the newest copy.",
                )
            self._state, self._head = LedgerState(), EMPTY
            with self._transaction():
                pass
            return found

    def close(self) -> None:
        """Closes the file; the ledger cannot be used afterwards."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """With everything read that other processes wrote; a ledger in memory has no other."""
        with self._lock, self._failures:
            self._catch_up()
            yield

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Alone with the file, with everything read that other processes wrote; an error leaves it as it was.

        The body appends one entry at most. In memory, where nobody else writes, no transaction is needed.
        """
        with self._lock, self._failures:
            if not self._shared:
                self._catch_up()
                yield
                return
            self._connection.execute("BEGIN IMMEDIATE")
            durable: Head | None = None
            try:
                self._catch_up()
                durable = self._head
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if durable is not None and self._head != durable:
                    self._state, self._head = LedgerState(), EMPTY  # memory was ahead of the disk: read it again
                raise

    def _digest_of(self, sequence: int) -> bytes | None:
        if sequence >= self._head.sequence:
            return self._head.digest if sequence == self._head.sequence else None
        row = self._connection.execute("SELECT digest FROM entry WHERE sequence = ?", (sequence,)).fetchone()
        return None if row is None else bytes(row[0])

    def _append(self, entry: AnyEntry) -> None:
        writer = WriterEntry(
            time_unix=entry.time_unix,
            site=self._site,
            key="" if self._key is None else self._key.verifying.raw.hex(),
            software=versions(),
            code=code_digest(),
        )
        known = self._state.writer
        if known is None or known.model_copy(update={"time_unix": writer.time_unix}) != writer:
            self._write(writer)
        self._write(entry)

    def _write(self, entry: AnyEntry) -> None:
        body = entry.model_dump_json().encode()
        sequence = self._head.sequence + 1
        digest = digest_after(self._head, body)
        signature = None if self._key is None else sign_digest(digest, self._key)
        self._connection.execute("INSERT INTO entry VALUES (?, ?, ?, ?)", (sequence, body, digest, signature))
        self._head = Head(sequence, digest)
        self._state.apply(sequence, entry)

    def _catch_up(self) -> None:
        if not self._shared and self._head != EMPTY:
            return
        row: LedgerRow | None = None
        for row in rows_after(self._connection, self._head.sequence):
            if row.sequence != self._head.sequence + 1 or row.digest != digest_after(self._head, row.body):
                raise wrong_entry(self._name, row.sequence, "does not follow from the one before it")
            try:
                self._state.apply(row.sequence, parse_entry(row.body))
            except (ValidationError, KeyError) as error:
                raise StorageError(
                    f"ledger {self._name}: entry {row.sequence} cannot be read by this version of fedloop.",
                    hint="Use the version that wrote it, or a newer one.",
                    entry=row.sequence,
                ) from error
            self._head = Head(row.sequence, row.digest)
        if row is not None and not self._is_signed(row):
            raise wrong_entry(self._name, row.sequence, "is not signed by the key that its writer named")

    def _is_signed(self, row: LedgerRow) -> bool:
        """Whether an entry's signature, which vouches for all before it, is the one that its writer promised."""
        writer = self._state.writer
        if writer is None or not writer.key:
            return row.signature is None
        key = VerifyingKey(bytes.fromhex(writer.key))
        return row.signature is not None and signs_digest(row.signature, row.digest, key)

    def _tell_of_another_key(self) -> None:
        writer = self._state.writer
        if self._key is not None and writer is not None and writer.key != self._key.verifying.raw.hex():
            _LOG.warning(
                "ledger %s: entry %d is %s. The next entry vouches for it: as it should be after joining again, or after a "
                "backup without keys was put back, and at no other time",
                self._name,
                self._head.sequence,
                "signed by another key than this site's" if writer.key else "not signed",
            )
