"""What `fedloop site status` and `fedloop site up` say of a site that does not run, or has no data."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fedloop_clients.cli.up import when_all_run
from fedloop_clients.home import SiteHome
from fedloop_core.cli import main
from fedloop_core.processes import ProcessState, ProcessStatus, SupervisorStatus
from fedloop_core.processes.procfs import boot_id, facts
from fedloop_core.processes.progress import Progress
from fedloop_core.processes.status import write_status

Says = Callable[..., str]


@pytest.fixture
def says(joined_home: SiteHome, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Says:
    monkeypatch.setenv("FEDLOOP_HOME", str(joined_home.folder))

    def run(*options: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["site", "status", *options])
        assert ended.value.code == 0
        return capsys.readouterr().out

    return run


def test_a_site_without_data_says_so(says: Says, joined_home: SiteHome) -> None:
    file = joined_home.data_file
    assert f"data         {file} is not there, and the site trains nothing" in says()
    assert json.loads(says("--json"))["data"] == {"file": str(file), "missing": True}
    file.write_text("age\n1\n")
    assert f"data         {file}\n" in says()
    assert json.loads(says("--json"))["data"] == {"file": str(file), "missing": False}


def test_the_first_words_of_a_site_without_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "data.csv"
    told = when_all_run(Progress(tmp_path, None, "look", as_json=False), file)
    told()
    run, data = capsys.readouterr().out.splitlines()
    assert "all processes run" in run
    assert f"{file} is not there" in data
    file.touch()
    told()
    assert "is not there" not in capsys.readouterr().out


def test_a_supervisor_that_was_killed(says: Says, joined_home: SiteHome) -> None:
    assert "no supervisor runs here: `fedloop site up` starts it" in says()
    with subprocess.Popen(["/bin/true"]) as dead:
        dead.wait()
    with subprocess.Popen(["/bin/sleep", "600"]) as left:
        lives = facts(left.pid)
        assert lives is not None
        pids = (("daemon", dead.pid, 1), ("relay", left.pid, lives.started_ticks))
        processes = tuple(
            ProcessStatus(name=name, pid=pid, started_ticks=ticks, state=ProcessState.RUNNING, since_unix=1, log="")
            for name, pid, ticks in pids
        )
        status = SupervisorStatus(pid=dead.pid, boot_id=boot_id(), started_ticks=1, started_unix=1, processes=processes)
        write_status(joined_home.folder, status)
        told, said = json.loads(says("--json")), says()
        left.kill()
    assert not told["supervised"]
    assert [(one["pid"], one["state"]) for one in told["processes"]] == [(None, "stopped"), (left.pid, "running")]
    assert "no supervisor runs here: `fedloop site up` starts it" in said
    assert "daemon: stopped" in said
    assert f"relay: running as process {left.pid}" in said
