"""The ledger: what it admits, what survives a kill, what tampering looks like."""

from __future__ import annotations

import math
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloop_clients.privacy.charges import Charge, GaussianCharge, NonPrivateCharge, PureCharge, SampledGaussianCharge
from fedloop_clients.privacy.ledger import Head, Ledger
from fedloop_core.errors import BudgetExhausted, BudgetFixed, StorageError, UsageError

RUN = SampledGaussianCharge(noise_multiplier=1.1, sampling_rate=0.01, steps=1000)
STEP = SampledGaussianCharge(noise_multiplier=1.1, sampling_rate=0.01, steps=10)
BUDGET = (8.0, 1e-5)


def steps(count: int) -> SampledGaussianCharge:
    return RUN.model_copy(update={"steps": count})


@pytest.fixture(params=["memory", "file"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    path = ":memory:" if request.param == "memory" else tmp_path / "ledger.sqlite"
    made = Ledger(path, lambda: 1_800_000_000)
    made.open_block("original", *BUDGET)
    return made


def test_eighteen_runs_fit_and_the_nineteenth_is_refused(ledger: Ledger) -> None:
    for run in range(18):
        ledger.settle(ledger.reserve(RUN, ("original",), f"run-{run}", "training"), RUN)
    with pytest.raises(
        BudgetExhausted, match=r"'original' has spent epsilon 7\.\d+ of 8 for life; training asks for 3"
    ):
        ledger.reserve(RUN, ("original",), "run-18", "training")
    spend = ledger.spend("original")
    assert 7.87283 <= spend.epsilon <= 8
    assert (spend.budget, spend.unlimited) == (8.0, False)
    assert 0 < ledger.runs_left("original", RUN) < 1


def test_an_empty_block_has_spent_nothing(ledger: Ledger) -> None:
    assert ledger.spend("original").epsilon == 0
    assert ledger.charges("original") == ()
    assert ledger.head().sequence == 1


def test_opening_again_changes_nothing_and_never_the_budget(ledger: Ledger) -> None:
    ledger.open_block("original", *BUDGET)
    assert ledger.head().sequence == 1
    with pytest.raises(BudgetFixed, match="for life"):
        ledger.open_block("original", 9.0, 1e-5)


def test_a_reservation_stands_in_full_until_it_is_settled(ledger: Ledger) -> None:
    reservation = ledger.reserve(RUN, ("original",), "run", "training")
    whole = ledger.spend("original").epsilon
    ledger.settle(reservation, steps(400))
    assert 0 < ledger.spend("original").epsilon < whole
    assert ledger.charges("original", "run") == (steps(400),)
    assert ledger.charges("original", "another") == ()


def test_a_reservation_of_which_nothing_was_executed_costs_nothing(ledger: Ledger) -> None:
    ledger.settle(ledger.reserve(RUN, ("original",), "run", "training"), steps(0))
    assert ledger.spend("original").epsilon == 0


BAD_SETTLEMENTS: dict[str, Charge] = {
    "more steps": steps(1001),
    "more noise than there was": RUN.model_copy(update={"noise_multiplier": 2.0}),
    "another rate": RUN.model_copy(update={"sampling_rate": 0.001}),
    "another mechanism": GaussianCharge(noise_multiplier=100.0),
}


@pytest.mark.parametrize("executed", BAD_SETTLEMENTS.values(), ids=BAD_SETTLEMENTS.keys())
def test_a_settlement_outside_the_reservation_leaves_it_standing(ledger: Ledger, executed: Charge) -> None:
    reservation = ledger.reserve(RUN, ("original",), "run", "training")
    before = ledger.spend("original")
    with pytest.raises(UsageError, match="does not cover"):
        ledger.settle(reservation, executed)
    assert ledger.spend("original") == before


ASK = (RUN, ("original",), "run", "round 3")


def test_work_that_broke_off_begins_anew_under_its_reservation(ledger: Ledger) -> None:
    assert ledger.resume(*ASK) is None
    reservation = ledger.reserve(*ASK)
    assert ledger.resume(*ASK) is None  # it may be going on
    ledger.broke_off(reservation)
    others: list[tuple[Charge, tuple[str, ...], str, str]] = [
        (RUN, ("original",), "run", "round 4"),
        (RUN, ("original",), "other", "round 3"),
        (steps(999), ("original",), "run", "round 3"),
    ]
    assert [ledger.resume(*other) for other in others] == [None, None, None]
    spent = ledger.spend("original")
    for _ in range(3):
        assert ledger.resume(*ASK) == reservation
        ledger.broke_off(reservation)
    assert ledger.resume(*ASK) is None  # that work breaks off is seen outside: not for ever
    assert ledger.spend("original") == spent
    ledger.settle(reservation, RUN)
    assert (ledger.charges("original"), ledger.spend("original")) == ((RUN,), spent)
    ledger.verify()


def test_what_was_settled_carries_nothing_more(ledger: Ledger) -> None:
    reservation = ledger.reserve(*ASK)
    ledger.settle(reservation, RUN)
    ledger.broke_off(reservation)
    assert ledger.resume(*ASK) is None


def test_a_reservation_is_settled_once(ledger: Ledger) -> None:
    reservation = ledger.reserve(RUN, ("original",), "run", "training")
    ledger.settle(reservation, RUN)
    with pytest.raises(UsageError, match="settled already"):
        ledger.settle(reservation, steps(0))


def test_several_blocks_are_charged_together_or_not_at_all(ledger: Ledger) -> None:
    ledger.open_block("feedback-1", 2.0, 1e-5)
    ledger.reserve(RUN, ("feedback-1",), "run", "training")
    head = ledger.head()
    with pytest.raises(BudgetExhausted, match="feedback-1"):
        ledger.reserve(RUN, ("original", "feedback-1"), "run", "training")
    assert ledger.head() == head
    assert ledger.spend("original").epsilon == 0


def test_an_unknown_block_is_refused(ledger: Ledger) -> None:
    with pytest.raises(UsageError, match="no block 'elsewhere'"):
        ledger.reserve(RUN, ("elsewhere",), "run", "training")


def test_exact_releases_need_a_block_without_budget(ledger: Ledger) -> None:
    with pytest.raises(BudgetExhausted, match="exact release"):
        ledger.reserve(NonPrivateCharge(), ("original",), "run", "training")
    ledger.open_block("free", math.inf, 1e-5)
    assert ledger.spend("free").epsilon == 0
    ledger.reserve(RUN, ("free",), "run", "training")
    assert ledger.spend("free").epsilon == pytest.approx(1.71177, rel=1e-3)
    ledger.reserve(NonPrivateCharge(), ("free",), "run", "training")
    assert ledger.spend("free").epsilon == math.inf
    assert ledger.spend("free").unlimited
    assert ledger.runs_left("free", RUN) == math.inf


CHARGES = st.sampled_from(
    [STEP, steps(200), RUN, GaussianCharge(noise_multiplier=8.0), PureCharge(epsilon=0.2), PureCharge(epsilon=1.5)]
)


@settings(deadline=None, max_examples=25)
@given(charges=st.lists(CHARGES, max_size=30))
def test_spend_only_rises_and_never_passes_the_budget(charges: list[Charge]) -> None:
    ledger = Ledger(":memory:", lambda: 0)
    ledger.open_block("b", *BUDGET)
    before = 0.0
    for charge in charges:
        try:
            ledger.reserve(charge, ("b",), "run", "purpose")
        except BudgetExhausted:
            assert ledger.spend("b").epsilon == before
        spent = ledger.spend("b").epsilon
        assert before <= spent <= BUDGET[0] * (1 + 1e-9)
        before = spent
    assert ledger.verify() == ledger.head()
    assert ledger.spend("b").epsilon == pytest.approx(before, rel=1e-9)


def test_splitting_a_run_changes_nothing(ledger: Ledger) -> None:
    ledger.open_block("whole", *BUDGET)
    ledger.reserve(RUN, ("whole",), "run", "training")
    ledger.reserve(steps(400), ("original",), "run", "training")
    ledger.reserve(steps(600), ("original",), "run", "training")
    assert ledger.spend("original").epsilon == pytest.approx(ledger.spend("whole").epsilon, rel=1e-9)


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "site" / "ledger.sqlite"


def reopen(path: Path) -> Ledger:
    return Ledger(path, lambda: 0)


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


KILLED = """
import os, signal, sys
from fedloop_clients.privacy.charges import SampledGaussianCharge
from fedloop_clients.privacy.ledger import Ledger
ledger = Ledger(sys.argv[1], lambda: 0)
charge = SampledGaussianCharge(noise_multiplier=1.1, sampling_rate=0.01, steps=1000)
reservation = ledger.reserve(charge, ("b",), "run", "training")
if sys.argv[2] == "settle":
    ledger.settle(reservation, charge.model_copy(update={"steps": 400}))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("point", "stands"), [("reserve", RUN), ("settle", steps(400))])
def test_a_killed_process_refunds_nothing(path: Path, point: str, stands: Charge) -> None:
    reopen(path).open_block("b", *BUDGET)
    died = subprocess.run([sys.executable, "-c", KILLED, str(path), point], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    survivor = reopen(path)
    assert survivor.charges("b") == (stands,)
    assert survivor.verify().sequence == (2 if point == "reserve" else 3)


def test_what_a_killed_process_began_is_carried_by_its_reservation(path: Path) -> None:
    reopen(path).open_block("b", *BUDGET)
    subprocess.run([sys.executable, "-c", KILLED, str(path), "reserve"], check=False, timeout=60)
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
from fedloop_clients.privacy.charges import SampledGaussianCharge
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


def _alter(connection: sqlite3.Connection) -> None:
    connection.execute(
        "UPDATE entry SET body = CAST(replace(CAST(body AS TEXT), '1000', '10') AS BLOB) WHERE sequence = 2"
    )


def _alter_digest_too(connection: sqlite3.Connection) -> None:
    _alter(connection)
    connection.execute("UPDATE entry SET digest = zeroblob(32) WHERE sequence = 2")


def _delete(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM entry WHERE sequence = 2")


def _swap(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE entry SET sequence = -sequence WHERE sequence IN (2, 3)")
    connection.execute("UPDATE entry SET sequence = 5 + sequence WHERE sequence < 0")


def _truncate(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM entry WHERE sequence >= 2")


TAMPERING: dict[str, Callable[[sqlite3.Connection], None]] = {
    "an entry altered": _alter,
    "an entry altered with its digest": _alter_digest_too,
    "an entry deleted": _delete,
    "two entries swapped": _swap,
    "the end cut off": _truncate,
}


@pytest.mark.parametrize("tamper", TAMPERING.values(), ids=TAMPERING.keys())
def test_tampering_is_noticed(path: Path, tamper: Callable[[sqlite3.Connection], None]) -> None:
    ledger = reopen(path)
    ledger.open_block("b", *BUDGET)
    ledger.reserve(RUN, ("b",), "run-1", "training")
    ledger.reserve(STEP, ("b",), "run-2", "training")
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TRIGGER entry_is_never_changed")
        connection.execute("DROP TRIGGER entry_is_never_deleted")
        tamper(connection)
    connection.close()
    with pytest.raises(StorageError):
        ledger.verify()


@pytest.mark.parametrize("statement", ["UPDATE entry SET body = x'00'", "DELETE FROM entry"])
def test_the_table_is_append_only(path: Path, statement: str) -> None:
    reopen(path).open_block("b", *BUDGET)
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(statement)
    connection.close()


def test_a_restored_snapshot_shows_in_the_head(path: Path) -> None:
    """The chain alone cannot tell; the head that travelled with an answer can."""
    ledger = reopen(path)
    ledger.open_block("b", *BUDGET)
    seen = ledger.head()
    ledger.reserve(RUN, ("b",), "run", "training")
    assert seen == Head(1, seen.digest)
    assert ledger.head().sequence > seen.sequence
    assert ledger.head().digest != seen.digest


def test_a_file_that_is_no_ledger_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("not a database" * 100)
    with pytest.raises(StorageError, match="ledger"):
        reopen(tmp_path / "ledger")


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
