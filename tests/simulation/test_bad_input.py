"""Wrong input ends with one sentence and a status, or costs no more than the site that it came from."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

Wards = Any  # of conftest.py, as is what the fixtures give
Command = Callable[..., Any]
PRIVATE = ("--epsilon", "8", "--scaling", "range")


def nothing(wards: Wards) -> None:
    """The wards are right; what is asked is not."""


def unknown_key(wards: Wards) -> None:
    wards.change_task("[rounds]", "[rounds]\nlearning_rate = 3")


def task_gone(wards: Wards) -> None:
    wards.task.unlink()


def task_not_toml(wards: Wards) -> None:
    wards.task.write_text("format = = 1")


def epsilon_of_0(wards: Wards) -> None:
    wards.change_task("epsilon = inf", "epsilon = 0")


def delta_above_1(wards: Wards) -> None:
    wards.change_task("delta = 1e-4", "delta = 1.5")


def delta_of_a_half(wards: Wards) -> None:
    wards.change_task("delta = 1e-4", "delta = 0.5")


def data_gone(wards: Wards) -> None:
    shutil.rmtree(wards.data)


def no_tables(wards: Wards) -> None:
    for table in wards.data.iterdir():
        table.unlink()


def empty_table(wards: Wards) -> None:
    wards.table("north").write_text("")


def column_gone(wards: Wards) -> None:
    wards.change_north("a,b,outcome", "a,c,outcome")


def binary_table(wards: Wards) -> None:
    wards.table("north").write_bytes(b"a,b,outcome\n\xff\xfe,1,yes\n")


def odd_name(wards: Wards) -> None:
    wards.table("north").rename(wards.table("North Ward"))


def strangers_in_out(wards: Wards) -> None:
    wards.out.mkdir()
    (wards.out / "thesis.txt").write_text("years of work")


def earlier_simulation(wards: Wards) -> None:
    wards.out.mkdir()
    (wards.out / "summary.json").write_text("{}")


def out_is_a_file(wards: Wards) -> None:
    wards.out.write_text("x")


@dataclass(frozen=True)
class Wrong:
    """A change to the wards, options, the exit status, and the beginning and a part of the last line on stderr."""

    name: str
    change: Callable[[Wards], None]
    options: tuple[str, ...]
    status: int
    code: str
    words: str


WRONG = (
    Wrong("unknown key", unknown_key, (), 3, "FL-TASK-002", "rounds.learning_rate is not a known key"),
    Wrong("task file missing", task_gone, (), 3, "FL-TASK-001", "is neither a preset nor a file"),
    Wrong("task is not TOML", task_not_toml, (), 3, "FL-TASK-001", ""),
    Wrong("epsilon 0 in the task", epsilon_of_0, (), 3, "FL-TASK-002", "privacy.epsilon must be above 0"),
    Wrong("delta above 1", delta_above_1, (), 3, "FL-TASK-002", "privacy.delta must be below 1, not 1.5"),
    Wrong("epsilon 0", nothing, ("--epsilon", "0"), 5, "FL-PRIV-001", "epsilon must be above 0, not 0"),
    Wrong("epsilon -1", nothing, ("--epsilon", "-1"), 5, "FL-PRIV-001", "epsilon must be above 0, not -1"),
    Wrong("epsilon nan", nothing, ("--epsilon", "nan"), 5, "FL-PRIV-001", "epsilon must be above 0, not nan"),
    Wrong("epsilon is no number", nothing, ("--epsilon", "much"), 2, "FL-USE-001", "'much' is not a number"),
    Wrong("private, scaled per site", nothing, ("--epsilon", "8"), 5, "FL-PRIV-001", "scaling per site reads every"),
    Wrong("data folder missing", data_gone, (), 4, "FL-DATA-001", "data is not there"),
    Wrong("no table", no_tables, (), 4, "FL-DATA-001", "holds no CSV file"),
    Wrong("a table without a header", empty_table, (), 4, "FL-DATA-007", "north.csv is empty"),
    Wrong("a column missing", column_gone, (), 4, "FL-DATA-002", "north.csv has no column 'b'"),
    Wrong("a table that is no text", binary_table, (), 4, "FL-DATA-007", "north.csv:2: is not UTF-8"),
    Wrong("more sites than tables", nothing, ("--sites", "5"), 2, "FL-USE-001", "has the data of 3 sites, and 5"),
    Wrong("no sites", nothing, ("--sites", "0"), 2, "FL-USE-001", "there must be at least 1 site, not 0"),
    Wrong("no rounds", nothing, ("--rounds", "0"), 2, "FL-USE-001", "rounds.count must be at least 1, not 0"),
    Wrong("no devices", nothing, ("--devices", "0"), 2, "FL-USE-001", "0 is not in the range x>=1"),
    Wrong("budget 0", nothing, ("--budget", "0"), 2, "FL-USE-001", "the budget for life must be above 0"),
    Wrong("budget nan", nothing, ("--budget", "nan"), 2, "FL-USE-001", "the budget for life must be above 0"),
    Wrong("seed -1", nothing, ("--seed", "-1"), 2, "FL-USE-001", "a whole number from 0 to 2147483647, not -1"),
    Wrong("seed too great", nothing, ("--seed", "2147483648"), 2, "FL-USE-001", "not 2147483648"),
    Wrong("budget without privacy", nothing, ("--budget", "5"), 2, "FL-USE-001", "a budget needs privacy"),
    Wrong("a table that cannot name a site", odd_name, (), 2, "FL-USE-001", "North Ward.csv cannot name a site"),
    Wrong("strangers in --out", strangers_in_out, (), 2, "FL-USE-001", "holds thesis.txt, which no simulation wrote"),
    Wrong("strangers, forced", strangers_in_out, ("--force",), 2, "FL-USE-001", "holds thesis.txt"),
    Wrong("an earlier simulation", earlier_simulation, (), 2, "FL-USE-001", "out holds an earlier simulation"),
    Wrong("--out is a file", out_is_a_file, (), 2, "FL-USE-001", "cannot be a folder"),
)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_wrong_input_ends_with_a_sentence_and_a_status(wrong: Wrong, wards: Wards, simulate: Command) -> None:
    wrong.change(wards)
    told = simulate(*wards.arguments, *wrong.options)
    assert told.status == wrong.status
    assert told.stderr.startswith(f"{wrong.code}: ")
    assert wrong.words in told.stderr
    assert told.stdout == ""
    assert len(told.stderr.splitlines()) == (2 if wrong.code == "FL-TASK-002" else 1)
    told = simulate(*wards.arguments, *wrong.options, "--json")
    error = json.loads(told.stdout)["error"]
    assert (told.status, told.stderr) == (wrong.status, "")
    assert error["code"] == wrong.code
    assert wrong.words in error["message"] + "".join(error.get("problems", ()))
    if wards.out.is_dir():
        assert sorted(path.name for path in wards.out.iterdir()) in ([], ["summary.json"], ["thesis.txt"])


def test_more_sites_than_rows(wards: Wards, simulate: Command) -> None:
    told = simulate(wards.task, "--data", wards.table("north"), "--sites", 61, "--out", wards.out)
    assert (told.status, told.last_line[:12]) == (2, "FL-USE-001: ")
    assert "61 sites cannot share 60 rows" in told.stderr


@pytest.mark.parametrize(
    ("change", "options", "code", "words"),
    [
        (delta_of_a_half, PRIVATE, "FL-PRIV-001", "privacy.delta = 0.5 guards nothing here: it must be below 1/"),
        (nothing, (*PRIVATE, "--budget", "0.01"), "FL-PRIV-002", "block 'original' does not hold run"),
    ],
    ids=["delta not below 1/n", "a budget too small for the first run"],
)
def test_what_every_site_refuses_fails_the_run(
    change: Callable[[Wards], None],
    options: tuple[str, ...],
    code: str,
    words: str,
    wards: Wards,
    simulate: Command,
) -> None:
    change(wards)
    told = simulate(*wards.arguments, *options)
    assert told.status == 7
    assert told.last_line.startswith("FL-RUN-000: run-1 failed (FL-RUN-001): 0 of 3 sites may take part; 2 are needed.")
    for site in ("north", "south", "west"):
        assert f"{site} ({code}" in told.last_line
        assert f"site {site} refuses: {code}: {words}" in told.stderr  # the reader owns all sites of a simulation


def wrong_classes(count: int) -> Callable[[Wards], None]:
    return lambda wards: wards.change_north(",yes\n", ",maybe\n", count)


def no_rows(wards: Wards) -> None:
    wards.table("north").write_text("a,b,outcome\n")


def four_rows(wards: Wards) -> None:
    table = wards.table("north")
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:5]))


def one_class(wards: Wards) -> None:
    wards.change_north(",yes\n", ",no\n")


def not_numbers(count: int) -> Callable[[Wards], None]:
    def change(wards: Wards) -> None:
        with wards.table("north").open("a") as table:
            table.write("nan,1,yes\n1,inf,no\n" * (count // 2))

    return change


@dataclass(frozen=True)
class Poor:
    """A change to one ward, how many of its rows are skipped, what is said of them, and the rule that leaves it out."""

    name: str
    change: Callable[[Wards], None]
    skipped: int
    words: str
    rule: str


POOR = (
    Poor(
        "one row of a wrong class",
        wrong_classes(1),
        1,
        "north.csv:3: label 'outcome' is 'maybe', which is not one of no, yes.",
        "",
    ),
    Poor("rows of a wrong class", wrong_classes(20), 20, "20 rows skipped; the first: north.csv:3", "maximum-skipped"),
    Poor("no rows", no_rows, 0, "", "minimum-rows, all-classes"),
    Poor("one class only", one_class, 0, "", "all-classes"),
    Poor("two rows of no numbers", not_numbers(2), 2, "north.csv:62: column 'a' is not a finite number: 'nan'", ""),
    Poor("rows of no numbers", not_numbers(10), 10, "10 rows skipped; the first: north.csv:62", "maximum-skipped"),
)


@pytest.mark.parametrize("poor", POOR, ids=lambda poor: poor.name)
def test_a_site_with_poor_rows_skips_them_or_is_left_out_by_name(poor: Poor, wards: Wards, simulate: Command) -> None:
    poor.change(wards)
    told = simulate(*wards.arguments, "--seed", 1)
    assert told.status == 0
    assert poor.words in told.stderr
    summary = wards.summary()
    assert {site.name: site.skipped_rows for site in summary.sites} == {"north": poor.skipped, "south": 0, "west": 0}
    out = [(o.run, o.site, o.round, o.code, o.reason) for o in summary.left_out]
    assert out == ([("run-1", "north", 0, "FL-DATA-006", f"data gate: {poor.rule}")] if poor.rule else [])
    assert all(f"{site} is left out" not in told.stderr for site in ("south", "west"))
    assert [run.rounds for run in summary.runs] == [2]


LOOP = """
[export]
targets = ["onnx-int8"]
[feedback]
sketch_rows = 20
[retraining]
verdict_epsilon = 2.0
"""


@pytest.mark.slow
def test_a_site_left_out_and_a_budget_too_small_for_a_second_run(
    make_wards: Callable[[int], Wards], start: Callable[..., subprocess.Popen[str]]
) -> None:
    """The whole loop around a site with four rows; drift is told, and the ledgers forbid the run that would follow."""
    wards = make_wards(260)
    wards.change_task("epsilon = inf", "epsilon = 8.0")
    wards.change_task('"per-site"', '"range"')
    wards.change_task("count = 2", "count = 4\nevaluate_every = 0")
    wards.task.write_text(wards.task.read_text() + LOOP)
    four_rows(wards)
    process = start(*wards.arguments, "--devices", 2, "--budget", 15, "--seed", 3, "--json")
    printed, progress = process.communicate(timeout=200)
    assert process.returncode == 0, progress + printed
    assert "Traceback" not in progress
    summary = wards.summary()
    assert printed == summary.model_dump_json() + "\n"
    assert [(out.site, out.code) for out in summary.left_out] == [("north", "FL-DATA-006")]
    assert summary.drift.detected
    assert not summary.retrained
    assert "the privacy budget of south and west does not admit another run" in summary.decisions[-1]
    assert {device.site for device in summary.devices} == {"south", "west"}
    assert {device.version for device in summary.devices} == {1}
    assert all(site.epsilon is not None and site.epsilon <= 15 for site in summary.sites)
