"""A site's backup: one moment of ledger and outbox while the daemon answers, and what people are told of a ledger put back."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.site_service.conftest import Coordinator, Hub, make_task, until
from tests.storage.backup_sides import make_site

from fedloop_clients.backup import SITE, SiteRestored, back_up, check_restore, next_steps, restore
from fedloop_clients.backup.site import DATABASES, is_left_out
from fedloop_clients.doctor import Level, Scene
from fedloop_clients.doctor.data import LedgerCheck
from fedloop_clients.doctor.folder import FilesCheck, MembershipCheck, SettingsCheck
from fedloop_clients.endpoint import Question
from fedloop_clients.heads import FILE_NAME as GUARD
from fedloop_clients.heads import accept_restored
from fedloop_clients.home import SiteHome
from fedloop_clients.outbox import KeptResult
from fedloop_clients.privacy.entries import ReserveEntry, parse_entry
from fedloop_clients.socket_endpoint import SocketEndpoint
from fedloop_core.audit import AuditAction
from fedloop_core.cli import main
from fedloop_core.errors import AlreadyRunning, BackupRefused, StorageError
from fedloop_core.privacy.charges import PureCharge
from fedloop_core.processes.lock import folder_lock
from fedloop_core.task.document import Privacy, Rounds, Task
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, LogHead

ACTOR = "operator:test"
CHARGE = PureCharge(epsilon=0.01)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_site(tmp_path / "north")


def charge(home: Path, times: int = 1) -> int:
    """More charges; the number of the newest entry."""
    ledger = SiteHome(home).ledger()
    for _ in range(times):
        ledger.settle(ledger.reserve(CHARGE, ("original",), "run-1", "round 1"), CHARGE)
    number = ledger.head().sequence
    ledger.close()
    return number


def paid(home: Path) -> list[ReserveEntry]:
    with closing(sqlite3.connect(home / "ledger.db")) as connection:
        entries = [parse_entry(body) for (body,) in connection.execute("SELECT body FROM entry ORDER BY sequence")]
    return [entry for entry in entries if isinstance(entry, ReserveEntry)]


def answered(home: Path) -> list[bytes]:
    with closing(sqlite3.connect(home / "outbox.db")) as connection:
        return [body for (body,) in connection.execute("SELECT body FROM answer ORDER BY sequence")]


def test_nothing_changes_while_the_moment_is_taken(home: Path) -> None:
    """Neither ledger nor outbox nor a state file: an answer without its charge can be in no backup."""
    folder = os.open(home, os.O_RDONLY)
    with SITE.writers_wait(home):
        for name in ("ledger.db", "outbox.db"):
            with (
                closing(sqlite3.connect(home / name, timeout=0, isolation_level=None)) as connection,
                pytest.raises(sqlite3.OperationalError, match="locked"),
            ):
                connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(folder)


def test_ledger_and_outbox_are_never_more_than_one_step_apart(home: Path, tmp_path: Path) -> None:
    stop = threading.Event()

    def work() -> None:
        site = SiteHome(home)
        ledger, outbox = site.ledger(), site.outbox()
        step = 0
        while not stop.is_set():
            step += 1
            reservation = ledger.reserve(CHARGE, ("original",), "run-1", f"round {step}")
            outbox.store(b"%d" % step, KeptResult(b"%d" % step, {}))
            ledger.settle(reservation, CHARGE)
        ledger.close()
        outbox.close()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for number in range(5):
            back_up(home, tmp_path / f"{number}.tar", unix=5)
            restore(tmp_path / f"{number}.tar", tmp_path / f"new-{number}", actor=ACTOR)
            charges, answers = len(paid(tmp_path / f"new-{number}")) - 1, len(answered(tmp_path / f"new-{number}")) - 1
            assert answers <= charges <= answers + 1
    finally:
        stop.set()
        worker.join()


def test_a_charge_that_was_open_carries_nothing_after_a_restore(home: Path, tmp_path: Path) -> None:
    """Its answer may have left the site after the backup: were it resumed, two releases would be paid once."""
    what = (PureCharge(epsilon=1.0), ("original",), "run-1", "number of rows")
    back_up(home, tmp_path / "a.tar", unix=5)
    restored = restore(tmp_path / "a.tar", tmp_path / "new", actor=ACTOR)
    assert restored.ledger == 3
    old, new = SiteHome(home).ledger(), SiteHome(tmp_path / "new").ledger()
    assert old.resume(*what) is not None
    assert new.resume(*what) is None
    assert new.verify().sequence == 4
    assert new.spend("original") == old.spend("original")
    old.close()
    new.close()


def test_only_what_is_the_sites_own_is_in_it_and_the_rest_is_told(home: Path, tmp_path: Path) -> None:
    site = SiteHome(home)
    (home / "rows.csv").write_text("name,ill\nann,yes\n", encoding="utf-8")
    site.settings_file.write_text(
        site.settings_file.read_text(encoding="utf-8").replace('file = "data.csv"', 'file = "rows.csv"'),
        encoding="utf-8",
    )
    (home / "export.xlsx").write_bytes(b"ann")
    (home / "shared").symlink_to(tmp_path)
    for left_out in ("logs/daemon.log", "flower/superexec/x", "keys.1700000000/site.key", "status.json", "daemon.lock"):
        (home / left_out).parent.mkdir(parents=True, exist_ok=True)
        (home / left_out).write_bytes(b"ann")
    made = back_up(home, tmp_path / "a.tar", unix=5)
    assert {entry.path for entry in made.manifest.files if not entry.path.startswith("keys/")} == {
        "ledger.db",
        "outbox.db",
        "audit.jsonl",
        "site.toml",
        "membership.json",
        "standing.json",
    }
    assert [note.split(",")[0].split(":")[0] for note in made.manifest.notes] == [
        f"the rows in {home}/rows.csv",
        "export.xlsx",
        "shared",
    ]
    assert b"ann,yes" not in made.file.read_bytes()
    (home / "ledger.db").rename(tmp_path / "elsewhere.db")
    (home / "ledger.db").symlink_to(tmp_path / "elsewhere.db")
    with pytest.raises(BackupRefused, match=r"ledger\.db is a link"):
        back_up(home, tmp_path / "b.tar", unix=5)


def test_a_ledger_is_moved_aside_only_when_that_is_asked_for(home: Path, tmp_path: Path) -> None:
    back_up(home, tmp_path / "a.tar", unix=5)
    newest = charge(home, 3)
    aside = tmp_path / "north.aside"
    with pytest.raises(BackupRefused, match=f"a ledger of {newest} entries: nothing is written over it"):
        restore(tmp_path / "a.tar", home, actor=ACTOR)
    check_restore(tmp_path / "a.tar", home, aside=aside)
    with folder_lock(home, "daemon.lock"), pytest.raises(AlreadyRunning):
        restore(tmp_path / "a.tar", home, actor=ACTOR, aside=aside)
    assert not aside.exists()
    restored = restore(tmp_path / "a.tar", home, actor=ACTOR, aside=aside)
    assert (restored.ledger, restored.ledger_aside) == (3, newest)
    told = next(step for step in next_steps(restored, home) if "newer one back" in step)
    assert f"ends at entry {newest}, this one at entry 3" in told
    subprocess.run(["sh", "-c", told[told.index("cp -p") :]], check=True)
    assert charge(home) == newest + 2
    (home / "ledger.db").write_bytes(b"no database")
    with pytest.raises(BackupRefused, match="a ledger that cannot be read"):
        restore(tmp_path / "a.tar", home, actor=ACTOR)
    with pytest.raises(BackupRefused, match="is there already"):
        restore(tmp_path / "a.tar", home, actor=ACTOR, aside=aside)


def test_what_comes_between_leaves_the_old_home_where_it_was(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(home, tmp_path / "a.tar", unix=5)
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    real = Path.rename

    def fails(self: Path, target: Path) -> Path:
        if self.name.endswith(".part") and target == home:
            raise OSError(5, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(StorageError, match="Input/output error"):
        restore(tmp_path / "a.tar", home, actor=ACTOR, aside=tmp_path / "aside")
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "north"]


def test_a_ledger_that_was_altered_is_not_put_back(home: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(home / "ledger.db")) as connection:
        connection.executescript(
            "DROP TRIGGER entry_is_never_changed; UPDATE entry SET digest = x'00' WHERE sequence = 2;"
        )
    back_up(home, tmp_path / "a.tar", unix=5)
    with pytest.raises(BackupRefused, match="entry 2 does not follow"):
        restore(tmp_path / "a.tar", tmp_path / "new", actor=ACTOR)
    assert not (tmp_path / "new").exists()


def run(*words: str, expect: int = 0) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), pytest.raises(SystemExit) as ended:
        main(["site", *words])
    assert ended.value.code == expect, said.getvalue()
    return said.getvalue()


def test_rows_that_were_moved_aside_are_brought_back_as_it_says(home: Path, tmp_path: Path) -> None:
    settings = home / "site.toml"
    settings.write_text(settings.read_text().replace('file = "data.csv"', 'file = "rows/of ours.csv"'))
    rows = SiteHome(home).data_file
    rows.parent.mkdir(exist_ok=True)
    rows.write_text("a,b\n")
    back_up(home, tmp_path / "a.tar", unix=5)
    restored = restore(tmp_path / "a.tar", home, actor=ACTOR, aside=tmp_path / "north.aside")
    assert not rows.exists()
    told = next(step for step in next_steps(restored, home) if "file with the site's rows" in step)
    subprocess.run(["sh", "-c", told[told.index("mkdir -p") :]], check=True)
    assert rows.read_text() == "a,b\n"


def test_the_commands(home: Path, tmp_path: Path) -> None:
    archive, new = str(tmp_path / "a.backup"), tmp_path / "new"
    out = run("backup", archive, "--home", str(home))
    assert "Not in it: the rows in " in out
    assert "Whoever has this file can be this site" in out
    entry = list(SiteHome(home).audit().entries())[-1]
    assert (entry.action, entry.subject) == (AuditAction.BACKUP, archive)
    told = json.loads(run("backup", str(tmp_path / "b"), "--home", str(home), "--without-keys", "--json"))
    assert told["keys"] is False
    planned = run("restore", archive, "--home", str(new), "--dry-run")
    assert "  ledger.db: " in planned
    assert "Nothing was written." in planned
    planned_json = json.loads(run("restore", archive, "--home", str(new), "--dry-run", "--json"))
    assert {"path": "site.toml", "bytes": (home / "site.toml").stat().st_size} in planned_json["would_write"]
    assert not new.exists()
    out = run("restore", archive, "--home", str(new))
    assert "Charges since 20" in out
    assert "Look for the newer ledger.db first" in out
    assert f"fedloop site ledger accept-restored --home {new}" in out
    assert "fedloop server site accept-ledger north" in out
    assert [entry.action for entry in SiteHome(new).audit().entries()][-1] is AuditAction.RESTORE
    refused = run("restore", archive, "--home", str(new), expect=BackupRefused.exit_status)
    assert "has a ledger of 4 entries" in refused
    assert "--move-present-aside" in refused
    moved = json.loads(run("restore", archive, "--home", str(new), "--move-present-aside", "--json"))
    assert SiteHome(Path(moved["moved_to"])).ledger_file.exists()
    assert moved["ledger_sequence"] == 3
    for check in (FilesCheck(), SettingsCheck(), LedgerCheck(), MembershipCheck()):
        levels = [finding for finding in check.look(Scene(SiteHome(new))) if finding.level is Level.PROBLEM]
        assert [finding.sentence for finding in levels if "keys lacks" not in finding.sentence] == []
    assert "The ledger holds: 4 entries" in run("ledger", "verify", "--home", str(new))


class Daemon:
    """The site's daemon as a process of its own, and questions to it."""

    def __init__(self, home: SiteHome, coordinator: Coordinator, task: Task, log: Path) -> None:
        self.home, self.coordinator, self.task = home, coordinator, task
        command = [sys.executable, "-m", "fedloop_clients.service", "--home", str(home.folder)]
        with log.open("ab") as out:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            self.process = subprocess.Popen(command, stderr=out, stdout=out, env=environment)

    def ask(self, envelope: bytes, arrays: Any) -> Answer:
        reply = SocketEndpoint(self.home.daemon_socket, 60.0).answer(Question(envelope, arrays))
        return self.coordinator.open(self.home, reply.answer)

    def describe(self) -> Answer:
        return self.ask(self.coordinator.describe(self.task), {})

    def train(self, number: int, **parts: Any) -> Answer:
        return self.ask(*self.coordinator.train(self.task, number, **parts))

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(60)


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:  # a socket's path is short
        yield Path(folder)


@pytest.fixture
def coordinator(place: Path) -> Coordinator:
    return Coordinator(place)


@pytest.fixture
def hub(coordinator: Coordinator) -> Iterator[Hub]:
    made = Hub(coordinator)
    yield made
    made.stop()


@pytest.fixture
def daemons(coordinator: Coordinator) -> Iterator[list[Daemon]]:
    made: list[Daemon] = []
    yield made
    for one in made:
        one.end(signal.SIGKILL)


@pytest.mark.slow
def test_of_a_daemon_that_answers(place: Path, coordinator: Coordinator, hub: Hub, daemons: list[Daemon]) -> None:
    """Every answer in every backup is paid in it; a site made of the first one answers again for nothing, and is noticed."""
    private = {"privacy": Privacy(epsilon=8.0, delta=1e-4), "rounds": Rounds(count=60)}
    task = make_task(steps=2).model_copy(update=private)
    home = coordinator.home(hub.address, "s")
    daemons.append(Daemon(home, coordinator, task, place / "log"))
    assert daemons[0].describe().data_description.admitted
    first = daemons[0].train(1)
    answers, failed, stop = [first], list[BaseException](), threading.Event()

    def work() -> None:
        try:
            while not stop.is_set() and len(answers) < 59:
                answers.append(daemons[0].train(len(answers) + 1))
        except BaseException as error:  # noqa: BLE001  told below
            failed.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for number in range(4):
            said = len(answers)
            until(lambda: bool(failed) or len(answers) > said, "it answers")  # noqa: B023
            back_up(home.folder, place / f"{number}.tar", unix=int(time.time()))
    finally:
        stop.set()
        worker.join()
    assert not failed
    last = answers[-1].ledger
    strange = {p.name for p in home.folder.iterdir() if not SITE.kept(p.name) and not is_left_out(p.name)}
    assert strange == {
        "data.csv",
        "data.csv.fedloop-ledger.json",
    }  # a new file of the site's is in the backup, or is left out on purpose
    daemons[0].end()
    restored = [restore(place / f"{at}.tar", place / f"r{at}", actor=ACTOR) for at in range(4)]
    for at in range(4):
        check_paid(place / f"r{at}", restored[at])
    assert restored[0].ledger < last.sequence

    (place / "r0" / "data.csv").write_bytes((home.folder / "data.csv").read_bytes())
    daemons.append(Daemon(SiteHome(place / "r0"), coordinator, task, place / "log"))
    head = SiteHome(place / "r0").ledger()
    again = daemons[1].train(1, attempt=2)
    assert again.local_update == first.local_update
    assert again.ledger.sequence == head.head().sequence  # nothing was charged
    head.close()
    seen = LogHead(sequence=last.sequence, digest=last.digest)
    refused = daemons[1].train(60, attempt=2, ledger_seen=seen)
    assert refused.refusal.code == "FL-PRIV-003"
    finding = next(iter(LedgerCheck().look(Scene(SiteHome(place / "r0")))))
    assert finding.level is Level.PROBLEM
    accept_restored(place / "r0" / GUARD, by="ada", now_unix=int(time.time()))
    assert daemons[1].train(60, attempt=2, ledger_seen=seen).WhichOneof("result") == "local_update"


def check_paid(home: Path, restored: SiteRestored) -> None:
    """The ledger holds, and has a charge for each round that the outbox has an answer of."""
    ledger = SiteHome(home).ledger()
    assert ledger.verify().sequence >= restored.ledger > 0
    ledger.close()
    told = [Answer.FromString(body) for body in answered(home) if body]
    rounds = {answer.round for answer in told if answer.WhichOneof("result") == "local_update"}
    purposes = {entry.purpose for entry in paid(home)}
    assert {f"round {number}" for number in rounds} <= purposes
    assert max(rounds) >= len(purposes) - 2  # the number of rows, and a round that is being trained
    assert not any((home / f"{name}-wal").exists() for name in DATABASES)
