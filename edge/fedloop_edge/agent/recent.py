"""The inputs of recent predictions, kept so that a label that comes later finds its row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedloop_edge.database import Database, Durability

__all__ = ["RecentPrediction", "RecentPredictions"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS recent (
    number INTEGER PRIMARY KEY, version INTEGER NOT NULL, predicted TEXT NOT NULL, observed_unix INTEGER NOT NULL,
    inputs BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS totals (id INTEGER PRIMARY KEY CHECK (id = 1), items INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT OR IGNORE INTO totals VALUES (1, 0, 0);
"""


@dataclass(frozen=True)
class RecentPrediction:
    """A prediction with its inputs (safetensors of one encoded row)."""

    number: int
    version: int
    predicted: str
    observed_unix: int
    inputs: bytes


class RecentPredictions:
    """A bounded SQLite file; the oldest go first. A power cut may take the last of them, never the file."""

    def __init__(self, path: Path, *, maximum_items: int, maximum_bytes: int) -> None:
        self._database = Database(path, _SCHEMA, Durability.LAST_COMMITS_MAY_GO)
        self._maximum_items = maximum_items
        self._maximum_bytes = maximum_bytes

    def add(self, predictions: Sequence[RecentPrediction]) -> None:
        """Keeps predictions and drops the oldest beyond the bounds."""
        rows = [(p.number, p.version, p.predicted, p.observed_unix, p.inputs) for p in predictions]
        with self._database.transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO recent VALUES (?, ?, ?, ?, ?)", rows)
            connection.execute(
                "UPDATE totals SET items = items + ?, bytes = bytes + ?",
                (len(rows), sum(len(p.inputs) for p in predictions)),
            )
            items, size = connection.execute("SELECT items, bytes FROM totals").fetchone()
            while items > self._maximum_items or size > self._maximum_bytes:
                number, length = connection.execute(
                    "SELECT number, LENGTH(inputs) FROM recent ORDER BY number LIMIT 1"
                ).fetchone()
                connection.execute("DELETE FROM recent WHERE number = ?", (number,))
                items, size = items - 1, size - length
            connection.execute("UPDATE totals SET items = ?, bytes = ?", (items, size))

    def find(self, number: int) -> RecentPrediction | None:
        """The prediction of this number; None when it is not kept."""
        with self._database.transaction() as connection:
            row = connection.execute("SELECT * FROM recent WHERE number = ?", (number,)).fetchone()
        return None if row is None else RecentPrediction(*row)

    def forget(self, prediction: RecentPrediction) -> None:
        """Drops a prediction that has its label."""
        with self._database.transaction() as connection:
            gone = connection.execute("DELETE FROM recent WHERE number = ?", (prediction.number,)).rowcount
            connection.execute(
                "UPDATE totals SET items = items - ?, bytes = bytes - ?", (gone, gone * len(prediction.inputs))
            )

    def close(self) -> None:
        """Closes the file."""
        self._database.close()
