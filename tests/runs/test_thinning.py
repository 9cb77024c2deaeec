"""Which checkpoints are kept, and that a backup keeps them all while it is written."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fedloop_server.runs.thinning import nothing_is_thinned, thin


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    for name in ("round-0.safetensors", "round-1.safetensors", "round-2.safetensors", "journal.jsonl", "plan.json"):
        (folder / name).write_text(name)
    return folder


def names(run: Path) -> set[str]:
    return {path.name for path in run.iterdir()}


def test_only_checkpoints_go_and_only_those_that_are_not_kept(run: Path) -> None:
    assert thin(run, frozenset({"round-2.safetensors"})) == 2
    assert names(run) == {"round-2.safetensors", "journal.jsonl", "plan.json"}
    assert thin(run, frozenset({"round-2.safetensors"})) == 0


def test_while_a_backup_is_written_nothing_goes(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    before = names(run)
    with nothing_is_thinned(run.parent):
        assert thin(run, frozenset()) == 0
        assert names(run) == before
        with nothing_is_thinned(run.parent):  # two backups at once are as good as one
            assert thin(run, frozenset()) == 0
    assert "a backup is being written, or another run's go" in caplog.text
    assert thin(run, frozenset()) == 3


def test_a_coordinator_without_runs_can_be_backed_up(tmp_path: Path) -> None:
    with nothing_is_thinned(tmp_path / "runs"):
        pass


def test_what_cannot_be_deleted_harms_nothing(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    (run / "round-3.safetensors").mkdir()
    thin(run, frozenset())
    assert "journal.jsonl" in names(run)
    assert "stay" in caplog.text
