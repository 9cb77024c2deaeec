"""Numbered intake: what a device sends twice counts once.

A device numbers the items of each stream from 1 without a gap and sends them in order until they are acknowledged. The
hub keeps, for each queue and stream, the highest number that is settled with all before it. A device whose queue ran
over names the ``oldest`` number that it still has: those before it will never come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fedloop_core.errors import FedloopError, FeedbackRefused, StorageError
from fedloop_edge.database import Database
from fedloop_edge.streams import Stream

__all__ = ["Intake", "Item", "QueueKey", "Rejection", "Settled"]

_STRIPES = 64
_LARGEST_NUMBER = 2**53
_LONGEST_QUEUE_ID = 64


@dataclass(frozen=True)
class QueueKey:
    """One stream of one installation of one device."""

    device_id: str
    queue_id: str
    stream: Stream


@dataclass(frozen=True)
class Item:
    """A numbered item and what is done with it when it is new. ``pass_on`` raises FedloopError to reject it."""

    sequence: int
    pass_on: Callable[[], None]


@dataclass(frozen=True)
class Rejection:
    """A number that was settled by rejecting its item, and the code of the reason."""

    sequence: int
    code: str


@dataclass(frozen=True)
class Settled:
    """The highest number settled without a gap, and which of the items just taken were rejected."""

    acknowledged: int
    rejected: tuple[Rejection, ...]


class Intake:
    """Keeps the numbers in the hub's database; items of one device are taken one after another."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._locks = tuple(threading.Lock() for _ in range(_STRIPES))

    def take(self, key: QueueKey, oldest: int, items: Iterable[Item]) -> Settled:
        """Passes on the items that are next in line. Repeats are skipped; a gap ends the batch.

        Raises:
            FeedbackRefused: the queue's name or a number is not a possible one.
            StorageError: an item could not be kept; it is not acknowledged.
        """
        if not 0 < len(key.queue_id) <= _LONGEST_QUEUE_ID or not 0 <= oldest <= _LARGEST_NUMBER:
            raise FeedbackRefused("a queue's name or number is not possible.")
        with self._locks[int(key.device_id[:8], 16) % _STRIPES]:
            before = self._acknowledged(key)
            acknowledged = max(before, oldest - 1)
            lost = acknowledged - before
            rejected: list[Rejection] = []
            try:
                for item in items:
                    if item.sequence <= acknowledged:
                        continue
                    if item.sequence > acknowledged + 1:
                        break
                    try:
                        item.pass_on()
                    except StorageError:
                        raise
                    except FedloopError as error:
                        rejected.append(Rejection(item.sequence, error.code))
                    acknowledged = item.sequence
            finally:
                if acknowledged > before:
                    self._settle(key, acknowledged, len(rejected), lost)
        return Settled(acknowledged, tuple(rejected))

    def totals(self) -> dict[Stream, tuple[int, int]]:
        """For each stream, how many items were rejected here and how many were lost on devices."""
        with self._database.transaction() as connection:
            rows = connection.execute("SELECT stream, SUM(rejected), SUM(lost) FROM intake GROUP BY stream").fetchall()
        return {Stream(stream): (rejected, lost) for stream, rejected, lost in rows}

    def _acknowledged(self, key: QueueKey) -> int:
        with self._database.transaction() as connection:
            row = connection.execute(
                "SELECT acknowledged FROM intake WHERE device_id = ? AND queue_id = ? AND stream = ?",
                (key.device_id, key.queue_id, key.stream.value),
            ).fetchone()
        return int(row[0]) if row else 0

    def _settle(self, key: QueueKey, acknowledged: int, rejected: int, lost: int) -> None:
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO intake VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (device_id, queue_id, stream) DO UPDATE SET"
                " acknowledged = excluded.acknowledged, rejected = rejected + excluded.rejected,"
                " lost = lost + excluded.lost",
                (key.device_id, key.queue_id, key.stream.value, acknowledged, rejected, lost),
            )
