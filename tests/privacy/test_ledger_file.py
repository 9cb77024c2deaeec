"""The ledger's file: what survives a kill, what tampering looks like, who has signed, and files of an earlier format."""

from __future__ import annotations

import json
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedloop_clients.privacy.chain import EMPTY, Head, digest_after, sign_digest
from fedloop_clients.privacy.entries import Grounds, OpenEntry, ReserveEntry, SettleEntry, WriterEntry, parse_entry
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core.errors import StorageError
from fedloop_core.keys import SigningKey
from fedloop_core.privacy.charges import Charge, PureCharge, SampledGaussianCharge

RUN = SampledGaussianCharge(noise_multiplier=1.1, sampling_rate=0.01, steps=1000)
STEP = SampledGaussianCharge(noise_multiplier=1.1, sampling_rate=0.01, steps=10)
BUDGET = (8.0, 1e-5)
KEY = SigningKey.generate()
GROUNDS = Grounds(task="aa", unit="patient", rows="bb", model="cc")


def steps(count: int) -> SampledGaussianCharge:
    return RUN.model_copy(update={"steps": count})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "site" / "ledger.sqlite"


def reopen(path: Path, key: SigningKey | None = None) -> Ledger:
    return Ledger(path, lambda: 0, site="north", key=key)


def test_a_restart_forgets_nothing(path: Path) -> None:
    first = reopen(path)
    first.open_block("b", *BUDGET)
    first.settle(first.reserve(RUN, ("b",), "run", "training"), steps(300))
    first.reserve(RUN, ("b",), "run", "training")
    second = reopen(path)
    assert (second.head(), second.spend("b"), second.charges("b")) == (
        first.head(),
        first.spend("b"),
        first.charges("b"),
    )


def test_only_the_owner_can_read_it(path: Path) -> None:
    reopen(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# --- a real process, killed ----------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from fedloop_core.privacy.charges import SampledGaussianCharge
from fedloop_clients.privacy.ledger import Ledger
def die_at(point):
    if sys.argv[2] == point:
        os.kill(os.getpid(), signal.SIGKILL)
ledger = Ledger(sys.argv[1], lambda: 0, site="north")
charge = SampledGaussianCharge(noise_multiplier=1.1, sampling_rate=0.01, steps=1000)
die_at("before it reserves")
reservation = ledger.reserve(charge, ("b",), "run", "training")
die_at("after it reserved")
Path(sys.argv[1]).with_name("answer").write_text("released")
die_at("after it released")
ledger.settle(reservation, charge.model_copy(update={"steps": 400}))
die_at("after it settled")
"""
STANDS: dict[str, tuple[tuple[Charge, ...], float]] = {  # charges, and runs that they cost
    "before it reserves": ((), 0.0),
    "after it reserved": ((RUN,), 1.0),
    "after it released": ((RUN,), 1.0),
    "after it settled": ((steps(400),), 0.4),
}


@pytest.mark.parametrize(("point", "charges", "cost"), [(point, *stands) for point, stands in STANDS.items()])
def test_a_process_that_is_killed_refunds_nothing(
    path: Path, point: str, charges: tuple[Charge, ...], cost: float
) -> None:
    first = reopen(path)
    first.open_block("b", *BUDGET)
    before = first.runs_left("b", RUN)
    died = subprocess.run([sys.executable, "-c", KILLED, str(path), point], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    survivor = reopen(path)
    assert survivor.charges("b") == charges
    released = path.with_name("answer").exists()
    assert not released or survivor.spend("b").epsilon > 0  # nothing that left is free
    survivor.verify()
    assert before - survivor.runs_left("b", RUN) == pytest.approx(cost, abs=1e-9)


def test_what_a_killed_process_began_is_carried_by_its_reservation(path: Path) -> None:
    reopen(path).open_block("b", *BUDGET)
    subprocess.run([sys.executable, "-c", KILLED, str(path), "after it reserved"], check=False, timeout=60)
    survivor = reopen(path)
    beside = survivor.reserve(RUN, ("b",), "run", "training")  # going on in the survivor, so not to be resumed
    resumed = survivor.resume(RUN, ("b",), "run", "training")
    assert resumed is not None
    assert resumed.sequence < beside.sequence
    survivor.settle(resumed, RUN)
    assert survivor.resume(RUN, ("b",), "run", "training") is None
    assert reopen(path).charges("b") == (RUN, RUN)


RESERVING = """
import sys
from fedloop_core.privacy.charges import SampledGaussianCharge
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core.errors import BudgetExhausted
ledger = Ledger(sys.argv[1], lambda: 0)
charge = SampledGaussianCharge(noise_multiplier=1.1, sampling_rate=0.01, steps=1000)
admitted = 0
try:
    while True:
        ledger.reserve(charge, ("b",), "run", "training")
        admitted += 1
except BudgetExhausted:
    print(admitted)
"""


def test_processes_that_reserve_at_once_share_one_budget(path: Path) -> None:
    reopen(path).open_block("b", *BUDGET)
    started = [
        subprocess.Popen([sys.executable, "-c", RESERVING, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    admitted = [int(process.communicate(timeout=120)[0]) for process in started]
    assert sum(admitted) == 18
    assert len(reopen(path).charges("b")) == 18
    reopen(path).verify()


# --- tampering -----------------------------------------------------------------------------------------------------


def unlocked(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("DROP TRIGGER IF EXISTS entry_is_never_changed")
    connection.execute("DROP TRIGGER IF EXISTS entry_is_never_deleted")
    return connection


def filled(path: Path, key: SigningKey | None = KEY) -> Ledger:
    """Entries 1 to 5: the writer, a block, two reservations, a settlement."""
    ledger = reopen(path, key)
    ledger.open_block("b", *BUDGET)
    reservation = ledger.reserve(RUN, ("b",), "run-1", "training", GROUNDS)
    ledger.reserve(STEP, ("b",), "run-2", "training")
    ledger.settle(reservation, steps(400))
    return ledger


def _alter(connection: sqlite3.Connection) -> None:
    connection.execute(
        "UPDATE entry SET body = CAST(replace(CAST(body AS TEXT), '1000', '10') AS BLOB) WHERE sequence = 3"
    )


def _alter_digest_too(connection: sqlite3.Connection) -> None:
    _alter(connection)
    connection.execute("UPDATE entry SET digest = zeroblob(32) WHERE sequence = 3")


def _delete(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM entry WHERE sequence = 3")


def _swap(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE entry SET sequence = -sequence WHERE sequence IN (3, 4)")
    connection.execute("UPDATE entry SET sequence = 7 + sequence WHERE sequence < 0")


def _truncate(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM entry WHERE sequence >= 4")


def _rechained(connection: sqlite3.Connection, key: SigningKey | None) -> None:
    """Writes the altered chain anew, digests and all; with a stranger's key, or without any."""
    head = EMPTY
    for sequence, body in connection.execute("SELECT sequence, body FROM entry ORDER BY sequence").fetchall():
        digest = digest_after(head, body)
        signature = None if key is None else sign_digest(digest, key)
        connection.execute(
            "UPDATE entry SET digest = ?, signature = ? WHERE sequence = ?", (digest, signature, sequence)
        )
        head = Head(sequence, digest)


def _write_anew(connection: sqlite3.Connection) -> None:
    _alter(connection)
    _rechained(connection, SigningKey.generate())


def _write_anew_without_signatures(connection: sqlite3.Connection) -> None:
    _alter(connection)
    _rechained(connection, None)


def _strip_signatures(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE entry SET signature = NULL")


def _strip_the_last_signature(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE entry SET signature = NULL WHERE sequence = 5")


TAMPERING: dict[str, tuple[Callable[[sqlite3.Connection], None], str]] = {
    "an entry altered": (_alter, "entry 3 does not follow"),
    "an entry altered with its digest": (_alter_digest_too, "entry 3 does not follow"),
    "an entry deleted": (_delete, "entry 4 does not follow"),
    "two entries swapped": (_swap, "entry 3 does not follow"),
    "the end cut off": (_truncate, "2 entries are gone"),
    "the chain written anew": (_write_anew, "entry 1 is not signed by the key"),
    "the chain written anew without signatures": (_write_anew_without_signatures, "entry 1 is not signed"),
    "signatures taken away": (_strip_signatures, "entry 1 is not signed"),
    "the newest signature taken away": (_strip_the_last_signature, "entry 5 is not signed"),
}


@pytest.mark.parametrize(("tamper", "said"), TAMPERING.values(), ids=TAMPERING.keys())
def test_tampering_is_noticed(path: Path, tamper: Callable[[sqlite3.Connection], None], said: str) -> None:
    ledger = filled(path)
    with closing(unlocked(path)) as connection:
        tamper(connection)
    with pytest.raises(StorageError, match=said):
        ledger.verify()


@pytest.mark.parametrize("name", [name for name in TAMPERING if name != "the end cut off"])
def test_a_ledger_that_was_altered_is_not_even_opened(path: Path, name: str) -> None:
    filled(path).close()
    with closing(unlocked(path)) as connection:
        TAMPERING[name][0](connection)
    with pytest.raises(StorageError, match="ledger"):
        reopen(path, KEY)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_byte_that_changes_is_noticed(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "ledger.sqlite"
    if not path.exists():
        filled(path).close()
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT body, digest, signature FROM entry ORDER BY sequence").fetchall()
    sequence = data.draw(st.integers(1, len(rows)))
    column = data.draw(st.sampled_from(["body", "digest", "signature"]))
    kept = rows[sequence - 1][("body", "digest", "signature").index(column)]
    place = data.draw(st.integers(0, len(kept) - 1))
    statement = f"UPDATE entry SET {column} = ? WHERE sequence = ?"  # noqa: S608  one of three names
    altered = bytearray(kept)
    altered[place] ^= data.draw(st.integers(1, 255))
    with closing(unlocked(path)) as connection:
        connection.execute(statement, (bytes(altered), sequence))
    try:
        with pytest.raises(StorageError, match="entry"):
            reopen(path, KEY).verify()
    finally:
        with closing(unlocked(path)) as connection:
            connection.execute(statement, (kept, sequence))
    reopen(path, KEY).verify()


def test_whoever_has_the_key_and_undercounts_is_noticed_by_the_sums(path: Path) -> None:
    """A charge beyond the budget, and a settlement to less than was reserved of another mechanism: chain and signatures hold."""
    forged: dict[str, ReserveEntry | SettleEntry | OpenEntry] = {
        "has spent epsilon": ReserveEntry(
            time_unix=0, run_id="r", purpose="p", blocks=("b",), charge=PureCharge(epsilon=100.0)
        ),
        "does not cover": SettleEntry(time_unix=0, reservation=4, executed=PureCharge(epsilon=1e-6)),
        "is unknown or settled already": SettleEntry(time_unix=0, reservation=3, executed=steps(1)),
        "is open already": OpenEntry(time_unix=0, block="b", epsilon=90.0, delta=1e-5, order=3.0),
    }
    for said, entry in forged.items():
        path.unlink(missing_ok=True)
        ledger = filled(path)
        ledger._write(entry) if said != "is unknown or settled already" else _write_only(ledger, entry)
        with pytest.raises(StorageError, match=f"entry 6 should never have been written: .*{said}"):
            ledger.verify()
        ledger.close()


def _write_only(ledger: Ledger, entry: SettleEntry | ReserveEntry | OpenEntry) -> None:
    """To the file alone: the ledger's own state would not take it."""
    body = entry.model_dump_json().encode()
    head = ledger.head()
    digest = digest_after(head, body)
    row = (head.sequence + 1, body, digest, sign_digest(digest, KEY))
    ledger._connection.execute("INSERT INTO entry VALUES (?, ?, ?, ?)", row)


@pytest.mark.parametrize("statement", ["UPDATE entry SET body = x'00'", "DELETE FROM entry"])
def test_the_table_is_append_only(path: Path, statement: str) -> None:
    reopen(path).open_block("b", *BUDGET)
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(statement)
    connection.close()


def test_a_restored_snapshot_shows_in_the_head(path: Path, tmp_path: Path) -> None:
    """The chain and its signatures hold; the head that travelled with an answer does not fit any more."""
    ledger = reopen(path, KEY)
    ledger.open_block("b", *BUDGET)
    copy = tmp_path / "copy.sqlite"
    with closing(sqlite3.connect(copy)) as target:
        ledger._connection.backup(target)
    ledger.reserve(RUN, ("b",), "run", "training")
    seen = ledger.head()
    restored = reopen(copy, KEY)
    restored.verify()
    assert restored.digest_at(seen.sequence) is None
    restored.reserve(STEP, ("b",), "run", "training")
    assert restored.digest_at(seen.sequence) != seen.digest


def test_a_file_that_is_no_ledger_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("not a database" * 100)
    with pytest.raises(StorageError, match="ledger"):
        reopen(tmp_path / "ledger")


# --- what an entry says, and who signed it -------------------------------------------------------------------------


def bodies(path: Path) -> list[bytes]:
    with closing(sqlite3.connect(path)) as connection:
        return [body for (body,) in connection.execute("SELECT body FROM entry ORDER BY sequence")]


def test_an_entry_says_all_that_an_auditor_asks_for(path: Path) -> None:
    ledger = reopen(path, KEY)
    ledger.open_block("b", *BUDGET)
    reservation = ledger.reserve(RUN, ("b",), "run-1", "round 1", GROUNDS)
    ledger.settle_in_full(reservation.entry, b"\x0d" * 32)
    writer, opened, reserved, settled = (parse_entry(body) for body in bodies(path))
    assert isinstance(writer, WriterEntry)
    assert (writer.site, writer.key) == ("north", KEY.verifying.raw.hex())
    assert writer.neighbours == "add-or-remove-one-unit"
    assert {"fedloop", "dp-accounting", "opacus", "torch", "python"} <= set(writer.software)
    assert len(writer.code) == 64
    assert isinstance(opened, OpenEntry)
    assert (opened.epsilon, opened.delta) == BUDGET
    assert isinstance(reserved, ReserveEntry)
    assert (reserved.charge, reserved.blocks, reserved.grounds) == (RUN, ("b",), GROUNDS)
    assert isinstance(settled, SettleEntry)
    assert (settled.reservation, settled.released) == (reservation.sequence, "0d" * 32)
    assert ledger.verify().signed == 4


def test_a_writer_is_named_once_and_again_when_the_key_is_another(path: Path) -> None:
    first = filled(path)
    assert first.verify().keys == (KEY.verifying.raw.hex(),)
    first.close()
    other = SigningKey.generate()
    again = reopen(path, other)
    with pytest.raises(StorageError, match="entry 1 and those after it are not signed by this site's key"):
        again.verify()  # until it has signed anything itself
    again.reserve(STEP, ("b",), "run-3", "training")
    found = again.verify()
    assert (found.sequence, found.vouched) == (7, 7)
    assert found.keys == (KEY.verifying.raw.hex(), other.verifying.raw.hex())


def test_a_ledger_of_the_first_format_is_upgraded_and_signed_from_then_on(path: Path) -> None:
    """Format 1 had three columns, no writers and no grounds."""
    path.parent.mkdir(parents=True)
    head = EMPTY
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(
            "CREATE TABLE entry (sequence INTEGER PRIMARY KEY, body BLOB NOT NULL, digest BLOB NOT NULL) STRICT"
        )
        old: list[dict[str, object]] = [
            {"kind": "open", "time_unix": 1, "block": "b", "epsilon": 8.0, "delta": 1e-5, "order": 4.0},
            {
                "kind": "reserve",
                "time_unix": 2,
                "run_id": "run-1",
                "purpose": "round 1",
                "blocks": ["b"],
                "charge": RUN.model_dump(),
            },
            {"kind": "settle", "time_unix": 3, "reservation": 2, "executed": steps(400).model_dump()},
        ]
        for entry in old:
            body = json.dumps(entry).encode()
            head = Head(head.sequence + 1, digest_after(head, body))
            connection.execute("INSERT INTO entry VALUES (?, ?, ?)", (head.sequence, body, head.digest))
    ledger = reopen(path, KEY)
    assert ledger.head() == head  # what the coordinator has seen still holds
    assert ledger.charges("b") == (steps(400),)
    ledger.reserve(STEP, ("b",), "run-2", "round 1")
    found = ledger.verify()
    assert (found.sequence, found.signed, found.vouched) == (5, 2, 5)
    reopen(path, KEY).verify()


def test_a_ledger_of_a_newer_format_is_refused(path: Path) -> None:
    filled(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 3")
    with pytest.raises(StorageError, match="has format 3"):
        reopen(path)


def test_a_clock_that_was_set_back_is_said_and_changes_no_sum(path: Path) -> None:
    now = [1000]
    ledger = Ledger(path, lambda: now[0], key=KEY)
    ledger.open_block("b", *BUDGET)
    ledger.reserve(RUN, ("b",), "run-1", "training")
    spent = ledger.spend("b")
    now[0] = 10
    ledger.reserve(RUN, ("b",), "run-2", "training")
    assert ledger.verify().clock_back == (4,)
    assert ledger.spend("b").epsilon > spent.epsilon


def test_a_full_disk_charges_nothing_that_was_not_written(path: Path) -> None:
    ledger = reopen(path)
    ledger.open_block("b", *BUDGET)
    pages = ledger._connection.execute("PRAGMA page_count").fetchone()[0]
    ledger._connection.execute(f"PRAGMA max_page_count = {pages}")
    admitted = 0

    def fill() -> None:
        nonlocal admitted
        while True:
            ledger.reserve(STEP, ("b",), "run", "x" * 500)
            admitted += 1

    with pytest.raises(StorageError, match="full"):
        fill()
    assert admitted > 0
    assert len(ledger.charges("b")) == admitted
    assert len(reopen(path).charges("b")) == admitted
