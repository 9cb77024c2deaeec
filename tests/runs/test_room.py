"""A full disk at the coordinator: the drive keeps its sums and waits, and a person may still stop it."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest
from sqlalchemy import text

from fedloop_core.errors import AuditBroken, ContentDamaged, DiskFull, FedloopError, RunCancelled, StorageError
from fedloop_server.database import Database
from fedloop_server.runs.events import AttemptStarted
from fedloop_server.runs.journal import RunJournal
from fedloop_server.runs.room import WaitsForRoom, with_room

BEGUN = AttemptStarted(attempt=1, unix=1.0)


class Disk:
    """A disk without room, until somebody has waited so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, waits: int) -> None:
        self.waits = waits
        self._real = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, descriptor: int, content: bytes) -> int:
        if self.waits > 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._real(descriptor, content)

    def sleep(self, _seconds: float) -> None:
        self.waits -= 1


class Wish:
    def __init__(self, *answers: bool | FedloopError) -> None:
        self.answers = list(answers)

    def wished(self) -> bool:
        answer = self.answers.pop(0)
        if isinstance(answer, FedloopError):
            raise answer
        return answer


def test_an_event_waits_until_there_is_room_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(monkeypatch, waits=3)
    journal = RunJournal(tmp_path, room=WaitsForRoom(None, disk.sleep))
    with caplog.at_level(logging.WARNING):
        state = journal.record(BEGUN)
    assert disk.waits == 0
    assert [record.message.count("No space left") for record in caplog.records] == [1]
    assert RunJournal(tmp_path).state == state
    assert len((tmp_path / "journal.jsonl").read_bytes().splitlines()) == 1


def test_a_person_may_stop_a_run_that_waits_even_while_the_database_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, waits=100)
    wish = Wish(False, StorageError("the database is on that disk too."), True)
    journal = RunJournal(tmp_path, room=WaitsForRoom(wish, disk.sleep))
    with pytest.raises(RunCancelled):
        journal.record(BEGUN)
    assert disk.waits == 97
    assert wish.answers == []


def test_without_anybody_who_waits_it_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Disk(monkeypatch, waits=1)
    with pytest.raises(DiskFull, match="No space left"):
        RunJournal(tmp_path).record(BEGUN)


def test_what_is_written_beside_events_waits_too(tmp_path: Path) -> None:
    told: list[StorageError] = []
    journal = RunJournal(tmp_path, room=told.append)

    def write() -> int:
        if len(told) < 2:
            raise DiskFull("no room.")
        return 7

    assert journal.patiently(write) == 7
    assert len(told) == 2


@pytest.mark.parametrize("failures", [1, 20])
def test_a_failure_that_passes_is_waited_for_and_told_once(failures: int, caplog: pytest.LogCaptureFixture) -> None:
    slept: list[float] = []

    def look() -> int:
        if len(slept) < failures:
            raise StorageError("database x failed: it starts again.")
        return 7

    with caplog.at_level(logging.WARNING):
        assert with_room(look, WaitsForRoom(None, slept.append)) == 7
    assert len(slept) == failures
    assert len(caplog.records) == 1
    assert "a minute at most" in caplog.text


def test_a_failure_that_lasts_is_raised_after_a_minute() -> None:
    slept: list[float] = []

    def look() -> int:
        raise StorageError("database x failed: it is gone.")

    with pytest.raises(StorageError, match="it is gone"):
        with_room(look, WaitsForRoom(None, slept.append))
    assert sum(slept) == 60.0


@pytest.mark.parametrize("kind", [AuditBroken, ContentDamaged])
def test_what_is_damaged_is_not_waited_for(kind: type[StorageError]) -> None:
    slept: list[float] = []

    def look() -> int:
        raise kind("line 3 is another one.")

    with pytest.raises(kind):
        with_room(look, WaitsForRoom(None, slept.append))
    assert slept == []


def test_a_full_database_is_a_full_disk(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    with database.writing() as session:
        session.execute(text("create table t (x blob)"))

    def overfill() -> None:
        with database.writing() as session:
            pages = session.execute(text("pragma page_count")).scalar_one()
            session.execute(text(f"pragma max_page_count = {pages + 1}"))
            session.execute(text("insert into t values (zeroblob(1000000))"))

    try:
        with pytest.raises(DiskFull, match="disk is full"):
            overfill()
    finally:
        database.close()
