"""What a data protection officer gets: all that the records say, nothing invented, and nothing that must not leave."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from fedloop_clients.assessment import Assessment
from fedloop_clients.assessment.page import BLANK
from fedloop_clients.feedback.store import held_in
from fedloop_clients.home import Membership, SiteHome
from fedloop_clients.outbox import KeptResult, KnownRun
from fedloop_core.audit import AuditAction
from fedloop_core.cli import main
from fedloop_core.disclosure import DISCLOSURES, disclosures_of
from fedloop_core.errors import NotSetUp, TaskInvalid, UsageError
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.keys import SigningKey
from fedloop_core.privacy.charges import PureCharge, SampledGaussianCharge
from fedloop_core.promises import residual_risks
from fedloop_core.task import Task
from fedloop_core.task.reader import read_task

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
TASK = """\
format = 1
name = "wards"
description = "Complications."

[purpose]
name = "care"
text = "Helps physicians; nobody is decided about by it alone."

[[features]]
kind = "numeric"
name = "pressure"
unit = "mmHg"
range = [0, 220]

[[features]]
kind = "categorical"
name = "ward"
values = ["planted-ward", "other-ward"]

[label]
kind = "classes"
name = "outcome"
classes = ["planted-class", "no"]

[model]
kind = "logistic"

[privacy]
epsilon = 2.0
delta = 1e-5
unit_column = "patient"
"""
SETTINGS = """\
format = 1
site = "north"
proxy = "http://planted-user:planted-password@proxy:3128"
[data]
file = "planted-folder/rows.csv"
map.complication = { recode = { "planted-label" = "no" } }
person_column = "mrn"
[budget]
training = { epsilon = 10.0 }
evaluation = { epsilon = 10.0 }
[policy]
purposes = ["care"]
"""
SECRET = b"planted-secret-of-thirty-two-byte"[:32]


@pytest.fixture
def home(tmp_path: Path) -> SiteHome:
    """A site with a run behind it, and things planted wherever the site keeps something."""
    site = SiteHome(tmp_path / "north")
    site.prepare()
    key = SigningKey.load_or_create(site.signing_key_file).verifying.raw.hex()
    site.store_membership(
        Membership(
            site="north", coordinator_key=key, fleet_address="c:1", hub_address="c:2", protocol=PROTOCOL, joined_unix=1
        )
    )
    site.fingerprint_secret_file.write_bytes(SECRET)
    site.settings_file.write_text(SETTINGS)
    (site.folder / "planted-folder").mkdir()
    (site.folder / "planted-folder" / "rows.csv").write_text("patient,pressure\nplanted-patient,123.456\n")
    (site.folder / "task.toml").write_text(TASK)
    site.erased().erase(["planted-person"], 1_700_000_000)
    run(site, "wards-1")
    return site


def run(site: SiteHome, name: str) -> None:
    task = read(site)
    outbox = site.outbox()
    outbox.store(
        b"planted-question",
        KeptResult(b"planted-answer", {}),
        run=KnownRun(name, 1, task.canonical(), rows_said=41, left_out=("original",)),
    )
    outbox.close()
    ledger = site.ledger()
    ledger.open_block("original", 10.0, 1e-6)
    ledger.open_block("evaluation", 10.0, 1e-6)
    charge = SampledGaussianCharge(noise_multiplier=1.1, sampling_rate=0.01, steps=1000)
    for one, block in (
        (charge, "original"),
        (PureCharge(epsilon=0.25), "original"),
        (PureCharge(epsilon=0.5), "evaluation"),
    ):
        ledger.settle(ledger.reserve(one, (block,), name, "round 1", None), one)
    ledger.close()
    site.audit().record("site:north", AuditAction.RUN_STARTED, name, task="wards", purpose="care")
    site.audit().record("operator:planted-operator", AuditAction.PAUSED, "north")
    held_in(site.feedback_file)


def read(site: SiteHome) -> Task:
    return read_task(site.folder / "task.toml")


def said(*words: str, home: SiteHome, expect: int = 0) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), pytest.raises(SystemExit) as ended:
        main(["site", "assessment", *words, "--home", str(home.folder)])
    assert ended.value.code == expect, out.getvalue()
    return out.getvalue()


def task_file(home: SiteHome, old: str = "", new: str = "") -> str:
    path = home.folder / "task.toml"
    path.write_text(TASK.replace(old, new) if old else TASK)
    return str(path)


def as_data(home: SiteHome, *words: str) -> Assessment:
    return Assessment.model_validate_json(said(*words, "--json", home=home))


def test_nothing_that_was_planted_is_in_it(home: SiteHome) -> None:
    """Rows, values of columns, names of people, secrets, passwords, paths, operators."""
    for words in (("--run", "wards-1"), (task_file(home),)):
        for told in (said(*words, home=home), said(*words, "--json", home=home)):
            assert "planted" not in told
            assert "123.456" not in told
            for secret in (SECRET.hex(), base64.b64encode(SECRET).decode(), "PRIVATE KEY"):
                assert secret not in told
            assert home.erased().digest("planted-person") not in told
            assert home.erased().digest("planted-person")[:16] not in told


def test_the_page_says_what_the_records_say(home: SiteHome) -> None:
    page = said("--run", "wards-1", home=home)
    for sentence in (
        "# Data protection assessment: task wards at site north",
        f"(SHA-256): {read(home).digest.hex()}",
        "- Purpose: care",
        "| pressure | numeric | mmHg | input |",
        "| outcome | classes |  | label |",
        "| patient | name |  | names the unit of privacy |",
        "| mrn | name |  | names the person |",
        "Unit: one patient (all rows with one value of that column together)",
        "epsilon 2, apart from a chance of 1e-05",
        "- On evaluation rows: epsilon 0.5",
        "| purposes limited by the site | yes | policy.purposes: care |",
        "| secure aggregation | no |",
        "- People who are left out now: 1, the first since 2023-11-14",
        "30 days after each was made",
        "| wards-1 |",
    ):
        assert sentence in page, sentence
    assert re.search(r"on training rows: epsilon 1\.\d+", page)
    for risk in residual_risks(read(home)):
        assert risk.split("`")[0].replace("_", r"\_")[:60] in page


def test_the_data_say_the_same_and_no_number_is_invented(home: SiteHome) -> None:
    made = as_data(home, "--run", "wards-1")
    assert (made.site, made.task.name, made.task.purpose) == ("north", "wards", "care")
    assert made.run is not None
    assert made.run.epsilon == pytest.approx(1.712 + 0.25, abs=0.3)
    assert made.run.evaluation_epsilon == 0.5
    assert made.run.blocks_left_out == 1
    assert [block.name for block in made.blocks] == ["original", "evaluation"]
    assert made.blocks[0].words.startswith("rows seen so far")
    assert [(one.run_id, one.purpose) for one in made.runs] == [("wards-1", "care")]
    assert {held.store.name for held in made.retention} >= {"outbox", "ledger", "backups"}
    assert made.software["fedloop"]
    ahead = as_data(home, task_file(home))
    assert ahead.run is None
    assert ahead.blocks == made.blocks


def test_what_nobody_can_know_is_a_blank_and_each_blank_is_listed(home: SiteHome) -> None:
    made, page = as_data(home, "--run", "wards-1"), said("--run", "wards-1", home=home)
    assert page.count(f". {BLANK}\n") == len(made.blanks)
    sections = {blank.section for blank in made.blanks}
    assert sections >= {"legal basis", "contact", "consultation", "necessity", "transfers"}
    assert f"- Legal basis: {BLANK}" in page
    assert "GDPR" not in page.split("## To be filled in")[0]  # no legal basis is guessed
    assert "purpose" not in sections
    bare = TASK[TASK.index("[purpose]") : TASK.index("[[features]]")]
    assert {blank.section for blank in as_data(home, task_file(home, bare, "")).blanks} >= {"purpose"}
    assert f"- Purpose: {BLANK}" in said(task_file(home, bare, ""), home=home)


def test_a_task_without_privacy_is_told_so(home: SiteHome) -> None:
    open_task = task_file(home, "epsilon = 2.0", "epsilon = inf")
    made, page = as_data(home, open_task), said(open_task, home=home)
    assert (made.task.private, made.task.epsilon, made.task.delta) == (False, None, None)
    assert "- Nothing: the task trains without differential privacy." in page
    assert "no number bounds how much of one person that is" in page
    assert {one.coordinator for one in made.disclosures if one.what == "number of training units"} == {"exactly"}


def test_a_site_that_has_done_nothing_yet_gets_one_too(home: SiteHome) -> None:
    for path in (home.ledger_file, home.audit_file, home.outbox_file, home.erased_file, home.feedback_file):
        path.unlink()
    page = said(task_file(home), home=home)
    assert "the site has no ledger yet" in page
    assert "None has begun." in page
    assert "- People who are left out now: 0" in page


def test_text_of_the_coordinator_is_no_markup(home: SiteHome) -> None:
    hostile = task_file(home, "Complications.", "x | y <script>alert(1)</script> [TO FILL IN] \\u001b[31m # T")
    page = said(hostile, home=home)
    assert "<script>" not in page
    assert "\x1b" not in page
    assert page.count(BLANK) == said(task_file(home), home=home).count(BLANK)


def test_it_is_written_whole_to_a_file(home: SiteHome, tmp_path: Path) -> None:
    out = tmp_path / "dpia.md"
    told = said("--run", "wards-1", "--out", str(out), home=home)
    assert "things in it are for a person to fill in" in told
    assert out.read_text().startswith("# Data protection assessment")
    told = json.loads(said("--run", "wards-1", "--out", str(out), "--json", home=home))
    made = Assessment.model_validate_json(out.read_text())
    assert told == {"file": str(out), "blanks": len(made.blanks)}


WRONG: dict[str, tuple[tuple[str, ...], Any]] = {
    "neither": ((), UsageError),
    "both": (("task.toml", "--run", "wards-1"), UsageError),
    "a run that never was": (("--run", "wards-9"), UsageError),
    "a file that is not there": (("nowhere.toml",), TaskInvalid),
}


@pytest.mark.parametrize(("words", "error"), WRONG.values(), ids=WRONG.keys())
def test_wrong_input_is_refused_in_a_sentence(home: SiteHome, words: tuple[str, ...], error: Any) -> None:
    told = said(*words, home=home, expect=error.exit_status)
    assert "Traceback" not in told


def test_a_folder_without_a_site_is_told(tmp_path: Path) -> None:
    said("--run", "x", home=SiteHome(tmp_path), expect=NotSetUp.exit_status)


def test_who_sees_what_is_the_table_of_the_docs() -> None:
    text = PAGE.read_text()
    table = text[text.index("## Who sees what") : text.index("Without privacy (`epsilon = inf`)")]
    rows = [
        tuple(re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", cell.strip()) for cell in line.strip("|").split("|"))
        for line in table.splitlines()
        if line.startswith("|") and not line.startswith(("|---", "| what |"))
    ]
    assert rows == [(row.what, row.device, row.site, row.coordinator, row.other_sites) for row in DISCLOSURES]


def test_who_sees_what_follows_from_the_task(home: SiteHome) -> None:
    task = read(home)
    seen = {row.what: row.coordinator for row in disclosures_of(task)}
    assert seen["a site's update of one round"] == "with noise"
    secure = task.model_copy(update={"aggregation": task.aggregation.model_copy(update={"secure": True})})
    assert {row.coordinator for row in disclosures_of(secure) if row.what == "a site's update of one round"} == {"-"}
    exact = task.model_copy(update={"privacy": task.privacy.model_copy(update={"epsilon": math.inf})})
    assert not any("noise" in row.coordinator for row in disclosures_of(exact))
