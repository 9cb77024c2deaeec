"""``fedloop site ledger``: what a person reads, what an auditor can check, and where it names what is wrong."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fedloop_clients.cli.ledger_words import block_sentences, plural_of_unit
from fedloop_clients.home import Membership, SiteHome
from fedloop_clients.outbox import KnownRun
from fedloop_clients.privacy import entries
from fedloop_clients.privacy.entries import Grounds
from fedloop_clients.privacy.export import FIELDS
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core.cli import main
from fedloop_core.errors import FileMissing, StorageError, UsageError
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.keys import SigningKey
from fedloop_core.privacy import charges
from fedloop_core.privacy.charges import Charge, NonPrivateCharge, PureCharge, SampledGaussianCharge
from fedloop_core.strict import Strict
from fedloop_core.task import Task

RUN = SampledGaussianCharge(noise_multiplier=1.1, sampling_rate=0.01, steps=1000)
MARCH, APRIL = 1_772_323_200, 1_775_001_600  # 2026-03-01 and 2026-04-01
GROUNDS = Grounds(task="aa", unit="patient_id", rows="bb", model="")


@pytest.fixture
def home(tmp_path: Path) -> SiteHome:
    site = SiteHome(tmp_path / "north")
    site.prepare()
    key = SigningKey.load_or_create(site.signing_key_file).verifying.raw.hex()
    site.store_membership(
        Membership(
            site="north", coordinator_key=key, fleet_address="a:1", hub_address="a:2", protocol=PROTOCOL, joined_unix=1
        )
    )
    return site


def run(*words: str, home: SiteHome, expect: int = 0) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), pytest.raises(SystemExit) as ended:
        main(["site", "ledger", *words, "--home", str(home.folder)])
    assert ended.value.code == expect, said.getvalue()
    return said.getvalue()


def spend(ledger: Ledger, run_id: str, charge: Charge, *blocks: str, grounds: Grounds | None = GROUNDS) -> None:
    reservation = ledger.reserve(charge, blocks, run_id, "round 1", grounds)
    if not isinstance(charge, NonPrivateCharge):
        ledger.settle(reservation, charge)


def fill(home: SiteHome) -> None:
    """Two runs on the oldest block, then a second block, and an evaluation."""
    ledger = home.ledger()
    now = [MARCH - 86_400]
    ledger._clock = lambda: now[0]
    ledger.open_block("original", 8.0, 1e-5)
    ledger.open_block("evaluation", 8.0, 1e-5)
    spend(ledger, "run-1", RUN, "original")
    now[0] = MARCH
    ledger.open_block("feedback-1", 8.0, 1e-5)
    spend(ledger, "run-2", RUN, "original", "feedback-1")
    spend(ledger, "run-2", PureCharge(epsilon=1.0), "evaluation")
    now[0] = APRIL
    ledger.open_block("feedback-2", 8.0, 1e-5)
    ledger.close()


def test_show_says_it_in_words_and_then_in_numbers(home: SiteHome) -> None:
    fill(home)
    words, numbers = run("show", home=home).split("\n\n", 1)
    assert words.splitlines() == [
        "patients first seen before 2026-03-01: 3.7 of 8 spent, 3.2 of it once for all by the first charge; about 16 more runs like the last.",
        "patients first seen from 2026-03-01 to 2026-04-01: 3.5 of 8 spent, 3.2 of it once for all by the first charge; about 17 more runs like the last.",
        "rows first seen since 2026-04-01: nothing of 8 spent.",
        "patients that are only evaluated on seen so far: 4.1 of 8 spent, 3.2 of it once for all by the first charge; about 4 more runs like the last.",
    ]
    assert numbers.splitlines()[1].split()[:4] == ["original", "3.7235", "8", "1e-05"]
    told = {block["block"]: block for block in json.loads(run("show", "--json", home=home))["blocks"]}
    assert told["original"]["runs"] == 2
    assert told["original"]["last_run"] == "run-2"
    assert told["feedback-1"]["epsilon_if_fixed_beforehand"] == pytest.approx(1.51537, abs=2e-4)
    assert 1.7117 <= told["feedback-1"]["epsilon"] <= 3.6  # at one order, which was chosen for the whole budget
    assert told["feedback-1"]["runs_left"] == pytest.approx(17.3, abs=0.2)
    assert not told["feedback-1"]["retired"]


def test_a_block_that_was_charged_by_row_and_by_patient_says_that_its_sum_is_of_neither(home: SiteHome) -> None:
    ledger = home.ledger()
    ledger.open_block("original", 8.0, 1e-5)
    spend(ledger, "run-1", RUN, "original")
    assert block_sentences(ledger.accounts())[0].endswith("more runs like the last.")
    spend(ledger, "run-2", RUN, "original", grounds=GROUNDS.model_copy(update={"unit": ""}))
    spend(ledger, "run-3", RUN, "original")
    ledger.close()
    (words, *_) = run("show", home=home).splitlines()
    assert words.startswith("patients and rows seen so far: 4 of 8 spent")
    assert (
        "It was charged by 'patient_id' and by row: each charge protects its own unit, and the sum is of no one unit."
        in words
    )
    assert words.endswith("A charge by row counts for a person about as many times as the person has rows.")
    (block,) = json.loads(run("show", "--json", home=home))["blocks"]
    assert (block["unit_column"], block["unit_columns"]) == ("patient_id", ["patient_id", ""])


def test_a_block_that_is_exhausted_or_has_no_budget_says_so() -> None:
    ledger = Ledger(":memory:", lambda: 0)
    ledger.open_block("original", 8.0, 1e-5)
    ledger.open_block("feedback-1", float("inf"), 1e-5)
    ledger.open_block("feedback-2", float("inf"), 1e-5)
    for number in range(18):
        spend(ledger, f"run-{number}", RUN, "original")
    spend(ledger, "run-2", RUN, "feedback-1")
    spend(ledger, "run-2", NonPrivateCharge(), "feedback-2", grounds=None)
    exhausted, free, exact = block_sentences(ledger.accounts())
    assert exhausted.endswith("7.9 of 8 spent; not one more run like the last: such a run leaves them out.")
    assert free.endswith("1.7 spent, and no budget is kept.")
    assert exact.endswith("no budget is kept, and exact answers were given: no epsilon bounds them.")
    assert [account.retired for account in ledger.accounts()] == [True, False, False]
    assert ledger.exhausted() == ("original",)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("patient", "patients"),
        ("patient_id", "patients"),
        ("Customers", "customers"),
        ("subject-nr", "subjects"),
        ("", "rows"),
        (None, "rows"),
        ("p#1", "units by 'p#1'"),
    ],
)
def test_units_are_called_what_their_column_is_called(column: str | None, words: str) -> None:
    assert plural_of_unit(column) == words


def test_verify_says_what_holds_and_who_vouches_for_it(home: SiteHome) -> None:
    fill(home)
    said = run("verify", home=home)
    assert "The ledger holds: 11 entries, head " in said
    assert "The newest signature, by this site's key, vouches for all of them" in said
    assert json.loads(run("verify", "--json", home=home))["signed"] == 11


def test_verify_names_the_first_entry_that_is_wrong(home: SiteHome) -> None:
    fill(home)
    with sqlite3.connect(home.ledger_file, isolation_level=None) as connection:
        connection.execute("DROP TRIGGER entry_is_never_changed")
        connection.execute(
            "UPDATE entry SET body = CAST(replace(CAST(body AS TEXT), 'run-1', 'run-9') AS BLOB) WHERE sequence >= 4"
        )
    connection.close()
    said = run("verify", home=home, expect=StorageError.exit_status)
    assert "entry 4 does not follow" in said


def test_an_export_can_be_checked_without_the_site(home: SiteHome, tmp_path: Path) -> None:
    fill(home)
    file = tmp_path / "north.jsonl"
    assert "Wrote 11 entries" in run("export", "--out", str(file), home=home)
    assert file.read_text() == run("export", home=home)
    assert json.loads(run("export", "--out", str(file), "--json", home=home)) == {"file": str(file), "entries": 11}
    header, *lines = (json.loads(line) for line in file.read_text().splitlines())
    assert header["site"] == "north"
    assert [line["sequence"] for line in lines] == list(range(1, 12))
    assert lines[3]["entry"]["charge"]["noise_multiplier"] == 1.1
    key = home.signing_key().verifying.raw.hex()
    stranger = SiteHome(tmp_path / "auditor")
    check = ("verify", "--export", str(file), "--key")
    assert "vouches for all of them" in run(*check, key, home=stranger)
    assert "who wrote the entries is not checked" in run(*check[:-1], home=stranger)
    missing = run(*check, "pub.txt", home=stranger, expect=UsageError.exit_status)
    assert "it takes the key itself, 64 hexadecimal digits, and no file" in missing
    other = SigningKey.generate().verifying.raw.hex()
    assert "not signed by this site's key" in run(*check, other, home=stranger, expect=StorageError.exit_status)
    assert "no public key" in run(*check, "ab", home=stranger, expect=UsageError.exit_status)


def test_an_export_says_what_for_by_the_digest_that_its_entries_name(home: SiteHome, tmp_path: Path) -> None:
    fill(home)
    assert json.loads(run("export", home=home).splitlines()[0])["tasks"] == {}
    document = {
        "format": 1,
        "name": "wards",
        "purpose": {"name": "care", "text": ""},
        "features": ({"kind": "numeric", "name": "a", "range": (0.0, 1.0)},),
        "label": {"kind": "classes", "name": "y", "classes": ("no", "yes")},
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": 2.0},
    }
    task = Task.model_validate(document)
    outbox = home.outbox()
    for number in (1, 2):
        outbox.remember(KnownRun(f"wards-{number}", 1, task.canonical(), rows_said=0))
    outbox.remember(KnownRun("old-1", 1, b"{}", rows_said=0))
    outbox.close()
    told = json.loads(run("export", home=home).splitlines()[0])["tasks"]
    assert told == {task.digest.hex(): {"name": "wards", "purpose": "care"}}


def test_an_export_that_was_cut_off_is_not_said_to_be_whole(home: SiteHome, tmp_path: Path) -> None:
    fill(home)
    ledger = home.ledger()
    head, earlier = ledger.head().digest.hex(), ledger.rows()[6].digest.hex()
    ledger.close()
    file, cut = tmp_path / "north.jsonl", tmp_path / "cut.jsonl"
    run("export", "--out", str(file), home=home)
    cut.write_text("".join(file.read_text().splitlines(keepends=True)[:-3]))
    said = run("verify", "--export", str(cut), home=home)
    assert "The export holds: 8 entries" in said
    assert "This holds up to entry 8 and says nothing about later ones" in said
    assert "fedloop server site show SITE" in said
    refused = run("verify", "--export", str(cut), "--head", head, home=home, expect=StorageError.exit_status)
    assert "no entry up to its last, 8, is the one that --head names" in refused
    assert "number 7; 1 more come after it." in run("verify", "--export", str(cut), "--head", earlier, home=home)
    assert "number 11; none comes after it." in run("verify", "--export", str(file), "--head", head, home=home)
    assert json.loads(run("verify", "--head", earlier, "--json", home=home))["compared"] == 7
    for no_digest in ("11", "x" * 64, "head.txt"):
        assert "no entry's digest" in run("verify", "--head", no_digest, home=home, expect=UsageError.exit_status)


ALTERED: dict[str, tuple[str, str, str]] = {
    "a charge lowered": ('"steps":1000', '"steps":1', "entry 4 does not follow"),
    "a line cut out": ('"sequence":5,', '"sequence":6,', "entry 6 does not follow"),
    "a digest": ('"previous":"0000', '"previous":"0001', "line 2 is not of a ledger's export"),
    "no export": ("fedloop-ledger-export-1", "something", "line 1 is not of a ledger's export"),
}


@pytest.mark.parametrize(("old", "new", "said"), ALTERED.values(), ids=ALTERED.keys())
def test_an_export_that_was_altered_is_refused(home: SiteHome, tmp_path: Path, old: str, new: str, said: str) -> None:
    fill(home)
    file = tmp_path / "north.jsonl"
    run("export", "--out", str(file), home=home)
    file.write_text(file.read_text().replace(old, new))
    assert said in run("verify", "--export", str(file), home=home, expect=StorageError.exit_status)


def test_an_export_that_is_not_there_is_named(home: SiteHome, tmp_path: Path) -> None:
    assert "cannot be read" in run("verify", "--export", str(tmp_path / "x"), home=home, expect=FileMissing.exit_status)


def _fields(model: Any) -> set[str]:
    return set(model.model_fields)


def test_the_export_explains_every_field_there_is() -> None:
    models = [
        value
        for module in (charges, entries)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Strict) and value is not Strict
    ]
    there = set[str]().union(*(_fields(model) for model in models))
    assert there == set(FIELDS)


@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_a_site_without_a_ledger_is_told_when_it_begins(home: SiteHome, command: str) -> None:
    assert "begins with the first run" in run(command, home=home, expect=UsageError.exit_status)
