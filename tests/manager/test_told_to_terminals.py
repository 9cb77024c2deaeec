"""What sites say of themselves, as commands print it: a terminal obeys none of it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from fedloop_core.commands import tell_lines, tell_table
from fedloop_server.cli.run_tables import make_table
from fedloop_server.cli.sites import site_json, tell_sites
from fedloop_server.home import CoordinatorHome
from fedloop_server.membership.records import Activity, ActivityKind

EVIL = "\x1b]0;pwned\x07\x1b[2Jrun\n1"


def test_cells_and_lines_are_printed_as_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    tell_table(("SITE", "RUN"), [("north", EVIL), ("a long name", "x")])
    tell_lines({"software_version": EVIL, "last_seen_unix": 0, "reason": ""})
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 6
    assert all(line.isprintable() for line in printed.splitlines())
    assert r"north        \x1b]0;pwned\x07\x1b[2Jrun\n1" in printed
    assert "last seen               never" in printed
    assert "reason                  -" in printed


def test_sites_are_listed_and_shown_without_what_they_would_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = CoordinatorHome(tmp_path)
    members = home.members()
    members.add("north")
    doing = Activity(ActivityKind.TRAINING, run_id=EVIL, code=EVIL)
    members.record_report("north", doing, site_unix=1, protocol=1, software_version=EVIL)
    tell_sites(members.sites())
    tell_lines(site_json(members.site("north")))
    printed = capsys.readouterr().out
    assert r"\x1b]0;pwned" in printed
    assert all(line.isprintable() for line in printed.splitlines())


def test_tables_of_runs_too() -> None:
    out = io.StringIO()
    Console(file=out, width=200).print(make_table("", ("site", "why"), [("odd", EVIL)]))
    assert all(line.isprintable() for line in out.getvalue().splitlines())
