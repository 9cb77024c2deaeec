"""What a device has yet to send, on its disk: numbered, bounded, kept until the hub acknowledges it.

Beside the queue the same file holds the marks that must survive with it: the queue's own name, the counter of the last
assignment, the numbers given to predictions.
"""

from __future__ import annotations

import sqlite3
import uuid
from dataclasses import dataclass
from pathlib import Path

from fedloop_edge.database import Database
from fedloop_edge.streams import Stream

__all__ = ["DeviceStore", "QueuedItem"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS items (
    stream TEXT NOT NULL, sequence INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (stream, sequence)
);
CREATE TABLE IF NOT EXISTS streams (
    stream TEXT PRIMARY KEY, last INTEGER NOT NULL, items INTEGER NOT NULL, bytes INTEGER NOT NULL,
    dropped INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS marks (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_QUEUE_ID = "queue-id"
_NUMBERS = "numbers"
_NUMBERS_AT_ONCE = 1024  # one write to the disk for so many predictions; a restart skips the rest


@dataclass(frozen=True)
class QueuedItem:
    """A serialised message and its number."""

    sequence: int
    body: bytes


class DeviceStore:
    """Queue and marks of one device.

    Args:
        path: the SQLite file.
        maximum_items: items kept for each stream; beyond it the oldest goes and is counted.
        maximum_bytes: bytes kept for each stream, likewise.
    """

    def __init__(self, path: Path, *, maximum_items: int, maximum_bytes: int) -> None:
        self._database = Database(path, _SCHEMA)
        self._maximum_items = maximum_items
        self._maximum_bytes = maximum_bytes
        self._next_number = 0
        self._numbers_end = 0
        with self._database.transaction() as connection:
            for stream in Stream:
                connection.execute("INSERT OR IGNORE INTO streams VALUES (?, 0, 0, 0, 0)", (stream.value,))
            connection.execute("INSERT OR IGNORE INTO marks VALUES (?, ?)", (_QUEUE_ID, str(uuid.uuid4())))

    @property
    def queue_id(self) -> str:
        """A UUID of this installation: two devices with one key still have two queues."""
        return self.mark(_QUEUE_ID) or ""

    def put(self, stream: Stream, body: bytes) -> None:
        """Queues a message; on the disk when this returns."""
        name = stream.value
        with self._database.transaction() as connection:
            (last,) = connection.execute("SELECT last FROM streams WHERE stream = ?", (name,)).fetchone()
            connection.execute("INSERT INTO items VALUES (?, ?, ?)", (name, last + 1, body))
            connection.execute(
                "UPDATE streams SET last = ?, items = items + 1, bytes = bytes + ? WHERE stream = ?",
                (last + 1, len(body), name),
            )
            self._drop_oldest(connection, name)

    def head(self, stream: Stream, *, items: int, size: int) -> tuple[QueuedItem, ...]:
        """The next items to send, in order: at most ``items`` and, after the first, at most ``size`` bytes."""
        with self._database.transaction() as connection:
            rows = connection.execute(
                "SELECT sequence, body FROM items WHERE stream = ? ORDER BY sequence LIMIT ?", (stream.value, items)
            ).fetchall()
        taken: list[QueuedItem] = []
        total = 0
        for sequence, body in rows:
            total += len(body)
            if taken and total > size:
                break
            taken.append(QueuedItem(sequence, body))
        return tuple(taken)

    def acknowledge(self, stream: Stream, sequence: int) -> None:
        """Forgets what the hub has. A number that was never given means that this file is older than what was sent.

        Then the queue takes a new name and numbers anew what it holds: nothing new is taken for a repeat.
        """
        name = stream.value
        with self._database.transaction() as connection:
            (last,) = connection.execute("SELECT last FROM streams WHERE stream = ?", (name,)).fetchone()
            if sequence > last:
                self._start_anew(connection)
                return
            connection.execute("DELETE FROM items WHERE stream = ? AND sequence <= ?", (name, sequence))
            self._recount(connection, name)

    def pending(self, stream: Stream) -> int:
        """Items that wait."""
        return self._counted(stream)[0]

    def dropped(self, stream: Stream) -> int:
        """Items that were dropped since the beginning because the queue was full."""
        return self._counted(stream)[1]

    def mark(self, name: str) -> str | None:
        """A value that was kept under a name."""
        with self._database.transaction() as connection:
            row = connection.execute("SELECT value FROM marks WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_marks(self, **values: str) -> None:
        """Keeps values under names, all or none."""
        with self._database.transaction() as connection:
            for name, value in values.items():
                connection.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", (name, value))

    def take_numbers(self, count: int) -> int:
        """The first of ``count`` consecutive numbers, given to nobody else, also not after a restart."""
        if self._next_number + count > self._numbers_end:
            with self._database.transaction() as connection:
                row = connection.execute("SELECT value FROM marks WHERE name = ?", (_NUMBERS,)).fetchone()
                start = int(row[0]) if row else 1
                end = start + max(count, _NUMBERS_AT_ONCE)
                connection.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", (_NUMBERS, str(end)))
            self._next_number, self._numbers_end = start, end
        first = self._next_number
        self._next_number += count
        return first

    def close(self) -> None:
        """Closes the file."""
        self._database.close()

    def _counted(self, stream: Stream) -> tuple[int, int]:
        with self._database.transaction() as connection:
            items, dropped = connection.execute(
                "SELECT items, dropped FROM streams WHERE stream = ?", (stream.value,)
            ).fetchone()
        return int(items), int(dropped)

    def _drop_oldest(self, connection: sqlite3.Connection, name: str) -> None:
        while True:
            items, size = connection.execute("SELECT items, bytes FROM streams WHERE stream = ?", (name,)).fetchone()
            if items <= self._maximum_items and size <= self._maximum_bytes:
                return
            sequence, length = connection.execute(
                "SELECT sequence, LENGTH(body) FROM items WHERE stream = ? ORDER BY sequence LIMIT 1", (name,)
            ).fetchone()
            connection.execute("DELETE FROM items WHERE stream = ? AND sequence = ?", (name, sequence))
            connection.execute(
                "UPDATE streams SET items = items - 1, bytes = bytes - ?, dropped = dropped + 1 WHERE stream = ?",
                (length, name),
            )

    def _recount(self, connection: sqlite3.Connection, name: str) -> None:
        connection.execute(
            "UPDATE streams SET (items, bytes) ="
            " (SELECT COUNT(*), COALESCE(SUM(LENGTH(body)), 0) FROM items WHERE items.stream = streams.stream)"
            " WHERE stream = ?",
            (name,),
        )

    def _start_anew(self, connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE marks SET value = ? WHERE name = ?", (str(uuid.uuid4()), _QUEUE_ID))
        for stream in Stream:
            rows = connection.execute(
                "SELECT body FROM items WHERE stream = ? ORDER BY sequence", (stream.value,)
            ).fetchall()
            connection.execute("DELETE FROM items WHERE stream = ?", (stream.value,))
            connection.executemany(
                "INSERT INTO items VALUES (?, ?, ?)",
                [(stream.value, at, body) for at, (body,) in enumerate(rows, start=1)],
            )
            connection.execute("UPDATE streams SET last = ? WHERE stream = ?", (len(rows), stream.value))
