"""People who were erased: their rows leave, their names are nowhere, and nothing else of a site changes."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
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
from fedloop_clients.service.rows import FileRows
from fedloop_core.audit import AuditAction
from fedloop_core.cli import main
from fedloop_core.errors import ColumnMissing, SettingsInvalid
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
    site.settings_file.write_text(SETTINGS.format(person=""))
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
    assert "2 of 2 people are left out of every run that begins from now on" in told
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
    assert len(read_site_rows(home, by_row).rows) == 80
    assert "Tasks that name no unit column are refused" in said("erase", "P-003", home=home)
    with pytest.raises(SettingsInvalid, match="which column names the person") as caught:
        load_site_data(home, by_row)
    assert "P-003" not in str(caught.value)
    home.settings_file.write_text(SETTINGS.format(person='person_column = "patient"'))
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


@given(people=st.lists(st.text(min_size=1).filter(str.strip), max_size=8), asked=st.text())
def test_exactly_those_who_were_erased_are_held(
    people: list[str], asked: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    erased = ErasedPeople(tmp_path_factory.mktemp("erased") / "erased.json", bytes(32))
    erased.erase(people, 1)
    holds = erased.holds()
    assert all(holds(person) for person in people)
    assert holds(asked) == (asked.strip() in {person.strip() for person in people})
    assert len(erased.readmit(people)) == len({person.strip() for person in people})
    assert len(erased) == 0
