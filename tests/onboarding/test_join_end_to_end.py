"""A site and a coordinator of real processes: join, doctor, renew, leave or be revoked."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedloop_clients.doctor import CHECKS, Level, Scene, examine
from fedloop_clients.home import SiteHome
from fedloop_core.cli import main
from fedloop_core.errors import SiteRevoked
from fedloop_core.federation.join import JoinToken

SECONDS = 120.0


def fedloop(*words: str, expect: int = 0) -> dict[str, Any]:
    """A command in this process, and what it told as JSON."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.delenv("FEDLOOP_HOME", raising=False)
        with pytest.raises(SystemExit) as ended:
            main([*words, "--json"])
    assert ended.value.code == expect, said.getvalue()
    told: dict[str, Any] = json.loads(said.getvalue())
    return told


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The home of a coordinator whose processes run."""
    home, log = tmp_path / "coordinator", tmp_path / "up.log"
    ports = [f"--{name}-port=0" for name in ("front", "hub", "superlink", "health")]
    fedloop(
        "server",
        "init",
        "--home",
        str(home),
        "--name",
        "trial",
        "--public",
        "127.0.0.1",
        "--listen",
        "127.0.0.1",
        *ports,
    )
    with log.open("wb") as written:
        up = subprocess.Popen(
            [str(Path(sys.executable).with_name("fedloop")), "server", "up", "--home", str(home), "--single-user"],
            stdout=written,
            stderr=written,
        )
    try:
        until(lambda: up.poll() is not None or b"all processes run;" in log.read_bytes())
        assert up.poll() is None, log.read_text()
        yield str(home)
    finally:
        up.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            up.wait(60)
        up.kill()
        up.wait()


def levels(home: SiteHome, token: JoinToken | None = None) -> dict[str, Level]:
    """The worst level of each check; devices are left out, since torch takes long."""
    order = (Level.OK, Level.WARNING, Level.PROBLEM)
    worst: dict[str, Level] = {}
    scene = Scene(home, token=token, seconds=20.0)
    for name, finding in examine(scene, [check for check in CHECKS if check.name != "devices"]):
        worst[name] = max(worst.get(name, Level.OK), finding.level, key=order.index)
    return worst


@pytest.mark.slow
def test_a_site_joins_a_coordinator_of_real_processes(server: str, tmp_path: Path) -> None:
    home = SiteHome(tmp_path / "north")
    added = fedloop("server", "site", "add", "north", "--home", server)
    token = tmp_path / "token"
    token.write_text(added["token"])
    before = levels(home, JoinToken.parse(added["token"]))
    assert {before[name] for name in ("route", "tls", "front", "clock")} == {Level.OK}
    words = ("site", "join", "--token-file", str(token), "--home", str(home.folder))
    joined = fedloop(*words, "--fingerprint", added["fingerprint"])
    assert (joined["site"], joined["already"]) == ("north", False)
    copy = SiteHome(tmp_path / "copy")
    refused = fedloop("site", "join", "--token-file", str(token), "--home", str(copy.folder), "--yes", expect=6)
    assert refused["error"]["fields"] == {"reason": "used"}
    for path in (home.membership_file, home.site_certificate):  # lost in a crash: the same command brings them back
        path.unlink()
    assert not fedloop(*words, "--yes")["already"]
    (home.folder / "data.csv").write_text("a,b\n1,2\n")
    after = levels(home)
    for name in ("files", "certificate", "route", "tls", "front", "hub", "clock", "version", "data"):
        assert after[name] is Level.OK, (name, after)
    old = home.site_certificate.read_bytes()
    fedloop("site", "renew", "--home", str(home.folder))
    assert home.site_certificate.read_bytes() != old
    assert levels(home)["hub"] is Level.OK
    fedloop("server", "site", "revoke", "north", "--home", server)
    until(lambda: levels(home)["hub"] is Level.PROBLEM)
    refused = fedloop("site", "renew", "--home", str(home.folder), expect=SiteRevoked.exit_status)
    assert refused["error"]["code"] == SiteRevoked.code
    again = fedloop("server", "site", "renew", "north", "--home", server)
    token.write_text(again["token"])
    stale = fedloop(*words, "--yes", expect=3)
    assert "--again" in stale["error"]["hint"]
    assert not fedloop(*words, "--yes", "--again")["already"]
    assert levels(home)["hub"] is Level.OK
