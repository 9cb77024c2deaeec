"""Backups written while a coordinator works, and homes made of them."""

from __future__ import annotations

import json
import os
import pwd
import sqlite3
import subprocess
import sys
import tarfile
import threading
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from fedloop_core.audit import AuditAction, AuditHead
from fedloop_core.backup.sqlite_copy import SqliteSnapshot
from fedloop_core.durable import write_bytes, write_secret
from fedloop_core.errors import BackupRefused, StorageError
from fedloop_server.backup import back_up, check_archive, next_steps, restore
from fedloop_server.home import CoordinatorHome

ACTOR = "operator:test"


@pytest.fixture
def home(tmp_path: Path) -> CoordinatorHome:
    """A coordinator with something of everything."""
    made = CoordinatorHome(tmp_path / "home")
    made.database().close()
    assert made.envelope_key.pem()
    (made.folder / "keys").chmod(0o700)
    made.blobs().put(b"model")
    for name in ("server.log", "supervisor.json"):
        write_bytes(made.folder / ("logs" if name.endswith("log") else ".") / name, b"{}")
    write_bytes(made.folder / "flower" / "superlink" / "state.db", b"")
    write_bytes(made.folder / "releases" / "metadata" / "timestamp.json", b"{}")
    write_bytes(made.folder / "runs" / "run-1" / "journal.jsonl", b'{"a":1}\n{"torn')
    write_bytes(made.folder / "runs" / "run-1" / "round-1.safetensors", os.urandom(3_000_000))
    write_bytes(made.folder / "runs" / "run-1" / "driver.lock", b"1")
    made.audit().record("operator:ann", AuditAction.INITIALISE, "coordinator")
    return made


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_restored_home_is_what_was_there(home: CoordinatorHome, tmp_path: Path) -> None:
    target, new = tmp_path / "a.tar", tmp_path / "new"
    told: list[tuple[int, int]] = []
    made = back_up(home.folder, target, unix=5, progress=lambda done, total: told.append((done, total)))
    assert target.stat().st_mode & 0o777 == 0o600
    assert made.length == target.stat().st_size
    assert told[-1][0] == told[-1][1] > 3_000_000
    assert check_archive(target, digest=made.manifest.digest) == made.manifest
    new.mkdir()  # an empty folder is as good as none
    restored = restore(target, new, actor=ACTOR)
    assert restored.manifest.created_unix == 5
    before, after = tree(home.folder), tree(new)
    gone = {"logs/server.log", "supervisor.json", "flower/superlink/state.db", "runs/run-1/driver.lock"}
    gone |= {"coordinator.db-wal", "coordinator.db-shm"}
    assert set(after) == set(before) - gone
    same = set(after) - {"coordinator.db", "audit.jsonl", "runs/run-1/journal.jsonl"}
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert after["runs/run-1/journal.jsonl"] == b'{"a":1}\n'
    assert (new / "keys").stat().st_mode & 0o777 == 0o700
    assert (new / "keys" / "envelope.pem").stat().st_mode & 0o777 == 0o600
    assert [e.action for e in CoordinatorHome(new).audit().entries()] == [AuditAction.INITIALISE, AuditAction.RESTORE]
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_files_belong_to_those_whose_they_were(home: CoordinatorHome, tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    for path in ("keys", "keys/envelope.pem", "coordinator.db"):
        os.chown(home.folder / path, nobody.pw_uid, nobody.pw_gid)
    os.chown(home.folder / "audit.jsonl", 54321, 54321)  # somebody without a name
    made = back_up(home.folder, tmp_path / "a.tar", unix=5)
    restored = restore(tmp_path / "a.tar", tmp_path / "new", actor=ACTOR)
    for path in ("keys", "keys/envelope.pem", "coordinator.db"):
        assert (tmp_path / "new" / path).stat().st_uid == nobody.pw_uid
    assert (tmp_path / "new" / "audit.jsonl").stat().st_uid == 0
    assert restored.unknown_owners == ()
    assert "surgeon:surgeons" in " ".join(next_steps(made.manifest, tmp_path, ("surgeon:surgeons",)))


def test_any_tar_lists_a_backup(home: CoordinatorHome, tmp_path: Path) -> None:
    back_up(home.folder, tmp_path / "a.tar", unix=5)
    with tarfile.open(tmp_path / "a.tar") as archive:
        names = archive.getnames()
    assert names[0] == "coordinator.db"
    assert names[-1] == "manifest.json"


def test_keys_stay_out_when_they_shall(home: CoordinatorHome, tmp_path: Path) -> None:
    write_secret(home.folder / "front" / "tls.key", b"secret")
    made = back_up(home.folder, tmp_path / "a.tar", unix=5, keys=False)
    assert not any(entry.path.startswith(("keys/", "front/")) for entry in made.manifest.files)
    assert not made.manifest.keys
    assert "Put the keys back" in " ".join(next_steps(made.manifest, tmp_path))


def test_links_and_pipes_are_left_out_and_told(home: CoordinatorHome, tmp_path: Path) -> None:
    (home.folder / "runs" / "run-1" / "passwd").symlink_to("/etc/passwd")
    os.mkfifo(home.folder / "pipe")
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "x").write_bytes(b"x")
    (home.folder / "elsewhere").symlink_to(tmp_path / "disk")  # a folder on another disk
    made = back_up(home.folder, tmp_path / "a.tar", unix=5)
    assert {note.split(" ")[0] for note in made.manifest.notes} == {"runs/run-1/passwd", "pipe"}
    assert "elsewhere/x" in {entry.path for entry in made.manifest.files}


def test_a_backup_is_one_moment_of_a_coordinator_at_work(home: CoordinatorHome, tmp_path: Path) -> None:
    """A writer that writes journal and database in turns is never more than one step apart in any backup."""
    database, stop = home.database(), threading.Event()
    journal = home.folder / "runs" / "run-2" / "journal.jsonl"
    journal.parent.mkdir()
    journal.touch()
    with database.writing() as session:
        session.execute(text("CREATE TABLE steps (number INTEGER)"))
    step = 0

    def work() -> None:
        nonlocal step
        while not stop.is_set():
            step += 1
            with journal.open("ab") as file:
                file.write(b"%d\n" % step)
            home.audit().record("run", AuditAction.RUN_STARTED, str(step))
            with database.writing() as session:
                session.execute(text("INSERT INTO steps VALUES (:step)"), {"step": step})

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for number in range(5):
            seen = step
            back_up(home.folder, tmp_path / f"{number}.tar", unix=5)
            restore(tmp_path / f"{number}.tar", tmp_path / f"{number}", actor=ACTOR)
            lines = (tmp_path / f"{number}" / "runs/run-2/journal.jsonl").read_bytes().splitlines()
            with closing(sqlite3.connect(tmp_path / f"{number}" / "coordinator.db")) as connection:
                (rows,) = connection.execute("SELECT count(*) FROM steps").fetchone()
            assert rows <= len(lines) <= rows + 1
            assert len(lines) >= seen - 1
            assert CoordinatorHome(tmp_path / f"{number}").audit().verify().head.sequence - 2 in (rows, rows + 1)
    finally:
        stop.set()
        worker.join()
        database.close()


def test_what_came_after_the_moment_stays_out(
    home: CoordinatorHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs, pointers and databases that are newer than the moment would name what is not in it."""
    late = (
        "runs/run-9/journal.jsonl",
        "audit.countersigned/va.json",
        "keys/new.key",
        "late.db",
        "releases/x/timestamp.json",
    )
    real = SqliteSnapshot.copy_to

    def copy_to(self: SqliteSnapshot, target: Path) -> None:
        for path in (*late, "runs/run-9/plan.json"):
            write_bytes(home.folder / path, b"")
        home.audit().record("a", AuditAction.RUN_STARTED, "run-9")
        (home.folder / "runs" / "run-1" / "journal.jsonl").write_bytes(b'{"a":1}\n{"torn":2}\n')
        real(self, target)

    monkeypatch.setattr(SqliteSnapshot, "copy_to", copy_to)
    made = back_up(home.folder, tmp_path / "a.tar", unix=5)
    assert not {entry.path for entry in made.manifest.files} & set(late)
    restore(tmp_path / "a.tar", tmp_path / "new", actor=ACTOR)
    assert (tmp_path / "new" / "runs" / "run-1" / "journal.jsonl").read_bytes() == b'{"a":1}\n'
    assert [entry.action for entry in CoordinatorHome(tmp_path / "new").audit().entries()][1:] == [AuditAction.RESTORE]


def test_the_memory_of_a_backup_does_not_grow_with_its_files(home: CoordinatorHome, tmp_path: Path) -> None:
    with (home.folder / "runs" / "run-1" / "large.safetensors").open("wb") as file:
        file.truncate(200_000_000)
    tracemalloc.start()
    try:
        back_up(home.folder, tmp_path / "a.tar", unix=5)
        restore(tmp_path / "a.tar", tmp_path / "new", actor=ACTOR)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_an_older_database_is_upgraded_and_a_newer_one_refused(home: CoordinatorHome, tmp_path: Path) -> None:
    old = (Path(__file__).parent / "registry_format_1.sql").read_text(encoding="utf-8")
    (home.folder / "coordinator.db").unlink()
    with closing(sqlite3.connect(home.folder / "coordinator.db")) as connection:
        connection.executescript(old)
    back_up(home.folder, tmp_path / "a.tar", unix=5)
    restore(tmp_path / "a.tar", tmp_path / "new", actor=ACTOR)
    registry = CoordinatorHome(tmp_path / "new").registry()
    assert [version.number for version in registry.versions("heart")] == [1]
    registry.close()
    home.database().close()
    with closing(sqlite3.connect(home.folder / "coordinator.db")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    back_up(home.folder, tmp_path / "b.tar", unix=5)
    with pytest.raises(StorageError, match="9999"):
        restore(tmp_path / "b.tar", tmp_path / "newer", actor=ACTOR)
    assert not (tmp_path / "newer").exists()


def test_a_name_that_no_backup_can_hold_is_told(home: CoordinatorHome, tmp_path: Path) -> None:
    (home.folder / "runs" / ("x" * 200)).write_bytes(b"")
    with pytest.raises(BackupRefused, match="too long for a backup"):
        back_up(home.folder, tmp_path / "a.tar", unix=5)
    assert not (tmp_path / "a.tar").exists()
    (home.folder / "runs" / ("x" * 200)).unlink()
    (home.folder / "runs" / "a\nb").write_bytes(b"")
    with pytest.raises(BackupRefused, match="is no path"):
        back_up(home.folder, tmp_path / "a.tar", unix=5)


SETTINGS = """
format = 1
name = "test"
public_names = ["localhost"]
front = {address = "127.0.0.1:8443", public = "localhost:8443"}
hub = {address = "127.0.0.1:8444", public = "localhost:8444"}
"""


@pytest.mark.slow
def test_the_commands(home: CoordinatorHome, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "fedloop_core", "server", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    (home.folder / "server.toml").write_text(SETTINGS, encoding="utf-8")
    target, new = tmp_path / "a.tar", tmp_path / "new"
    told = json.loads(run("backup", str(target), "--home", str(home.folder), "--json"))
    assert told["files"] == len(check_archive(target).files)
    assert told["audit_sequence"] == 1
    assert [entry.action for entry in home.audit().entries()][-1] is AuditAction.BACKUP
    out = run("restore", str(target), "--home", str(new), "--digest", told["digest"])
    assert "high-water marks" in out
    assert f"fedloop server up --home {new}" in out
    told = json.loads(run("restore", str(target), "--home", str(tmp_path / "third"), "--json"))
    assert len(told["next"]) == 7
    out = run("restore", str(target), "--home", str(tmp_path / "fourth"), "--dry-run")
    assert "coordinator.db: " in out
    assert "Nothing was written." in out
    assert not (tmp_path / "fourth").exists()
    out = run("backup", str(tmp_path / "b.tar"), "--home", str(home.folder), "--without-keys")
    assert "can be this coordinator" not in out


def test_a_database_elsewhere_is_named(home: CoordinatorHome, tmp_path: Path) -> None:
    (home.folder / "coordinator.db").unlink()
    made = back_up(home.folder, tmp_path / "a.tar", unix=5, notes=("the database: pg_dump is the tool.",))
    restored = restore(tmp_path / "a.tar", tmp_path / "new", actor=ACTOR)
    assert not (tmp_path / "new" / "coordinator.db").exists()
    assert "pg_dump is the tool" in " ".join(next_steps(restored.manifest, tmp_path))
    assert made.manifest.audit_digest == home.audit().head().digest.hex()
    assert home.audit().head() != AuditHead()
