"""What runs spend on whole sites adds up, is charged before the first noised model, and is never taken back."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import dp_accounting
import pytest
from dp_accounting import rdp
from hypothesis import given
from hypothesis import strategies as st
from tests.runs import charged_run
from tests.runs.charged_run import BUDGET, POINTS, SITES, hidden
from tests.runs.scripted_sites import Site, driver, honest

from fedloop_core.audit import AuditAction, AuditLog
from fedloop_core.errors import BudgetExhausted, BudgetFixed, PrivacyParameterInvalid, QuorumNotReached, StorageError
from fedloop_core.privacy.charges import GaussianCharge
from fedloop_server.cli.run_logs import sentence_of
from fedloop_server.database import Database
from fedloop_server.home import CoordinatorHome
from fedloop_server.runs.auditing import audited
from fedloop_server.runs.events import AttemptStarted, WholeSitesCharged
from fedloop_server.runs.journal import RunJournal
from fedloop_server.runs.paying import charge_of_task
from fedloop_server.whole_sites.accounts import SiteCharge, WholeSitesState
from fedloop_server.whole_sites.book import WholeSites
from fedloop_server.whole_sites.budget import SiteBudget

CHARGE = GaussianCharge(noise_multiplier=10.0, count=50)


def book_in(folder: Path, budget: SiteBudget = BUDGET) -> WholeSites:
    return CoordinatorHome(folder).whole_sites(budget)


def drive(folder: Path, run_id: str, point: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, charged_run.__file__, str(folder), run_id, point]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran


def entries(folder: Path) -> list[SiteCharge]:
    with closing(sqlite3.connect(folder / "coordinator.db")) as connection:
        rows = connection.execute("SELECT body FROM whole_site_charges ORDER BY number").fetchall()
    return [SiteCharge.model_validate_json(body) for (body,) in rows]


# --- adding up -----------------------------------------------------------------------------------------------------


def test_runs_are_admitted_until_the_budget_is_spent_and_no_further(tmp_path: Path) -> None:
    with closing(book_in(tmp_path)) as book:
        order = book.state().account("a", BUDGET).filter.order
        assert order is not None
        # By hand: Gaussian noise costs rounds * order / (2 z^2) at an order; the rest of epsilon is the conversion's.
        conversion = rdp.compute_epsilon((order,), (100.0,), BUDGET.delta)[0] - 100.0
        holds = math.floor((BUDGET.epsilon - conversion) / (50 * order / (2 * 10.0**2)))
        assert holds > 1
        for number in range(holds):
            assert book.charge(f"run-{number}", "t", ("a", "b"), CHARGE).sites == ("a", "b")
        paid = book.charge("one-more", "t", ("a", "b", "new"), CHARGE)
        assert paid.sites == ("new",)
        assert sorted(paid.refused) == ["a", "b"]
        spent = book.state().accounts["a"]
        assert len(spent.charges) == holds
        assert spent.spent <= BUDGET.epsilon
        assert spent.runs_left(CHARGE) == 0
        assert book.state().accounts["new"].runs_left(CHARGE) == holds - 1
        assert "site a as a whole has spent epsilon" in paid.refused["a"].message


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.3, 50.0), st.integers(1, 80)), max_size=12))
def test_whatever_is_charged_stays_within_the_budget(wanted: list[tuple[str, float, int]]) -> None:
    state = WholeSitesState()
    for number, (site, noise, rounds) in enumerate(wanted):
        charge, account = GaussianCharge(noise_multiplier=noise, count=rounds), state.account(site, BUDGET)
        try:
            account.check(f"run-{number}", charge)
        except BudgetExhausted:
            continue
        entry = SiteCharge(
            time_unix=0,
            run_id=f"run-{number}",
            task="t",
            sites=(site,),
            charge=charge,
            epsilon=BUDGET.epsilon,
            delta=BUDGET.delta,
            order=account.filter.order,
        )
        state.apply(entry)
    for account in state.accounts.values():
        assert account.spent <= BUDGET.epsilon * (1 + 1e-9)
        best = rdp.RdpAccountant()
        for _, charge in account.charges:
            best.compose(dp_accounting.GaussianDpEvent(charge.noise_multiplier), charge.count)
        assert best.get_epsilon(BUDGET.delta) <= account.spent * (1 + 1e-9) + 1e-9


def test_the_same_run_is_charged_once_and_a_run_with_other_noise_again(tmp_path: Path) -> None:
    with closing(book_in(tmp_path)) as book:
        first = book.charge("run-1", "t", ("a",), CHARGE)
        assert book.charge("run-1", "t", ("a",), CHARGE) == first
        assert book.charge("run-1", "t", ("a", "late"), CHARGE).sites == ("a", "late")
        assert [entry.sites for entry in entries(tmp_path)] == [("a",), ("late",)]
        book.charge("run-1", "t", ("a",), GaussianCharge(noise_multiplier=9.9, count=50))
        assert len(book.state().accounts["a"].charges) == 2


def test_without_a_budget_everything_is_counted_all_the_same(tmp_path: Path) -> None:
    with closing(book_in(tmp_path, SiteBudget(epsilon=math.inf))) as book:
        for number in range(30):
            assert not book.charge(f"run-{number}", "t", ("a",), CHARGE).refused
        account = book.state().accounts["a"]
        assert account.runs_left(CHARGE) == math.inf
        assert 10 < account.spent < math.inf


BUDGETS = [
    ("raised", SiteBudget(epsilon=20.0), BudgetFixed, "cannot be changed to 20"),
    ("lowered", SiteBudget(epsilon=5.0), BudgetFixed, "cannot be changed to 5"),
    ("taken away", SiteBudget(epsilon=math.inf), BudgetFixed, "cannot be changed to inf"),
    ("another delta", SiteBudget(epsilon=10.0, delta=1e-4), BudgetFixed, "at 0.0001"),
]


@pytest.mark.parametrize(("budget", "kind", "said"), [row[1:] for row in BUDGETS], ids=[row[0] for row in BUDGETS])
def test_a_budget_is_for_life(budget: SiteBudget, kind: type[Exception], said: str, tmp_path: Path) -> None:
    with closing(book_in(tmp_path)) as book:
        book.charge("run-1", "t", ("a",), CHARGE)
    with closing(book_in(tmp_path, budget)) as book, pytest.raises(kind, match=said):
        book.charge("run-2", "t", ("a",), CHARGE)
    assert len(entries(tmp_path)) == 1


def test_a_budget_that_holds_nothing_is_refused(tmp_path: Path) -> None:
    with (
        closing(book_in(tmp_path, SiteBudget(epsilon=1e-3, delta=1e-9))) as book,
        pytest.raises(PrivacyParameterInvalid, match="holds no charge at all"),
    ):
        book.charge("run-1", "t", ("a",), CHARGE)


# --- the record ----------------------------------------------------------------------------------------------------


TAMPERED = [
    ("a charge is made smaller", "UPDATE whole_site_charges SET body = replace(body, '10.0', '99.0') WHERE number = 1"),
    ("the newest but one is gone", "DELETE FROM whole_site_charges WHERE number = 1"),
    ("two change places", "UPDATE whole_site_charges SET number = 10 - number"),
    ("no entry", "UPDATE whole_site_charges SET body = '{}' WHERE number = 2"),
]


@pytest.mark.parametrize("statement", [row[1] for row in TAMPERED], ids=[row[0] for row in TAMPERED])
def test_a_record_that_was_altered_is_noticed_and_sqlite_refuses_to_alter_it(statement: str, tmp_path: Path) -> None:
    with closing(book_in(tmp_path)) as book:
        for number in (1, 2, 3):
            book.charge(f"run-{number}", "t", ("a",), CHARGE)
    with closing(sqlite3.connect(tmp_path / "coordinator.db")) as connection:
        with pytest.raises(sqlite3.IntegrityError, match="only ever added"):
            connection.execute(statement)
        for verb in ("update", "delete"):
            connection.execute(f"DROP TRIGGER whole_site_charges_no_{verb}")
        connection.execute(statement)
        connection.commit()
    with closing(book_in(tmp_path)) as book, pytest.raises(StorageError, match="is not what was written"):
        book.charge("run-4", "t", ("a",), CHARGE)


def test_an_upgraded_database_is_append_only_too(tmp_path: Path) -> None:
    from sqlalchemy import create_engine

    from fedloop_server.migrations.opening import upgrade

    engine = create_engine(f"sqlite:///{tmp_path}/old.db")
    with engine.begin() as connection:
        upgrade(connection, "0003")
    engine.dispose()
    found = []
    for name in ("old", "fresh"):
        Database(f"sqlite:///{tmp_path}/{name}.db").close()
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as opened:
            query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name"
            found.append(opened.execute(query).fetchall())
    assert found[0] == found[1]
    assert len(found[0]) == 2


def test_two_processes_do_not_both_get_the_last_of_a_budget(tmp_path: Path) -> None:
    charge = charge_of_task(hidden())
    assert charge is not None
    script = (
        "import sys; from pathlib import Path; from tests.runs.charged_run import *; from fedloop_server.runs.paying import charge_of_task;"
        "book = CoordinatorHome(Path(sys.argv[1])).whole_sites(BUDGET); charge = charge_of_task(hidden()); input();"
        "print(len(book.charge(sys.argv[2], 't', ('a',), charge).sites))"
    )
    with closing(book_in(tmp_path)) as book:
        assert book.state().account("a", BUDGET).runs_left(charge) == 1
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path), f"run-{n}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for n in range(3)
    ]
    try:
        for process in started:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        told = [process.communicate(timeout=120)[0].strip() for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert sorted(told) == ["0", "0", "1"]


# --- runs ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("point", [point for point in POINTS if point != "never"])
def test_a_run_that_is_killed_is_charged_once_and_before_its_first_noised_model(point: str, tmp_path: Path) -> None:
    assert drive(tmp_path, "run-1", point).returncode == -signal.SIGKILL
    before = entries(tmp_path)
    assert len(before) == (0 if point == "before the charge is on the disk" else 1)
    state = RunJournal(tmp_path / "run-1").state
    assert len(before) == 1 or not state.sent  # nothing noised has left
    assert drive(tmp_path, "run-1", "never").returncode == 0
    (charged,) = entries(tmp_path)
    assert (charged.run_id, len(charged.sites)) == ("run-1", SITES)
    state = RunJournal(tmp_path / "run-1").state
    assert state.completed_rounds == 4
    assert state.charged_sites == set(charged.sites)
    assert charged.charge == charge_of_task(hidden())


def test_a_run_that_fails_has_spent_what_it_planned_and_the_next_one_is_refused(tmp_path: Path) -> None:
    with closing(book_in(tmp_path)) as book:
        silent = [Site(f"site-{n}", silent=True) for n in range(SITES)]
        with pytest.raises(QuorumNotReached, match="0 of 40 sites answered"):
            driver(tmp_path / "run-1", hidden(), silent, run_id="run-1", book=book).train()
        assert len(entries(tmp_path)) == 1
        with pytest.raises(
            BudgetExhausted, match="0 sites hold this run in the budget for whole sites and 20 are needed: site site-0"
        ):
            driver(tmp_path / "run-2", hidden(), honest(40), run_id="run-2", book=book).train()
        assert RunJournal(tmp_path / "run-2").state.members == ()  # nobody was asked for anything
        assert len(entries(tmp_path)) == 1


def test_a_site_that_has_spent_what_it_may_is_left_out_and_the_others_train(tmp_path: Path) -> None:
    charge = charge_of_task(hidden())
    assert charge is not None
    with closing(book_in(tmp_path)) as book:
        book.charge("earlier", "t", ("site-3", "site-4"), charge)
        driver(tmp_path / "run-1", hidden(), honest(SITES), run_id="run-1", book=book).train()
        state = RunJournal(tmp_path / "run-1").state
        assert {out.site for out in state.barred} == {"site-3", "site-4"}
        assert {out.code for out in state.barred} == {BudgetExhausted.code}
        assert len(state.charged_sites) == SITES - 2
        assert all("site-3" not in closed.asked for closed in state.rounds)
        assert len(book.state().accounts["site-3"].charges) == 1


def test_one_that_joins_late_pays_before_it_is_asked_and_the_others_do_not_pay_again(tmp_path: Path) -> None:
    with closing(book_in(tmp_path)) as book:
        run = driver(tmp_path / "run-1", hidden(), honest(SITES), run_id="run-1", book=book)
        run._check_expected()
        run._gather()
        run._joining.describe_all()
        state = RunJournal(tmp_path / "run-1").state
        assert len(state.members) == SITES
        late = run._journal.state.members[-1].site
        members = {name: member for name, member in run._members().items() if name != late}
        assert run._payments is not None
        run._payments.pay(members)
        run._fix_scaler()
        run._round()
        assert [len(entry.sites) for entry in entries(tmp_path)] == [SITES - 1, 1]
        assert entries(tmp_path)[1].sites == (late,)


def test_a_charge_is_told_in_the_journal_and_noted_in_the_audit_log(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit.jsonl")
    journal = RunJournal(tmp_path / "run-1", observe=audited("run-1", audit, None))
    journal.record(AttemptStarted(attempt=1, unix=0.0))
    charged = WholeSitesCharged(
        sites=("a", "b"), noise_multiplier=1.5, releases=4, spent=8.25, budget=10.0, delta=1e-5, unix=1.0
    )
    journal.record(charged)
    (entry,) = audit.entries()
    assert (entry.action, entry.subject) == (AuditAction.WHOLE_SITES_CHARGED, "run-1")
    assert (entry.details["sites"], entry.details["spent"]) == (2, 8.25)
    assert sentence_of(charged) == (
        "4 rounds are charged to 2 whole sites, with noise multiplier 1.5; the most that one has spent is epsilon 8.250 of 10 for "
        "life (delta 1e-05)."
    )
    assert RunJournal(tmp_path / "run-1").state.charged_sites == {"a", "b"}
