"""What an outbox keeps when its file fails in the middle of a transaction."""

from __future__ import annotations

import sqlite3
from typing import Any

import numpy as np
import pytest

from fedloop_clients.outbox import KeptResult, Outbox
from fedloop_core.errors import EnvelopeRefused, StorageError


class FailingConnection:
    """A connection whose statements fail when they begin with ``word``."""

    def __init__(self, real: sqlite3.Connection, word: str) -> None:
        self._real = real
        self._word = word

    def _try(self, statement: str) -> None:
        if statement.startswith(self._word):
            raise sqlite3.OperationalError("database or disk is full")

    def execute(self, statement: str, *parts: Any) -> sqlite3.Cursor:
        self._try(statement)
        return self._real.execute(statement, *parts)

    def executemany(self, statement: str, *parts: Any) -> sqlite3.Cursor:
        self._try(statement)
        return self._real.executemany(statement, *parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def reply(at: int) -> KeptResult:
    return KeptResult(b"answer %d" % at, {"a": np.full(100, at, np.float64)})


def kept(outbox: Outbox, count: int) -> list[int]:
    found = []
    for at in range(count):
        try:
            answer = outbox.find(bytes([at]))
        except EnvelopeRefused:
            continue
        if answer is not None:
            assert answer.answer == reply(at).answer
            found.append(at)
    return found


@pytest.mark.parametrize("word", ["BEGIN", "INSERT", "UPDATE", "COMMIT"])
def test_a_store_that_failed_changes_nothing_and_may_be_repeated(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    outbox = Outbox(":memory:", keep_answers=3)
    for at in range(3):
        outbox.store(bytes([at]), reply(at))
    with monkeypatch.context() as patch:
        patch.setattr(outbox, "_connection", FailingConnection(outbox._connection, word))
        for _ in range(4):
            with pytest.raises(StorageError, match="full"):
                outbox.store(b"\x03", reply(3))
    assert kept(outbox, 5) == [0, 1, 2]
    outbox.store(b"\x03", reply(3))
    assert kept(outbox, 5) == [1, 2, 3]
    outbox.store(b"\x04", reply(4))
    assert kept(outbox, 5) == [2, 3, 4]


def test_bytes_are_counted_only_of_what_was_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = Outbox(":memory:", keep_bytes=2500)  # room for three answers
    for at in range(2):
        outbox.store(bytes([at]), reply(at))
    with monkeypatch.context() as patch:
        patch.setattr(outbox, "_connection", FailingConnection(outbox._connection, "INSERT"))
        for _ in range(4):
            with pytest.raises(StorageError):
                outbox.store(b"\x02", reply(2))
    outbox.store(b"\x02", reply(2))
    assert kept(outbox, 3) == [0, 1, 2]
