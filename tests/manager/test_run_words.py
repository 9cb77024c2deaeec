"""What commands say of runs, word by word."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedloop_server.cli.run_documents import RunLine
from fedloop_server.cli.run_tables import list_table
from fedloop_server.cli.run_telling import meaning_of
from fedloop_server.cli.run_words import every_words, parse_every


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("7d", "7 days"),
        ("1d12h", "1 day 12 hours"),
        ("30m", "30 minutes"),
        ("2w", "14 days"),
        ("90s", "1 minute 30 seconds"),
    ],
)
def test_an_interval_is_said_as_it_is_meant(typed: str, said: str) -> None:
    assert every_words(parse_every(typed)) == said


def test_a_code_is_explained_as_a_terminal_shows_it() -> None:
    assert "rule says which rule" in meaning_of("FL-TRUST-006")
    assert "`" not in "".join(map(meaning_of, ("FL-TRUST-006", "FL-UPD-001", "FL-TRUST-009")))


def test_list_explains_what_is_not_over_and_the_newest_end_and_is_brief() -> None:
    def line(run: str, status: str, ended: float | None, reason: str) -> RunLine:
        facts = {"run": run, "status": status, "ended_unix": ended, "reason": reason, "task": "wards", "round": 0}
        empty = dict.fromkeys(("version", "submitted_unix", "not_before_unix", "every_seconds", "started_unix", "took"))
        return RunLine.model_validate({**empty, **facts, "rounds": 3, "sites": 0, "expected_sites": 3})

    lines = [
        line("old", "failed", 1.0, "old reason"),
        line("new", "failed", 2.0, "long " * 100),
        line("waits", "queued", None, "waits: for room"),
    ]
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(list_table(lines))
    below = console.export_text().rpartition("┘")[2].strip().splitlines()
    assert [said.partition(":")[0] for said in below] == ["new", "waits"]
    assert len(below[0]) < 270
    assert below[0].rstrip().endswith("… (`fedloop run show new` says all of it)")
