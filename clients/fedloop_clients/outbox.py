"""What a site has answered, and which runs it knows: kept so that a repeated question is a repeated answer.

A question that was answered before gets the same result and the same arrays again, under the instruction that asks now, and
is charged once. Bodies of old answers are dropped to bound the disk, and deleted when they have been kept for as long as the
site's people allow; their keys stay, so that a replayed question is refused instead of answered anew.

What is dropped or deleted is overwritten in the file (``secure_delete``), and the log beside it is cut.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedloop_clients.data.gate import NoisedCount
from fedloop_clients.privacy.ledger import Head
from fedloop_clients.secure_aggregation.promises import Promise
from fedloop_clients.storage import StorageErrors
from fedloop_core.arrays import NamedArrays, PackedArrays, pack_arrays, unpack_arrays
from fedloop_core.errors import EnvelopeRefused
from fedloop_core.secure_aggregation.identity import Instance

__all__ = ["NEVER", "KeptAnswers", "KeptResult", "KnownRun", "Outbox"]

NEVER = -1
"""Below every attempt."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS answer (
    sequence INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, body BLOB, layout TEXT, arrays BLOB,
    kept_unix INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE IF NOT EXISTS run (
    run_id TEXT PRIMARY KEY, attempt INTEGER NOT NULL, task BLOB NOT NULL, rows_said INTEGER NOT NULL,
    trained INTEGER NOT NULL DEFAULT 0, left_out TEXT NOT NULL DEFAULT '', units INTEGER, skipped INTEGER,
    fingerprint BLOB NOT NULL DEFAULT x''
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS charged (sequence INTEGER PRIMARY KEY, digest BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS promise (
    run_id TEXT NOT NULL, round INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (run_id, round)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cancelled (run_id TEXT PRIMARY KEY, attempt INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS coordinator_head (
    key_id TEXT PRIMARY KEY, sequence INTEGER NOT NULL, digest BLOB NOT NULL
) STRICT, WITHOUT ROWID;
"""


@dataclass(frozen=True)
class KeptResult:
    """A serialised ``coordination.v1.Answer`` of which only run, round, result and arrays' digest count, and the arrays."""

    answer: bytes
    arrays: NamedArrays


@dataclass(frozen=True)
class KeptAnswers:
    """How many answers are kept whole, their bytes, and when the oldest was kept (seconds since 1970; 0 where none is)."""

    answers: int
    bytes: int
    oldest_unix: int


@dataclass(frozen=True)
class KnownRun:
    """A run that this site was asked about.

    Its highest attempt, its task, the number of rows that it was told, how many different questions to train were answered,
    and which blocks it does not train on, as they do not hold it to its end. ``counted`` are a private run's numbers, which
    were noised and charged, and ``fingerprint`` is the digest of its rows that it was told; absent before it was described.
    """

    run_id: str
    attempt: int
    task_document: bytes
    rows_said: int
    trained: int = 0
    left_out: tuple[str, ...] = ()
    counted: NoisedCount | None = None
    fingerprint: bytes = b""


class Outbox:
    """Opens or makes the outbox at ``path`` (":memory:" for rehearsals); any thread may call.

    Args:
        path: the file, readable by its owner alone.
        keep_answers: how many answers are kept whole.
        keep_bytes: how many bytes they may have together; the newest is always kept.
        clock: seconds since 1970.

    Raises:
        StorageError: the file cannot be opened.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        keep_answers: int = 256,
        keep_bytes: int = 2**30,
        clock: Callable[[], int] = lambda: int(time.time()),
    ) -> None:
        self._name = str(path)
        self._failures = StorageErrors(f"outbox {path}", "Free space, or correct rights.")
        self._lock = (
            threading.RLock()
        )  # one connection: a transaction of one thread must not take in another's statements
        self._keep_answers = keep_answers
        self._keep_bytes = keep_bytes
        self._clock = clock
        with self._failures:
            if self._name != ":memory:":
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._connection = sqlite3.connect(self._name, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA secure_delete = ON")
            self._connection.executescript(_SCHEMA)
            self._add_column("run", "trained INTEGER NOT NULL DEFAULT 0")
            self._add_column("run", "left_out TEXT NOT NULL DEFAULT ''")
            self._add_column("run", "units INTEGER")
            self._add_column("run", "skipped INTEGER")
            self._add_column("run", "fingerprint BLOB NOT NULL DEFAULT x''")
            self._add_column("answer", "kept_unix INTEGER NOT NULL DEFAULT 0")
            self._kept = self._kept_whole()
        self._bytes = sum(size for _, size in self._kept)

    def find(self, key: bytes) -> KeptResult | None:
        """The result of a question, if it was answered before.

        Raises:
            EnvelopeRefused: it was, so long ago that the answer is no longer kept.
        """
        with self._using():
            row = self._connection.execute("SELECT body, layout, arrays FROM answer WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        body, layout, arrays = row
        if body is None:
            raise EnvelopeRefused(
                "a question was replayed whose answer is no longer kept.",
                hint="Start a new run.",
                reason="replayed",
            )
        return KeptResult(body, unpack_arrays(PackedArrays(layout, arrays)))

    def store(
        self, key: bytes, result: KeptResult, *, run: KnownRun | None = None, charged: Sequence[Head] = ()
    ) -> None:
        """Keeps a result, what is then known of its run, and what it was charged; all of it is on the disk before this returns.

        Args:
            key: names the question.
            result: its result.
            run: kept in place of what was known.
            charged: the ledger's reservations for what the result holds, in place of those of the results before, which
                have been settled.

        Raises:
            StorageError: the file cannot be written; nothing is kept then.
        """
        packed = pack_arrays(result.arrays)
        size = len(result.answer) + len(packed.content)
        with self._using():
            dropped = self._dropped_for(size)
            with self._transaction():
                sequence = self._insert((key, result.answer, packed.layout, packed.content))
                self._connection.executemany(
                    "UPDATE answer SET body = NULL, layout = NULL, arrays = NULL WHERE sequence = ?",
                    [(old,) for old, _ in dropped],
                )
                if run is not None:
                    self._put(run)
                if charged:
                    self._connection.execute("DELETE FROM charged")
                    self._connection.executemany(
                        "INSERT INTO charged VALUES (?, ?)", [(head.sequence, head.digest) for head in charged]
                    )
            for _ in dropped:  # only now: what was rolled back is still kept
                self._bytes -= self._kept.popleft()[1]
            self._kept.append((sequence, size))
            self._bytes += size

    def kept(self) -> KeptAnswers:
        """What is kept whole just now."""
        with self._using():
            answers, size, oldest = self._connection.execute(
                "SELECT count(*), coalesce(sum(length(body) + length(arrays)), 0), coalesce(min(kept_unix), 0) FROM answer"
                " WHERE body IS NOT NULL"
            ).fetchone()
        return KeptAnswers(answers, size, oldest)

    def forget(self, kept_before_unix: int) -> int:
        """Deletes the answers that were kept before a moment; their questions, asked again, are refused. Returns how many.

        An answer whose moment is not known, or has not come since the clock was ahead, counts as kept now.

        Raises:
            StorageError: the file cannot be written; what was not deleted is deleted by the next call.
        """
        now = self._clock()
        with self._using():
            self._connection.execute(
                "UPDATE answer SET kept_unix = ? WHERE body IS NOT NULL AND (kept_unix = 0 OR kept_unix > ?)",
                (now, now),
            )
            gone = self._connection.execute(
                "UPDATE answer SET body = NULL, layout = NULL, arrays = NULL WHERE body IS NOT NULL AND kept_unix < ?",
                (kept_before_unix,),
            ).rowcount
            self._kept = self._kept_whole()
            self._bytes = sum(size for _, size in self._kept)
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return gone

    def charged(self) -> tuple[Head, ...]:
        """The ledger's reservations for the result that was kept last: settled or not, they carry nothing else."""
        with self._using():
            rows = self._connection.execute("SELECT sequence, digest FROM charged ORDER BY sequence").fetchall()
        return tuple(Head(*row) for row in rows)

    def run(self, run_id: str) -> KnownRun | None:
        """What is known of a run."""
        with self._using():
            row = self._connection.execute(
                "SELECT run_id, attempt, task, rows_said, trained, left_out, units, skipped, fingerprint FROM run WHERE run_id = ?",
                (run_id,),
            ).fetchone()
        if row is None:
            return None
        known, attempt, document, rows_said, trained, left_out, units, skipped, told = row
        counted = None if units is None else NoisedCount(units, skipped)
        return KnownRun(known, attempt, document, rows_said, trained, tuple(left_out.split()), counted, told)

    def tasks(self) -> tuple[bytes, ...]:
        """The documents of all tasks that this site was ever asked to train, each once."""
        with self._using():
            rows = self._connection.execute("SELECT DISTINCT task FROM run ORDER BY task").fetchall()
        return tuple(bytes(document) for (document,) in rows)

    def remember(self, run: KnownRun) -> None:
        """Keeps what is known of a run in place of what was."""
        with self._using():
            self._put(run)

    def cancelled(self, run_id: str) -> int:
        """The highest attempt of a run that was called off; ``NEVER`` when none was."""
        with self._using():
            row = self._connection.execute("SELECT attempt FROM cancelled WHERE run_id = ?", (run_id,)).fetchone()
        return NEVER if row is None else int(row[0])

    def cancel(self, run_id: str, attempt: int) -> None:
        """Keeps that a run was called off up to an attempt."""
        with self._using():
            self._connection.execute("INSERT OR REPLACE INTO cancelled VALUES (?, ?)", (run_id, attempt))

    def read_promise(self, instance: Instance) -> Promise:
        """What was promised in the round of an instance of secure aggregation."""
        with self._using():
            row = self._connection.execute(
                "SELECT body FROM promise WHERE run_id = ? AND round = ?", (instance.run_id, instance.round)
            ).fetchone()
        return Promise.of(instance) if row is None else Promise.model_validate_json(row[0])

    def write_promise(self, promise: Promise) -> None:
        """Keeps a promise in place of the round's earlier one; it is on the disk when this returns.

        Raises:
            StorageError: it cannot be written.
        """
        with self._using():
            self._connection.execute(
                "INSERT OR REPLACE INTO promise VALUES (?, ?, ?)",
                (promise.run_id, promise.round, promise.model_dump_json()),
            )

    def coordinator_head(self, key_id: str) -> Head | None:
        """The newest head of the audit log of the coordinator with this key."""
        with self._using():
            row = self._connection.execute(
                "SELECT sequence, digest FROM coordinator_head WHERE key_id = ?", (key_id,)
            ).fetchone()
        return None if row is None else Head(*row)

    def remember_coordinator_head(self, key_id: str, head: Head) -> None:
        """Keeps a head in place of the one before."""
        with self._using():
            self._connection.execute(
                "INSERT OR REPLACE INTO coordinator_head VALUES (?, ?, ?)", (key_id, head.sequence, head.digest)
            )

    def close(self) -> None:
        """Closes the file; the outbox cannot be used afterwards."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _using(self) -> Iterator[None]:
        with self._lock, self._failures:
            yield

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _kept_whole(self) -> deque[tuple[int, int]]:
        """Number and bytes of each answer that is kept whole, oldest first."""
        return deque(
            self._connection.execute(
                "SELECT sequence, length(body) + length(arrays) FROM answer WHERE body IS NOT NULL ORDER BY sequence"
            )
        )

    def _add_column(self, table: str, column: str) -> None:
        """A file of an earlier release has not got it yet."""
        known = {row[1] for row in self._connection.execute(f"PRAGMA table_info({table})")}
        if column.partition(" ")[0] not in known:
            self._connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}")

    def _put(self, run: KnownRun) -> None:
        counted = (None, None) if run.counted is None else (run.counted.units, run.counted.skipped)
        left_out = " ".join(run.left_out)
        row = (
            run.run_id,
            run.attempt,
            run.task_document,
            run.rows_said,
            run.trained,
            left_out,
            *counted,
            run.fingerprint,
        )
        self._connection.execute(
            "INSERT OR REPLACE INTO run (run_id, attempt, task, rows_said, trained, left_out, units, skipped, fingerprint)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        )

    def _dropped_for(self, size: int) -> list[tuple[int, int]]:
        """The oldest answers, which make room for one of ``size`` bytes."""
        answers, total = len(self._kept) + 1, self._bytes + size
        dropped: list[tuple[int, int]] = []
        for oldest in self._kept:
            if answers <= self._keep_answers and total <= self._keep_bytes:
                break
            dropped.append(oldest)
            answers -= 1
            total -= oldest[1]
        return dropped

    def _insert(self, row: tuple[bytes, bytes, str, bytes]) -> int:
        cursor = self._connection.execute(
            "INSERT INTO answer (key, body, layout, arrays, kept_unix) VALUES (?, ?, ?, ?, ?)", (*row, self._clock())
        )
        return cursor.lastrowid or 0
