"""Appending to the audit log, by one and by many, on disks that fail; and finding its head."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloop_core.audit import AuditAction, AuditEntry, AuditHead, AuditLog
from fedloop_core.audit.entries import MAXIMUM_LINE
from fedloop_core.errors import AuditBroken, StorageError

ACTION = AuditAction.SITE_ADDED


def test_entries_follow_one_another_and_the_head_is_the_last(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "home" / "audit.jsonl", clock=lambda: 12.7)
    assert log.head() == log.verify().head == AuditHead(0, bytes(32))
    assert list(log.entries()) == []
    first = log.record("operator:ann", AuditAction.INITIALISE, "coordinator")
    second = log.record("operator:ann", ACTION, "va", expires=5, epsilon=0.5, note="Ärzte\n")
    assert list(AuditLog(log.path).entries()) == [first, second]
    assert (first.sequence, first.unix, second.previous) == (1, 12, first.digest)
    assert log.head() == AuditHead(2, bytes.fromhex(second.digest)) == log.verify().head
    assert log.path.stat().st_mode & 0o007 == 0


TEXT = st.text(max_size=1000)
DETAILS = st.dictionaries(
    st.text(min_size=1, max_size=70).filter(lambda n: n not in ("self", "actor", "action", "subject")),
    st.one_of(TEXT, st.integers(), st.floats(), st.booleans()),
    max_size=16,
)


@settings(max_examples=60, deadline=None)
@given(said=st.lists(st.tuples(TEXT, TEXT, DETAILS), min_size=1, max_size=4))
def test_whatever_is_told_is_read_back(
    said: list[tuple[str, str, dict[str, str | int | float]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = AuditLog(tmp_path_factory.mktemp("audit") / "audit.jsonl", durable=False)
    made = [log.record(actor, ACTION, subject, **details) for actor, subject, details in said]
    assert list(log.entries()) == made
    assert log.head().sequence == len(said)


def test_no_entry_is_longer_than_a_line_may_be(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    long = "\U0001f3e5" * 1_000_000  # twelve bytes of JSON each
    details = {f"{i}{long}": long for i in range(16)}
    entry = log.record(long, ACTION, long + "\ud800", **details)
    assert len(entry.to_line()) <= MAXIMUM_LINE
    assert "more)" in entry.actor
    assert log.head().sequence == log.verify().head.sequence == 1
    with pytest.raises(ValueError, match="16 details"):
        log.record("a", ACTION, "b", **{f"d{i}": i for i in range(17)})


WRITER = """
import sys
from pathlib import Path
from fedloop_core.audit import AuditAction, AuditLog
log = AuditLog(Path(sys.argv[1]), durable=False)
input()
for number in range(int(sys.argv[3])):
    log.record(sys.argv[2], AuditAction.RUN_STARTED, "x" * (number * 37 % 190), number=number)
"""


def test_several_processes_append_at_once(tmp_path: Path) -> None:
    path, names, count = tmp_path / "audit.jsonl", ("a", "b", "c"), 150
    opened = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name, str(count)], stdin=subprocess.PIPE)
        for name in names
    ]
    try:
        for process in opened:
            process.communicate(b"\n", timeout=120)
        assert [process.returncode for process in opened] == [0] * len(opened)
    finally:
        for process in opened:
            process.kill()
            process.wait()
    entries = list(AuditLog(path).entries())
    assert len(entries) == count * len(names)
    for name in names:
        assert [entry.details["number"] for entry in entries if entry.actor == name] == list(range(count))


@settings(max_examples=15, deadline=None)
@given(turns=st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_any_order_of_appends_by_several_writers_verifies(
    turns: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    logs = [AuditLog(path, durable=False) for _ in range(4)]
    heads = []
    for turn in turns:
        logs[turn].record(str(turn), ACTION, "x")
        heads.append(logs[(turn + 1) % 4].head())
    assert [head.sequence for head in heads] == list(range(1, len(turns) + 1))
    assert logs[0].verify().head == heads[-1]
    assert [entry.actor for entry in logs[0].entries()] == list(map(str, turns))


def test_threads_with_one_log_append_at_once(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", durable=False)
    threads = [threading.Thread(target=lambda: [log.record("t", ACTION, "x") for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.verify().head.sequence == 200


@pytest.mark.parametrize("whole", [0, 1, 3])
@pytest.mark.parametrize("torn", [b"{", b'{"action":"site-added"', b"x" * 200_000])
def test_a_line_that_a_crash_left_is_taken_back_and_noted(whole: int, torn: bytes, tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    for _ in range(whole):
        log.record("a", ACTION, "x")
    head = log.head()
    with log.path.open("ab") as file:
        file.write(torn)
    assert log.head() == head
    assert (log.verify().head, log.verify().unfinished) == (head, len(torn))
    log.record("a", ACTION, "y")
    *_, noted, last = log.entries()
    assert (noted.action, noted.details, noted.sequence) == (AuditAction.LINE_CUT, {"bytes": len(torn)}, whole + 1)
    assert (last.subject, log.verify().unfinished) == ("y", 0)


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_is_a_sentence_and_leaves_the_log_whole(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    log.record("a", ACTION, "x")
    real = os.write

    def full(descriptor: int, content: bytes = b"") -> int:
        if call == "write":
            real(descriptor, content[:20])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(StorageError, match="No space left"):
            log.record("a", ACTION, "y")
    assert log.verify().head.sequence == 1
    log.record("a", ACTION, "z")
    assert [entry.subject for entry in log.entries()] == ["x", "z"]


def test_nothing_is_appended_after_a_line_that_is_not_the_logs(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    log.record("a", ACTION, "x")
    with log.path.open("ab") as file:
        file.write(b"by hand\n")
    for use in (log.head, lambda: log.record("a", ACTION, "y")):
        with pytest.raises(AuditBroken, match=r"last line of .* is not an audit entry"):
            use()


def test_a_log_that_cannot_be_opened_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    log = AuditLog(tmp_path / "audit.jsonl")
    for use in (log.head, log.verify, lambda: log.record("a", ACTION, "y")):
        with pytest.raises(StorageError, match=r"audit\.jsonl cannot be used"):
            use()


def test_the_head_of_a_long_log_is_found_without_reading_it(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", durable=False)
    entry = log.record("a", ACTION, "x")
    size = 1 << 33  # 8 GiB that are not there: the file has a hole
    with log.path.open("r+b") as file:
        file.truncate(size)
        file.seek(size)
        file.write(b"\n" + entry.to_line().encode() + b"\n")
    assert log.head() == AuditHead(1, bytes.fromhex(entry.digest))


def test_entries_are_frozen(tmp_path: Path) -> None:
    entry = AuditLog(tmp_path / "audit.jsonl").record("a", ACTION, "x")
    with pytest.raises(ValueError, match="frozen"):
        entry.actor = "b"  # type: ignore[misc]
    assert AuditEntry.model_validate_json(entry.to_line()) == entry
