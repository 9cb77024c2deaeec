"""``fedloop server`` as people type it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedloop_core.cli import main
from fedloop_core.processes import ProcessState, ProcessStatus, SupervisorStatus
from fedloop_core.processes.procfs import boot_id, facts
from fedloop_core.processes.status import write_status

Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Exit status and output of a command."""
    monkeypatch.setenv("FEDLOOP_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["server", *words])
        status = ended.value.code
        assert isinstance(status, int)
        return status, capsys.readouterr().out

    return run


def _told(typed: Typed, *words: str) -> Any:
    status, out = typed(*words, "--json")
    assert status == 0, out
    return json.loads(out)


INIT = ("init", "--name", "hearts", "--public", "localhost", "--front-port", "0")


def test_a_coordinator_from_an_empty_folder(typed: Typed) -> None:
    assert typed("site", "list")[0] == 3
    assert len(_told(typed, *INIT, "--dry-run")["missing"]) == 8
    told = _told(typed, *INIT)
    assert len(told["fingerprint"].split()) == 8
    assert _told(typed, "init")["made"] == []
    status, out = typed("init", "--name", "other", "--json")
    assert (status, json.loads(out)["error"]["code"]) == (3, "FL-SET-002")
    assert typed("init", "--key", "/k")[0] == 2
    standing = _told(typed, "status")
    assert (standing["name"], standing["processes"], standing["sites"], standing["runs"]) == ("hearts", [], [], [])
    assert not standing["supervised"]
    assert "No process has run" in typed("status")[1]


def test_the_status_after_the_supervisor_was_killed(typed: Typed, tmp_path: Path) -> None:
    _told(typed, *INIT)
    with subprocess.Popen(["/bin/true"]) as dead:
        dead.wait()
    with subprocess.Popen(["/bin/sleep", "600"]) as left:
        lives = facts(left.pid)
        assert lives is not None
        pids = (("service", dead.pid, 1), ("superlink", left.pid, lives.started_ticks))
        processes = tuple(
            ProcessStatus(name=name, pid=pid, started_ticks=ticks, state=ProcessState.RUNNING, since_unix=1, log="")
            for name, pid, ticks in pids
        )
        status = SupervisorStatus(pid=dead.pid, boot_id=boot_id(), started_ticks=1, started_unix=1, processes=processes)
        write_status(tmp_path / "c", status)
        told, said = _told(typed, "status"), typed("status")[1]
        left.kill()
    assert not told["supervised"]
    assert [(p["pid"], p["state"]) for p in told["processes"]] == [(None, "stopped"), (left.pid, "running")]
    assert "no supervisor runs here: `fedloop server up` starts it" in said
    assert "service    stopped  -" in said


def test_sites_are_invited_and_shut_out(typed: Typed, tmp_path: Path) -> None:
    from fedloop_server.home import CoordinatorHome
    from fedloop_server.runs.heads import LedgerHead

    fingerprint = _told(typed, *INIT)["fingerprint"]
    added = _told(typed, "site", "add", "north", "--expires", "2h")
    assert added["token"].startswith("fedloop-join-1.")
    assert added["fingerprint"] == fingerprint
    assert 7100 < added["expires_unix"] - time.time() < 7300
    for wrong in (("add", "north"), ("add", "No Name"), ("add", "south", "--expires", "soon"), ("show", "nobody")):
        assert typed("site", *wrong)[0] == 2
    renewed = _told(typed, "site", "renew", "north")
    assert renewed["token"] != added["token"]
    assert _told(typed, "site", "remove-token", "north")["removed"]
    assert not _told(typed, "site", "remove-token", "north")["removed"]
    assert _told(typed, "site", "revoke", "north", "--reason", "left the study")["state"] == "revoked"
    assert "left the study" in typed("site", "show", "north")[1]
    assert _told(typed, "site", "show", "north")["ledger_head"] == ""
    opened = CoordinatorHome(tmp_path / "c")
    opened.members().advance_ledger_head("north", LedgerHead(11, bytes([7] * 32)))
    shown = _told(typed, "site", "show", "north")
    assert (shown["ledger_entries"], shown["ledger_head"]) == (11, "07" * 32)  # for `site ledger verify --head`
    assert "revoked" in typed("site", "list")[1]
    assert "fedloop-join-1." in typed("site", "renew", "north")[1]


def test_a_site_that_is_silent_is_told_as_that(typed: Typed, tmp_path: Path) -> None:
    from fedloop_server.home import CoordinatorHome
    from fedloop_server.membership import SiteState
    from fedloop_server.membership.tables import MemberRow

    _told(typed, *INIT)
    _told(typed, "site", "add", "north")
    out = typed("site", "list")[1]
    assert "unknown" not in out
    assert "+0 s" not in out
    assert re.search(r"\nnorth +invited +- +- +never +- ", out)
    members = CoordinatorHome(tmp_path / "c").members()
    said: list[str] = []
    for quiet in (5, 40, 400):
        with members.database.writing() as session:
            row = session.get(MemberRow, "north")
            assert row is not None
            row.state, row.activity, row.last_seen_unix = SiteState.ACTIVE.value, "idle", int(time.time()) - quiet
        said.append(typed("status")[1])
        assert _told(typed, "site", "show", "north")["connected"] == (quiet == 5)
    assert re.search(r"active +idle ", said[0])
    assert re.search(r"active +not connected for 4[0-9] s ", said[1])
    assert re.search(r"active +not connected for 6 min 4[0-9] s ", said[2])


def test_the_authority_is_replaced(typed: Typed) -> None:
    fingerprint = _told(typed, *INIT)["fingerprint"]
    typed("site", "add", "north")
    assert typed("authority", "finish-roll")[0] == 2
    rolled = _told(typed, "authority", "roll")
    assert (rolled["going_on"], rolled["waiting"], rolled["tokens"]) == (True, [], ["north"])
    assert "north" in typed("authority", "finish-roll", "--dry-run")[1]
    assert _told(typed, "authority", "show")["next"]
    assert not _told(typed, "authority", "finish-roll")["going_on"]
    shown = _told(typed, "authority", "show")
    assert shown["current"]["fingerprint"] == shown["compared_by_phone"] != fingerprint


def test_the_command_is_installed(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("fedloop")
    command = [str(program), "server", "status", "--home", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert "fedloop server init" in done.stderr


def test_a_site_that_lost_its_ledger_is_taken_back(typed: Typed, tmp_path: Path) -> None:
    from fedloop_server.home import CoordinatorHome
    from fedloop_server.runs.heads import LedgerHead

    _told(typed, *INIT)
    _told(typed, "site", "add", "north")
    home = CoordinatorHome(tmp_path / "c")
    assert _told(typed, "site", "accept-ledger", "north") == {"site": "north", "given_up_sequence": 0}
    home.members().advance_ledger_head("north", LedgerHead(7, b"x" * 32))
    status, out = typed("site", "accept-ledger", "north", "--yes")
    assert (status, "Entry 7" in out) == (0, True)
    home.members().advance_ledger_head("north", LedgerHead(3, b"y" * 32))
    assert [entry.subject for entry in home.audit().entries() if entry.action == "override"] == ["north", "north"]
    assert typed("site", "accept-ledger", "nobody", "--yes")[0] == 2


def test_the_keys_of_active_sites_are_listed_for_secure_aggregation(typed: Typed, tmp_path: Path) -> None:
    from fedloop_core.keys import SigningKey
    from fedloop_core.secure_aggregation.consortium import consortium_fingerprint, read_consortium
    from fedloop_server.home import CoordinatorHome
    from fedloop_server.membership import SiteState
    from fedloop_server.membership.tables import MemberRow

    _told(typed, *INIT)
    keys = {name: SigningKey.generate().verifying.raw for name in ("north", "south", "west", "east")}
    members = CoordinatorHome(tmp_path / "c").members()
    for name, key in keys.items():
        _told(typed, "site", "add", name)
        with members.database.writing() as session:
            row = session.get(MemberRow, name)
            assert row is not None
            row.signing_key = key
            row.state = (SiteState.REVOKED if name == "east" else SiteState.ACTIVE).value
    file = tmp_path / "consortium.toml"
    status, out = typed("consortium", "export", "--out", str(file))
    document = read_consortium(file)
    assert (status, dict(document.sites)) == (0, {name: keys[name].hex() for name in ("north", "south", "west")})
    assert consortium_fingerprint(document.consortium()) in out
    assert typed("consortium", "export")[1] == file.read_text()
    assert _told(typed, "consortium", "export")["sites"] == dict(document.sites)
    members.revoke("west", "left")
    status, out = typed("consortium", "export", "--json")
    assert (status, json.loads(out)["error"]["message"]) == (
        2,
        "2 sites are active; secure aggregation takes 3 to 500.",
    )
