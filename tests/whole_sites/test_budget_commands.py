"""What people are told of the budget for whole sites: before a run, when it is refused, and over all runs."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.manager.test_run_commands import Shell, make_coordinator

from fedloop_core import cli
from fedloop_core.task.reader import read_task
from fedloop_server.home import CoordinatorHome
from fedloop_server.runs.paying import charge_of_task
from fedloop_server.settings import ServerSettings
from fedloop_server.settings_text import settings_text

HIDDEN = "\n[central_privacy]\nepsilon = 8.0\n"


@pytest.fixture
def hidden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A coordinator with three active sites, and beside it a task that hides whole sites."""
    home = make_coordinator(tmp_path)
    (home.folder / "server.toml").write_text(settings_text(ServerSettings.rehearsal()), encoding="utf-8")
    file = home.folder.parent / "task.toml"
    file.write_text(file.read_text(encoding="utf-8") + HIDDEN, encoding="utf-8")
    return Shell(home.folder, capsys)


def task_file(shell: Shell) -> str:
    return str(shell.home.parent / "task.toml")


def spend(shell: Shell, run: str, *sites: str) -> None:
    charge = charge_of_task(read_task(Path(task_file(shell))))
    assert charge is not None
    with closing(CoordinatorHome(shell.home).whole_sites()) as book:
        assert book.charge(run, "wards", sites, charge).sites == sites


def server(shell: Shell, *words: str) -> str:
    shell.capture.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main(["server", *words, "--home", str(shell.home)])
    told = shell.capture.readouterr()
    assert ended.value.code == 0, told
    return told.out


def test_a_dry_run_says_what_it_would_cost_whole_sites_and_who_does_not_hold_it(hidden: Shell) -> None:
    found: dict[str, Any] = hidden.json("start", task_file(hidden), "--dry-run")["whole_sites"]
    assert (found["epsilon"], found["budget"], found["refusal"]) == (8.0, 10.0, "")
    assert {(site["site"], site["spent"], site["holds"], site["runs_left"]) for site in found["sites"]} == {
        (name, 0.0, True, 1) for name in ("north", "south", "west")
    }
    spend(hidden, "earlier", "north")
    said = " ".join(hidden("start", task_file(hidden), "--dry-run").split())
    assert "whole sites: epsilon 8 at delta 1e-05 for each; the most that one has spent is" in said
    assert "left out, since their budget as whole sites does not hold the run: north." in said
    assert "Nothing was started" in said


def test_a_run_that_too_few_sites_hold_is_refused_with_one_sentence_before_it_is_queued(hidden: Shell) -> None:
    spend(hidden, "earlier", "north", "south")
    said = hidden("start", task_file(hidden), status=5)
    assert (
        "1 site holds this run in the budget for whole sites and 2 are needed: site north as a whole has spent" in said
    )
    assert hidden.json("list") == {"runs": []}
    dry = hidden("start", task_file(hidden), "--dry-run")
    assert "the run would be refused" in " ".join(dry.split())
    assert len(json.loads(server(hidden, "budget", "--json"))["sites"]) == 2  # nothing was charged by asking


def test_the_budget_is_shown_by_site_and_in_the_status(hidden: Shell) -> None:
    before = json.loads(server(hidden, "budget", "--json"))
    assert (before["epsilon"], before["delta"], before["sites"]) == (10.0, 1e-5, [])
    assert "No run has been charged to a whole site yet." in server(hidden, "budget")
    assert "Whole sites" not in server(hidden, "status")
    spend(hidden, "earlier", "north", "south")
    (north, south) = json.loads(server(hidden, "budget", "--json"))["sites"]
    assert (north["site"], north["runs"], north["last_run"], north["runs_left"]) == ("north", 1, "earlier", 0)
    assert 8.0 <= north["spent"] == south["spent"] <= 10.0
    shown = server(hidden, "budget")
    assert "All runs together may spend epsilon 10 at delta 1e-05 on each whole site, for life." in shown
    assert f"{north['spent']:.3f}" in shown
    assert max(map(len, shown.splitlines()[2:])) <= 80
    assert f"has spent most, epsilon {north['spent']:.3f} of 10 for life" in server(hidden, "status")
    assert json.loads(server(hidden, "status", "--json"))["whole_sites"]["sites"] == [north, south]
