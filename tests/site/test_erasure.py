"""People who were erased: their rows leave, their names are nowhere, and nothing else of a site changes."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedloop_clients.backup import back_up, restore
from fedloop_clients.data.source import load_site_data, read_site_rows
from fedloop_clients.erasure import ErasedPeople
from fedloop_clients.feedback.store import FeedbackStore
from fedloop_clients.home import Membership, SiteHome
from fedloop_clients.outbox import KnownRun
from fedloop_clients.people import person_name
from fedloop_clients.service.rows import FileRows
from fedloop_core.audit import AuditAction
from fedloop_core.cli import main
from fedloop_core.errors import ColumnMissing, DataError, FileMissing, SettingsInvalid, UsageError
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.keys import SigningKey
from fedloop_core.task import Task
from fedloop_edge.hub import ReceivedExample

SETTINGS = """\
format = 1
site = "north"
[data]
file = "rows.csv"
{person}
[budget]
training = {{ epsilon = 10.0 }}
evaluation = {{ epsilon = 10.0 }}
"""
BY_PATIENT = 'person_column = "patient"'
PEOPLE = [f"P-{number:03}" for number in range(40)]


def task(unit_column: str | None = "patient") -> Task:
    return Task.model_validate(
        {
            "format": 1,
            "name": "wards",
            "features": ({"kind": "numeric", "name": "a", "range": (0.0, 100.0)},),
            "label": {"kind": "classes", "name": "y", "classes": ("no", "yes")},
            "model": {"kind": "logistic"},
            "privacy": {"epsilon": 2.0, "unit_column": unit_column},
        }
    )


@pytest.fixture
def home(tmp_path: Path) -> SiteHome:
    """A site with forty patients, two rows each."""
    site = SiteHome(tmp_path / "north")
    site.prepare()
    key = SigningKey.load_or_create(site.signing_key_file).verifying.raw.hex()
    site.store_membership(
        Membership(
            site="north", coordinator_key=key, fleet_address="a:1", hub_address="a:2", protocol=PROTOCOL, joined_unix=1
        )
    )
    site.fingerprint_secret_file.write_bytes(bytes(range(32)))
    site.settings_file.write_text(SETTINGS.format(person=BY_PATIENT))
    rows = [f"{person},{number},{'yes' if number % 2 else 'no'}" for number, person in enumerate(PEOPLE * 2)]
    (site.folder / "rows.csv").write_text("patient,a,y\n" + "\n".join(rows) + "\n")
    return site


def said(*words: str, home: SiteHome, expect: int = 0) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), pytest.raises(SystemExit) as ended:
        main(["site", *words, "--home", str(home.folder)])
    assert ended.value.code == expect, out.getvalue()
    return out.getvalue()


def test_their_rows_are_left_out_and_everybody_else_stays_where_they_were(home: SiteHome) -> None:
    before = load_site_data(home, task())
    told = said("erase", "P-003", "P-017", home=home)
    assert "2 of 2 people are left out of every run that begins from now on.\n" in told  # and no others
    assert "Column 'patient' of rows.csv holds 4 rows of 2 people." in told
    assert "Models that were made before keep what they have learnt" in told
    after = load_site_data(home, task())
    assert read_site_rows(home, task()).left_out == 4
    for part in ("training", "evaluation"):
        then, now = getattr(before, part)().units, getattr(after, part)().units
        assert now == tuple(unit for unit in then if unit not in {"P-003", "P-017"})  # nobody changed sides
    assert after.skipped_share == 0.0  # they are not rows that do not fit


def test_a_daemon_reads_the_list_again_before_its_next_run(home: SiteHome) -> None:
    rows = FileRows(home)
    before = rows.for_task(task())
    assert rows.for_task(task()) is before
    said("erase", PEOPLE[0], home=home)
    assert PEOPLE[0] not in (*rows.for_task(task()).training().units, *rows.for_task(task()).evaluation().units)
    said("readmit", PEOPLE[0], home=home)
    assert PEOPLE[0] in (*rows.for_task(task()).training().units, *rows.for_task(task()).evaluation().units)


def test_no_name_is_kept_anywhere_but_in_the_sites_own_file(home: SiteHome) -> None:
    said("erase", "P-003", home=home)
    for path in home.folder.rglob("*"):
        if path.is_file() and path.name != "rows.csv":
            assert b"P-003" not in path.read_bytes(), path
    (entry,) = [e for e in home.audit().entries() if e.action is AuditAction.PERSON_ERASED]
    assert entry.subject == home.erased().digest("P-003")[:16]
    assert home.erased_file.stat().st_mode & 0o777 == 0o600
    other = ErasedPeople(home.erased_file, bytes(32))
    assert not other.holds()("P-003")  # without the site's secret nobody can ask the list


def test_a_task_that_names_no_column_is_refused_until_the_settings_name_one(home: SiteHome) -> None:
    by_row = task(unit_column=None)
    home.settings_file.write_text(SETTINGS.format(person=""))
    assert len(read_site_rows(home, by_row).rows) == 80
    assert "Tasks that name no unit column are refused" in said("erase", "P-003", "--not-yet", home=home)
    with pytest.raises(SettingsInvalid, match="which column names the person") as caught:
        load_site_data(home, by_row)
    assert "P-003" not in str(caught.value)
    home.settings_file.write_text(SETTINGS.format(person=BY_PATIENT))
    assert len(read_site_rows(home, by_row).rows) == 78
    home.settings_file.write_text(SETTINGS.format(person='person_column = "patients"'))
    with pytest.raises(ColumnMissing, match="'patients'"):
        load_site_data(home, by_row)


def test_said_twice_it_is_done_once_and_a_dry_run_does_nothing(home: SiteHome, tmp_path: Path) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text("P-001\n P-002 \n\nP-001\n")
    dry = json.loads(said("erase", "--from", str(listed), "--dry-run", "--json", home=home))
    assert (dry["new"], dry["known"], dry["dry_run"]) == (2, 0, True)
    assert not home.erased_file.exists()
    assert json.loads(said("erase", "--from", str(listed), "--json", home=home))["new"] == 2
    again = json.loads(said("erase", "P-002", "P-005", "--json", home=home))
    assert (again["new"], again["known"]) == (1, 1)
    assert len(home.erased()) == 3
    assert "3 people are left out" in said("erase", "--list", home=home)
    assert json.loads(said("readmit", "P-001", "P-009", "--json", home=home)) == {"readmitted": 1, "unknown": 1}
    assert len(home.erased()) == 2
    assert "nobody is named" in said("erase", home=home, expect=2)


def test_the_runs_that_had_begun_are_named(home: SiteHome) -> None:
    home.audit().record("coordinator", AuditAction.RUN_STARTED, "wards-1", task="wards", attempt=1)
    told = said("erase", "P-003", home=home)
    assert "Runs in which their rows may have been: wards-1 (" in told
    assert "A run that is under way keeps the rows that it began with" in told


def test_the_list_is_in_a_backup(home: SiteHome, tmp_path: Path) -> None:
    said("erase", "P-003", home=home)
    home.ledger().close()
    home.outbox().close()
    back_up(home.folder, tmp_path / "north.backup", unix=5)
    restore(tmp_path / "north.backup", tmp_path / "again", actor="operator:ann")
    assert SiteHome(tmp_path / "again").erased().holds()("P-003")


def test_what_devices_sent_of_them_goes_too(home: SiteHome, tmp_path: Path) -> None:
    path = tmp_path / "feedback.db"
    store = FeedbackStore(path, task().feature_schema)
    inputs: dict[str, NDArray[Any]] = {"numeric": np.ones((1, 1), np.float32)}
    for number, unit in enumerate(("P-003", "P-004", "P-003", "")):
        store.add(
            "d1",
            ReceivedExample(
                queue_id="q", sequence=number, prediction_id=f"p{number}", task="wards", version=1, predicted="no", label="yes", unit=unit,
                observed_unix=10, inputs=inputs,
            ),
        )  # fmt: skip
    said("erase", "P-003", home=home)
    assert store.forget_units(home.erased().holds()) == 2
    assert store.waiting().rows.units == ("P-004", "")
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as raw:
        kept = raw.execute("SELECT sequence, unit, length(inputs) FROM example ORDER BY sequence").fetchall()
    assert [(sequence, unit) for sequence, unit, _ in kept] == [(0, ""), (1, "P-004"), (2, ""), (3, "")]
    assert b"P-003" not in path.read_bytes()


NEAR: dict[str, tuple[str, str]] = {
    "zeros before a number": ("00123", "123"),
    "zeros after a letter": ("P-001", "P-1"),
    "capitals": ("P-001", "p-001"),
    "a number that a spreadsheet wrote": ("4711.0", "4711"),
    "full-width digits": ("\uff14\uff17\uff11\uff11", "4711"),
}


def file_with(home: SiteHome, *people: str) -> None:
    rows = "".join(f"{person},{number},no\n" for number, person in enumerate(people))
    (home.folder / "rows.csv").write_text(f"patient,a,y\n{rows}", encoding="utf-8")


@pytest.mark.parametrize(("filed", "typed"), NEAR.values(), ids=NEAR.keys())
def test_a_near_spelling_is_told_and_nobody_is_left_out_silently(home: SiteHome, filed: str, typed: str) -> None:
    file_with(home, filed, "other", filed)
    for words in (("erase", typed, "--dry-run"), ("erase", typed)):
        told = said(*words, home=home, expect=DataError.exit_status)
        assert told.startswith("0 of 1 people ")
        assert "Column 'patient' of rows.csv holds 0 rows of 0 people." in told
        assert f"{typed!r} is in no row. Near it: {filed!r}." in told
        assert "1 of 1 people are in no row, and not left out." in told
        assert "keep what they have learnt" not in told  # nothing was done that has consequences
    assert len(home.erased()) == 0
    found = json.loads(said("erase", typed, "--json", home=home, expect=DataError.exit_status))
    assert (found["new"], found["rows"], found["people_with_rows"]) == (0, 0, 0)
    assert found["without_rows"] == [{"person": typed, "near": [filed]}]
    assert json.loads(said("erase", filed, "--json", home=home))["rows"] == 2
    assert read_site_rows(home, task()).left_out == 2


@pytest.mark.parametrize(("filed", "typed"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_characters_may_be_composed_or_not(home: SiteHome, filed: Any, typed: Any) -> None:
    file_with(home, unicodedata.normalize(filed, "Müller"), "Muller")
    told = said("erase", unicodedata.normalize(typed, "Müller"), home=home)
    assert "holds 1 row of 1 person." in told
    assert read_site_rows(home, task()).left_out == 1
    assert len(read_site_rows(home, task()).rows) == 1


def test_those_who_are_found_are_left_out_though_another_is_not(home: SiteHome) -> None:
    told = said("erase", "P-003", "P-404", home=home, expect=DataError.exit_status)
    assert "1 of 2 people are left out" in told
    assert "1 of 2 people are in no row" in told
    assert read_site_rows(home, task()).left_out == 2
    assert len(home.erased()) == 1
    (home.folder / "rows.csv").write_text("patient,a,y\nP-001,1,no\n")
    again = said("erase", "P-003", home=home)  # whose rows were taken out of the file meanwhile
    assert "0 of 1 people are left out of every run that begins from now on; 1 already were." in again


def test_whoever_may_come_later_is_put_on_the_list_when_asked(home: SiteHome) -> None:
    told = said("erase", "P-404", "--not-yet", "--dry-run", home=home)
    assert "1 of 1 people would be left out" in told
    assert len(home.erased()) == 0
    told = said("erase", "P-404", "--not-yet", home=home)
    assert "1 of 1 people are left out" in told
    assert "'P-404' is in no row. On the list all the same." in told
    file_with(home, "P-404", "P-1")
    assert read_site_rows(home, task()).left_out == 1


def test_where_nobody_can_be_looked_for_nobody_is_said_to_be_found(home: SiteHome) -> None:
    (home.folder / "rows.csv").unlink()
    assert "rows.csv" in said("erase", "P-003", home=home, expect=FileMissing.exit_status)
    assert "Nobody was looked for: " in said("erase", "P-003", "--not-yet", home=home)
    assert json.loads(said("erase", "P-003", "--not-yet", "--json", home=home))["rows"] is None
    home.settings_file.write_text(SETTINGS.format(person=""))
    refused = said("erase", "P-004", home=home, expect=UsageError.exit_status)
    assert "no column is known that names the person of a row" in refused
    assert len(home.erased()) == 1


def test_the_units_of_tasks_name_people_where_the_settings_do_not(home: SiteHome) -> None:
    home.settings_file.write_text(SETTINGS.format(person='map.patient = { column = "Pat" }'))
    text = (home.folder / "rows.csv").read_text()
    (home.folder / "rows.csv").write_text(text.replace("patient", "Pat", 1))
    outbox = home.outbox()
    outbox.remember(KnownRun("wards-1", 1, task().canonical(), rows_said=0))
    outbox.close()
    assert "Column 'Pat' of rows.csv holds 2 rows of 1 person." in said("erase", "P-003", home=home)
    assert read_site_rows(home, task()).left_out == 2


def test_readmit_speaks_of_others_only_where_there_are_some(home: SiteHome) -> None:
    said("erase", "P-003", home=home)
    assert "the others" not in said("readmit", "P-003", home=home)
    assert "the others were not erased" in said("readmit", "P-003", home=home)


@given(people=st.lists(st.text(min_size=1).filter(str.strip), max_size=8), asked=st.text())
def test_exactly_those_who_were_erased_are_held(
    people: list[str], asked: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    erased = ErasedPeople(tmp_path_factory.mktemp("erased") / "erased.json", bytes(32))
    erased.erase(people, 1)
    holds = erased.holds()
    assert all(holds(person) for person in people)
    assert holds(asked) == (person_name(asked) in {person_name(person) for person in people})
    assert len(erased.readmit(people)) == len({person_name(person) for person in people})
    assert len(erased) == 0
