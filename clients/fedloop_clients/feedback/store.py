"""Labelled examples from devices, each kept once, until they join the site's data."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedloop_core.arrays import arrays_from_bytes, arrays_to_bytes
from fedloop_core.dataset import Dataset
from fedloop_core.encoding import InputEncoder
from fedloop_core.errors import StorageError
from fedloop_core.schema import FeatureSchema
from fedloop_edge.hub import ReceivedExample

__all__ = ["FeedbackStore", "HeldExamples", "WaitingRows", "forget_in", "held_in"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS example (
    place INTEGER PRIMARY KEY, device_id TEXT NOT NULL, queue_id TEXT NOT NULL, sequence INTEGER NOT NULL,
    task TEXT NOT NULL, version INTEGER NOT NULL, predicted TEXT NOT NULL, label TEXT NOT NULL, unit TEXT NOT NULL,
    observed_unix INTEGER NOT NULL, inputs BLOB NOT NULL, admitted INTEGER NOT NULL,
    UNIQUE (queue_id, sequence)
) STRICT;
"""


@dataclass(frozen=True)
class WaitingRows:
    """Examples that have not joined the site's data yet, in the order of their coming; ``places`` names them."""

    rows: Dataset
    places: tuple[int, ...]


@dataclass(frozen=True)
class HeldExamples:
    """How many examples a store's file holds whole, their bytes, and when the oldest was seen (seconds since 1970)."""

    examples: int
    bytes: int
    oldest_unix: int


def held_in(path: Path) -> HeldExamples:
    """What a store's file holds whole.

    Raises:
        StorageError: it cannot be read.
    """
    with _opened(path) as connection:
        found = connection.execute(
            "SELECT count(*), coalesce(sum(length(inputs)), 0), coalesce(min(observed_unix), 0) FROM example WHERE inputs != x''"
        ).fetchone()
    return HeldExamples(*found)


def forget_in(path: Path, observed_before_unix: int) -> int:
    """As ``FeedbackStore.forget``, for whoever does not know the task; returns how many were erased.

    Raises:
        StorageError: the file cannot be written.
    """
    with _opened(path) as connection:
        return _erase(connection, observed_before_unix)


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA secure_delete = ON")
            connection.executescript(_SCHEMA)
            yield connection
    except sqlite3.Error as error:
        raise StorageError(f"feedback store {path}: {error}.", hint="Free space, or correct rights.") from error


def _erase(connection: sqlite3.Connection, observed_before_unix: int) -> int:
    gone = connection.execute(
        "UPDATE example SET predicted = '', label = '', unit = '', inputs = x'', admitted = 1"
        " WHERE observed_unix < ? AND inputs != x''",
        (observed_before_unix,),
    ).rowcount
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return gone


class FeedbackStore:
    """Opens or makes the store at ``path`` (":memory:" for rehearsals), readable by its owner alone; threads may share it.

    Raises:
        StorageError: the file cannot be opened.
    """

    def __init__(self, path: Path | str, schema: FeatureSchema) -> None:
        self._name = str(path)
        self._encoder = InputEncoder(schema)
        self._lock = threading.Lock()
        with self._storage_errors():
            if self._name != ":memory:":
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._connection = sqlite3.connect(self._name, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA secure_delete = ON")
            self._connection.executescript(_SCHEMA)

    def add(self, device_id: str, example: ReceivedExample) -> bool:
        """Keeps an example; False when it was kept before.

        Raises:
            StorageError: it cannot be kept now.
        """
        values = (
            device_id,
            example.queue_id,
            example.sequence,
            example.task,
            example.version,
            example.predicted,
            example.label,
            example.unit,
            example.observed_unix,
            arrays_to_bytes(example.inputs),
        )
        with self._storage_errors():
            cursor = self._connection.execute(
                "INSERT INTO example (device_id, queue_id, sequence, task, version, predicted, label, unit, observed_unix,"
                " inputs, admitted) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0) ON CONFLICT DO NOTHING",
                values,
            )
        return cursor.rowcount == 1

    def count_waiting(self) -> int:
        """Examples that have not joined the site's data."""
        with self._storage_errors():
            (count,) = self._connection.execute("SELECT count(*) FROM example WHERE admitted = 0").fetchone()
        return int(count)

    def waiting(self) -> WaitingRows:
        """Examples that have not joined the site's data."""
        with self._storage_errors():
            found = self._connection.execute(
                "SELECT place, label, unit, inputs FROM example WHERE admitted = 0 ORDER BY place"
            ).fetchall()
        names = tuple(spec.name for spec in self._encoder.inputs)
        empty = Dataset(self._encoder.encode([]), self._encoder.encode_labels([]), ())
        rows = empty
        for _, label, unit, inputs in found:
            row = Dataset(arrays_from_bytes(inputs, names), self._encoder.encode_labels([label]), (unit,))
            rows = rows.concatenate(row)
        return WaitingRows(rows, tuple(int(place) for place, *_ in found))

    def newest_place(self) -> int:
        """The place of the example that came last; 0 before the first."""
        with self._storage_errors():
            (place,) = self._connection.execute("SELECT coalesce(max(place), 0) FROM example").fetchone()
        return int(place)

    def units_waiting(self, after_place: int) -> tuple[str, ...]:
        """The unit of each waiting example that came after a place; empty where the record is the unit."""
        with self._storage_errors():
            found = self._connection.execute(
                "SELECT unit FROM example WHERE admitted = 0 AND place > ? ORDER BY place", (after_place,)
            ).fetchall()
        return tuple(unit for (unit,) in found)

    def versions_waiting(self) -> tuple[int, ...]:
        """The versions that predicted the waiting examples, rising."""
        with self._storage_errors():
            found = self._connection.execute(
                "SELECT DISTINCT version FROM example WHERE admitted = 0 ORDER BY version"
            ).fetchall()
        return tuple(int(version) for (version,) in found)

    def mark_admitted(self, waiting: WaitingRows) -> None:
        """Remembers, for all of them or for none, that these examples have joined the site's data."""
        with self._storage_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._connection.executemany(
                    "UPDATE example SET admitted = 1 WHERE place = ?", [(place,) for place in waiting.places]
                )
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def forget(self, observed_before_unix: int) -> int:
        """Erases examples whose input was seen before that moment; returns how many of them were never admitted.

        Their numbers stay, so that a device that sends one again is not taken for news.
        """
        with self._storage_errors():
            (lost,) = self._connection.execute(
                "SELECT count(*) FROM example WHERE observed_unix < ? AND admitted = 0", (observed_before_unix,)
            ).fetchone()
            _erase(self._connection, observed_before_unix)
        return int(lost)

    def forget_units(self, is_erased: Callable[[str], bool]) -> int:
        """Erases the examples of people who were erased, admitted or not; returns how many. Their numbers stay, as in ``forget``."""
        with self._storage_errors():
            found = self._connection.execute("SELECT DISTINCT unit FROM example WHERE unit != ''").fetchall()
            erased = 0
            for (unit,) in found:
                if is_erased(unit):
                    erased += self._connection.execute(
                        "UPDATE example SET predicted = '', label = '', unit = '', inputs = x'', admitted = 1 WHERE unit = ?",
                        (unit,),
                    ).rowcount
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return erased

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except (sqlite3.Error, OSError) as error:
                raise StorageError(
                    f"feedback store {self._name}: {error}.", hint="Free space, or correct rights."
                ) from error
