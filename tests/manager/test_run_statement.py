"""What a version promises: each release with its guard and its payer, and the page for people."""

from __future__ import annotations

import json
import math
from contextlib import closing
from pathlib import Path

import pytest

from fedloop_core import cli
from fedloop_core.errors import RunError
from fedloop_core.privacy_statement import PrivacyStatement, statement_page
from fedloop_core.task import Task
from fedloop_server.app import _model
from fedloop_server.home import CoordinatorHome
from fedloop_server.manager.state import Status, Wish
from fedloop_server.runs.events import (
    AttemptStarted,
    Member,
    RoundClosed,
    RoundOpened,
    RunFinished,
    ScalerFixed,
    SiteAdmitted,
    SiteSpend,
    VersionRegistered,
)
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.statement import lineage_of, privacy_of
from fedloop_server.runs.warm import require_same_purpose


def task(
    epsilon: float, scaling: str = "federated", unit_column: str | None = None, purpose: str | None = None
) -> Task:
    return Task.model_validate(
        {
            "format": 1,
            "name": "wards",
            "features": ({"kind": "numeric", "name": "a", "range": (-4.0, 4.0)},),
            "label": {"kind": "classes", "name": "outcome", "classes": ("no", "yes")},
            "model": {"kind": "logistic"},
            "preprocessing": {"scaling": scaling},
            "privacy": {"epsilon": epsilon, "delta": 1e-5, "clipping_norm": 0.5, "unit_column": unit_column},
            "rounds": {"count": 1},
            "purpose": None if purpose is None else {"name": purpose, "text": "Helps physicians."},
        }
    )


def made(
    home: CoordinatorHome, name: str, chosen: Task, *, version: bool = True, private: bool = True
) -> PrivacyStatement:
    """A run of one round that has made a version, in folders, queue and registry."""
    plan = RunPlan(run_id=name, task=chosen, seed=1, private=private, expected_sites=1, durable=False)
    home.store_plan(plan)
    journal = home.journal(name)
    member = Member(site="north", weight=1, rows=40, rows_noised=True, data_fingerprint="0" * 64)
    spend = SiteSpend(
        site="north", run_epsilon=1.9, lifetime_epsilon=3.25, budget=8.0, delta=1e-5, evaluation_epsilon=1.0
    )
    journal.record(AttemptStarted(attempt=1, unix=1.0))
    journal.record(SiteAdmitted(member=member))
    journal.record(ScalerFixed(checkpoint="round-0"))
    journal.record(RoundOpened(round=1, asked=("north",), unix=2.0))
    journal.record(RoundClosed(round=1, folded=("north",), checkpoint="round-1", digest="0", spends=(spend,), unix=3.0))
    promised = privacy_of(plan, journal.state)
    with closing(home.registry()) as registry:
        registry.register_task(chosen)
        registry.open_run(name, chosen.digest.hex())
        if version:
            number = registry.register_version(name, promised, lineage_of(plan, journal.state)).number
            journal.record(VersionRegistered(version=number))
            journal.record(RunFinished(unix=4.0))
    with closing(home.queue()) as queue:
        entry = queue.submit(plan)
        job = entry.job.model_copy(update={"status": Status.FINISHED, "ended_unix": 4.0})
        queue.keep([entry], [entry.__class__(entry.number, job, Wish.NONE)])
    return promised


def said(home: CoordinatorHome, capture: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    capture.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", *words, "--home", str(home.folder)])
    found = capture.readouterr()
    assert ended.value.code == status, found
    return found.out + found.err


def test_a_page_and_a_document_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = CoordinatorHome(tmp_path)
    promised = made(home, "wards-1", task(2.0))
    told = json.loads(said(home, capsys, "statement", "wards-1", "--json"))
    assert (told["task"], told["version"]) == ("wards", 1)
    assert PrivacyStatement.model_validate_json(json.dumps(told["statement"])) == promised
    page = said(home, capsys, "statement", "wards")
    assert page.rstrip() == statement_page(promised, task="wards", version=1).rstrip()
    assert "epsilon is at most 1.90, apart from a chance of 1e-05" in page
    assert "| north | 1.900 | 1e-05 | 3.250 | 2.000 |" in page


def test_each_release_is_named_with_its_guard_and_its_payer(tmp_path: Path) -> None:
    promised = made(CoordinatorHome(tmp_path), "wards-1", task(2.0))
    assert {made.what: made.charged_to for made in promised.releases} == {
        "the update of each round": "training rows",
        "sums for the shared scaling of features": "training rows",
        "the number of training units": "training rows",
        "how good models are on evaluation rows": "evaluation rows",
        "whether the data gate lets the rows in": "training rows",
        "a digest of the training rows": "nobody",
    }
    assert not [made.what for made in promised.releases if "exact" in made.mechanism]
    assert {made.charged_to for made in promised.releases if "keyed" in made.mechanism} == {"nobody"}
    assert not any("each tells little" in sentence for sentence in promised.not_protected)
    assert promised.clipping_norm == 0.5
    assert any("several rows" in sentence for sentence in promised.not_protected)


def test_what_was_not_read_is_not_released_and_units_are_said(tmp_path: Path) -> None:
    promised = made(CoordinatorHome(tmp_path), "wards-1", task(2.0, scaling="range", unit_column="patient"))
    assert not [made for made in promised.releases if "scaling" in made.what]
    assert not any("several rows" in sentence for sentence in promised.not_protected)
    assert "any one `patient` (all rows with one value together)" in statement_page(promised, task="wards", version=1)


@pytest.mark.parametrize(("secure", "seen"), [(False, "each site's update"), (True, "the sum of the updates")])
def test_what_the_coordinator_sees_follows_the_aggregation(tmp_path: Path, secure: bool, seen: str) -> None:
    chosen = task(2.0)
    aggregation = chosen.aggregation.model_copy(update={"secure": secure})
    promised = made(CoordinatorHome(tmp_path), "wards-1", chosen.model_copy(update={"aggregation": aggregation}))
    assert promised.coordinator_sees == seen
    assert f"The coordinator saw {seen} of each round, and no row." in statement_page(promised, task="w", version=1)


def test_a_version_without_privacy_promises_nothing_in_so_many_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = CoordinatorHome(tmp_path)
    made(home, "open-1", task(math.inf))
    page = said(home, capsys, "statement", "open-1")
    assert "Nothing. It was made without differential privacy" in page
    assert "Nothing limits what the model or the updates tell about one row." in page
    assert "| none: exact | nobody |" in page
    assert "VOID" not in page


def test_a_rehearsal_from_a_seed_marks_each_guard_and_number_as_void(tmp_path: Path) -> None:
    promised = made(CoordinatorHome(tmp_path), "wards-1", task(2.0), private=False)
    page = statement_page(promised, task="wards", version=1)
    assert "Nothing. It was made with noise that can be repeated from a seed" in page
    assert "What is marked VOID below" in page
    before, _, numbers = page.partition("## Numbers\n\n")
    rows = [line for line in before.splitlines() if line.endswith((" rows |", " nobody |"))]
    assert len(rows) == len(promised.releases)
    assert all("| VOID: " in line for line in rows)
    assert numbers.startswith("VOID: the noise can be repeated, and these numbers bound nothing.")
    assert "epsilon" not in before.partition("## What is not protected")[0].lower()
    kept = statement_page(promised.model_copy(update={"private": True}), task="wards", version=1)
    assert "VOID" not in kept


def test_a_run_without_a_version_promises_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = CoordinatorHome(tmp_path)
    made(home, "wards-1", task(2.0), version=False)
    assert "has made no version, and promises nothing" in said(home, capsys, "statement", "wards-1", status=7)


def test_the_purpose_is_in_the_statement_and_in_the_lineage(tmp_path: Path) -> None:
    home, chosen = CoordinatorHome(tmp_path), task(2.0, purpose="care")
    promised = made(home, "wards-1", chosen)
    page = statement_page(promised, task="wards", version=1)
    assert "It was made for `care`: Helps physicians." in page
    with closing(home.registry()) as registry:
        assert registry.version("wards", 1).lineage.purpose == "care"
    assert "It was made for" not in statement_page(
        made(CoordinatorHome(tmp_path / "b"), "wards-1", task(2.0)), task="w", version=1
    )


WARM = {
    "the same purpose": ("care", "care", 0),
    "none before": (None, "care", 0),
    "none at all": (None, None, 0),
    "another purpose": ("care", "pricing", 7),
    "the purpose is dropped": ("care", None, 7),
}


@pytest.mark.parametrize(("before", "after", "status"), WARM.values(), ids=WARM.keys())
def test_a_run_that_starts_warm_keeps_the_purpose_of_the_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str | None, after: str | None, status: int
) -> None:
    home = CoordinatorHome(tmp_path)
    made(home, "wards-1", task(2.0, purpose=before))
    if status == 0:
        require_same_purpose(task(2.0, purpose=before), task(2.0, purpose=after), 1)
        return
    with pytest.raises(
        RunError, match=r"version 1 of wards was made for 'care', and this task .*: it cannot start from it"
    ):
        require_same_purpose(task(2.0, purpose=before), task(2.0, purpose=after), 1)
    plan = RunPlan(
        run_id="wards-2",
        task=task(2.0, purpose=after),
        seed=1,
        private=True,
        expected_sites=1,
        warm_from=1,
        durable=False,
    )
    with closing(home.registry()) as registry, pytest.raises(RunError, match="made for 'care'"):
        _model(home, registry, plan, None)
