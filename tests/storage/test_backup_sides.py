"""What a backup owes to both sides: it is the home again, whole or not at all, and nothing is written over."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from tests.storage.backup_sides import SIDES, Side

from fedloop_core.audit import AuditAction, AuditLog
from fedloop_core.backup.owners import acting_as_owner
from fedloop_core.backup.sqlite_copy import held_still
from fedloop_core.errors import BackupRefused, NotSetUp, StorageError

ACTOR = "operator:test"


@pytest.fixture(params=SIDES, ids=[side.noun for side in SIDES])
def side(request: pytest.FixtureRequest) -> Side:
    made: Side = request.param
    return made


@pytest.fixture
def home(side: Side, tmp_path: Path) -> Path:
    return side.make(tmp_path / "home")


def test_a_restored_home_is_what_was_there(side: Side, home: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    made = side.back_up(home, tmp_path / "a.tar", unix=5, progress=lambda done, total: told.append((done, total)))
    assert stat.S_IMODE(made.file.stat().st_mode) == 0o600
    assert told[-1][0] == told[-1][1] > 0
    digest = made.manifest.digest
    assert side.check_restore(made.file, tmp_path / "new", digest=digest) == made.manifest
    assert not (tmp_path / "new").exists()
    side.restore(made.file, tmp_path / "new", actor=ACTOR, digest=digest)
    for name in side.same:
        assert (tmp_path / "new" / name).read_bytes() == (home / name).read_bytes()
        assert stat.S_IMODE((tmp_path / "new" / name).stat().st_mode) == stat.S_IMODE((home / name).stat().st_mode)
    log = AuditLog(tmp_path / "new" / "audit.jsonl")
    assert log.verify().head.sequence == 2
    assert [entry.action for entry in log.entries()][-1] is AuditAction.RESTORE
    assert list(tmp_path.glob(".*")) == []


def test_without_keys_no_secret_is_in_it(side: Side, home: Path, tmp_path: Path) -> None:
    made = side.back_up(home, tmp_path / "a.tar", unix=5, keys=False)
    assert not any(entry.path.startswith("keys/") for entry in made.manifest.files)
    assert b"PRIVATE KEY" not in made.file.read_bytes()
    assert b"PRIVATE KEY" in side.back_up(home, tmp_path / "b.tar", unix=5).file.read_bytes()


def test_a_full_disk_leaves_nothing_behind(
    side: Side, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side.back_up(home, tmp_path / "good.tar", unix=5)
    before = sorted(tmp_path.rglob("*"))
    left, real = 0, os.fsync

    def full(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    for allowed in range(3):
        left = allowed
        with pytest.raises(StorageError, match="No space left"):
            side.back_up(home, tmp_path / "a.tar", unix=5)
        left = allowed
        with pytest.raises(StorageError, match="No space left"):
            side.restore(tmp_path / "good.tar", tmp_path / "new", actor=ACTOR)
        assert sorted(tmp_path.rglob("*")) == before


def test_what_must_not_be_written_over_is_refused(side: Side, home: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.tar"
    side.back_up(home, target, unix=5)
    for where, error, sentence in [
        (target, BackupRefused, "is there already"),
        (home / "backups.tar", BackupRefused, f"lies in the {side.noun}'s own folder"),
        (tmp_path / "no" / "such" / "a.tar", StorageError, "No such file"),
    ]:
        with pytest.raises(error, match=sentence):
            side.back_up(home, where, unix=5)
    with pytest.raises(NotSetUp, match=f"no {side.noun}"):
        side.back_up(tmp_path / "nowhere", tmp_path / "b.tar", unix=5)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("x", encoding="utf-8")
    before = sorted(home.rglob("*"))
    for where, sentence in [
        (tmp_path / "used", "is not empty"),
        (target, "is not empty"),
        (home, "not empty|a ledger"),
    ]:
        with pytest.raises(BackupRefused, match=sentence):
            side.restore(target, where, actor=ACTOR)
        with pytest.raises(BackupRefused, match=sentence):
            side.check_restore(target, where)
    assert sorted(home.rglob("*")) == before
    with pytest.raises(BackupRefused, match="has the digest"):
        side.restore(target, tmp_path / "new", actor=ACTOR, digest="ab" * 32)
    with pytest.raises(StorageError, match="cannot read"):
        side.restore(tmp_path / "none.tar", tmp_path / "new", actor=ACTOR)


def test_what_the_other_side_wrote_is_refused(side: Side, home: Path, tmp_path: Path) -> None:
    (other,) = (one for one in SIDES if one is not side)
    side.back_up(home, tmp_path / "a.tar", unix=5)
    with pytest.raises(BackupRefused, match=f"a.tar is a backup of a {side.noun}, and this makes a {other.noun}"):
        other.restore(tmp_path / "a.tar", tmp_path / "new", actor=ACTOR)
    assert not (tmp_path / "new").exists()


def test_a_database_that_is_held_still_takes_no_writer(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (x)")
        with held_still(file), pytest.raises(sqlite3.OperationalError, match="locked"):
            connection.execute("INSERT INTO t VALUES (1)")
        connection.execute("INSERT INTO t VALUES (1)")
    with held_still(tmp_path / "none.db"):
        pass
    assert not (tmp_path / "none.db").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as others")
def test_root_acts_as_the_owner_in_a_sticky_folder_alone(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    file.touch()
    os.chown(file, 54321, 54321)
    for mode, user in ((0o755, 0), (0o1771, 54321)):
        tmp_path.chmod(mode)
        with acting_as_owner(file):
            assert os.geteuid() == user
        assert (os.geteuid(), os.getegid()) == (0, 0)
