"""One bundle runs and no other: over Flower's real processes, with bundles whose code would write a file."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.processes.supervising import Running, wait_for

from fedloop_core.durable import write_secret
from fedloop_core.errors import ProcessFailed
from fedloop_core.federation.bundle import BUNDLE_DIGEST, HOME_KEY, RUN_KEY, install_bundle, write_bundle
from fedloop_core.federation.closed_apps import APP_LOG, APP_PROGRAMS, write_app_programs
from fedloop_core.processes import PortOpen, ProcessSpec, flower_environment
from fedloop_core.processes.environment import python_environment
from fedloop_server.manager.flower import FlowerControl
from fedloop_server.manager.state import FlowerPhase

HOSTILE = """
import json
import time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

app = ServerApp()
client = ClientApp()

@app.main()
def main(grid, context):
    Path({server!r}).write_text("hostile")
    until = time.monotonic() + 60
    while not (nodes := list(grid.get_node_ids())) and time.monotonic() < until:
        time.sleep(0.2)
    replies = grid.send_and_receive([Message(RecordDict(), dst_node_id=node, message_type="train") for node in nodes])
    Path({server!r} + ".replies").write_text(json.dumps([reply.has_error() for reply in replies]))

@client.train()
def train(message, context):
    Path({client!r}).write_text("hostile")
    return Message(RecordDict(), reply_to=message)
"""
PROJECT = """
[project]
name = "fedloop"
version = "{version}"
description = "hostile"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fedloop"
[tool.flwr.app.components]
serverapp = "hostile:app"
clientapp = "hostile:client"
"""
LEADS_OUT = f"1.0.0.{BUNDLE_DIGEST[:8]}/../../../../outside/x"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _environment(home: Path, *, programs: Path | None = None) -> dict[str, str]:
    path = {"PATH": f"{programs}{os.pathsep}/usr/bin:/bin"} if programs else {}
    return python_environment() | flower_environment(home) | path | {"OMP_NUM_THREADS": "1"}


def _hostile(folder: Path, version: str) -> tuple[Path, Path]:
    """The bundle's folder is beside its two files; returns those of server and client."""
    server, client = folder / "server-was-here", folder / "client-was-here"
    (folder / "app").mkdir(parents=True)
    (folder / "app" / "pyproject.toml").write_text(PROJECT.format(version=version))
    (folder / "app" / "hostile.py").write_text(HOSTILE.format(server=str(server), client=str(client)))
    return server, client


@dataclass
class Deployment:
    """SuperLink, SuperNode and their superexecs; the server's apps are closed or not, the client's always are."""

    folder: Path
    port: int
    running: Running

    def run(self, app: Path, **config: str) -> int:
        return self._control(app).start(config)

    def ended(self, run: int) -> str:
        """Flower's words for how it ended."""
        write_bundle(self.folder / "ours")
        control = self._control(self.folder / "ours")
        wait_for(lambda: control.status(run).phase is FlowerPhase.ENDED, "the run has ended")
        return control.status(run).words

    def _control(self, app: Path) -> FlowerControl:
        return FlowerControl(self.folder / "cli" / secrets.token_hex(4), f"127.0.0.1:{self.port}", None, app=app)

    @property
    def app_log(self) -> str:
        path = self.folder / "serverapp.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Flower home with our bundle and no other."""
    folder = tmp_path_factory.mktemp("bundle")
    write_bundle(folder / "app")
    install_bundle(folder / "app", folder / "home")
    return folder / "home"


@pytest.fixture
def deploy(supervise: Callable[..., Running], tmp_path: Path, bundle: Path) -> Callable[..., Deployment]:
    def start(*, server_closed: bool) -> Deployment:
        port, node_port, secret = _free_port(), _free_port(), tmp_path / "secret"
        write_secret(secret, secrets.token_hex(32).encode())
        (tmp_path / "cli").mkdir()
        bin_folder = Path(sys.executable).parent
        server_home, client_home = tmp_path / "server", tmp_path / "client"
        shutil.copytree(bundle, client_home)
        if server_closed:
            shutil.copytree(bundle, server_home)
        write_app_programs(tmp_path / "server-bin", ["flwr-serverapp"])
        write_app_programs(tmp_path / "client-bin", ["flwr-clientapp"])
        shared = ("--superexec-auth-secret-file", str(secret))
        own = ("--isolation", "process", "--insecure", *shared)

        def spec(name: str, words: tuple[str, ...], environment: dict[str, str], ready: int | None) -> ProcessSpec:
            program = bin_folder / f"flower-{name.partition('-')[0]}"
            probe = None if ready is None else PortOpen(ready)
            return ProcessSpec(
                name, (str(program), *words), environment, None, tmp_path, stop_seconds=5.0, ready=probe, confined=True
            )

        running = supervise(
            spec(
                "superlink",
                ("--port", str(port), "--database", str(tmp_path / "state.db"), *own),
                _environment(tmp_path / "link"),
                port,
            ),
            spec(
                "superexec-server",
                ("--runtime-api-address", f"127.0.0.1:{port}", "--insecure", *shared),
                _environment(server_home, programs=tmp_path / "server-bin" if server_closed else bin_folder)
                | {APP_LOG: str(tmp_path / "serverapp.log")},
                None,
            ),
            spec(
                "supernode",
                ("--superlink", f"127.0.0.1:{port}", "--port", str(node_port), *own),
                _environment(tmp_path / "node"),
                node_port,
            ),
            spec(
                "superexec-client",
                ("--runtime-api-address", f"127.0.0.1:{node_port}", "--insecure", *shared),
                _environment(client_home, programs=tmp_path / "client-bin"),
                None,
            ),
        )
        wait_for(running.healthy, "Flower runs")
        return Deployment(tmp_path, port, running)

    return start


@pytest.mark.slow
def test_our_bundle_runs_and_a_hostile_one_does_not(deploy: Callable[..., Deployment], tmp_path: Path) -> None:
    flower = deploy(server_closed=True)
    write_bundle(tmp_path / "ours")
    run = flower.run(tmp_path / "ours", **{HOME_KEY: str(tmp_path / "home"), RUN_KEY: "run-1"})
    assert flower.ended(run).startswith("finished")
    assert "there is no run run-1" in flower.app_log  # our code was reached
    server, client = _hostile(tmp_path / "hostile", "1.0.0")
    run = flower.run(tmp_path / "hostile" / "app")
    assert flower.ended(run) == "finished:failed"
    assert "Permission denied" in flower.app_log
    server_out, client_out = _hostile(tmp_path / "leads-out", LEADS_OUT)  # which SuperLink takes
    assert flower.ended(flower.run(tmp_path / "leads-out" / "app")) == "finished:failed"
    assert "leads out of the apps folder" in flower.app_log
    assert not any(path.exists() for path in (server, client, server_out, client_out, tmp_path / "outside"))


@pytest.mark.slow
def test_a_site_runs_no_hostile_bundle_even_when_the_coordinator_does(
    deploy: Callable[..., Deployment], tmp_path: Path
) -> None:
    flower = deploy(server_closed=False)
    server, client = _hostile(tmp_path / "hostile", "1.0.0")
    flower.ended(flower.run(tmp_path / "hostile" / "app"))
    assert server.exists()  # it is as hostile as it says
    assert json.loads(server.with_name(server.name + ".replies").read_text()) == [True]
    assert not client.exists()
    assert "Permission denied" in flower.running.log("superexec-client")


_INSTALLS = """
import sys
from pathlib import Path
from flwr.cli.build import build_fab_from_files
from flwr.cli.install import install_from_fab
from flwr.common.config import get_project_config, get_project_dir
from fedloop_core.federation.closed_apps import close_apps
import os
home, version, closes, preplaced = Path(os.environ["FLWR_HOME"]), sys.argv[1], sys.argv[2] == "closed", sys.argv[3]
project = Path(sys.argv[4]).read_text()
if closes:
    close_apps(home)
if preplaced:
    print(get_project_config(get_project_dir("fedloop/fedloop", version, preplaced))["project"]["description"])
else:
    print(install_from_fab(build_fab_from_files({"pyproject.toml": project.encode(), "hostile.py": b"app = 1"})[0], skip_prompt=True))
"""


@pytest.mark.parametrize("kind", ["new", "placed before"])
@pytest.mark.parametrize("door", ["open", "closed"])
def test_a_version_that_leads_out_of_the_apps_folder_is_stopped(
    kind: str, door: str, bundle: Path, tmp_path: Path
) -> None:
    home = tmp_path / "a" / "home"
    shutil.copytree(bundle, home)
    project = tmp_path / "project.toml"
    project.write_text(PROJECT.format(version=LEADS_OUT))
    (tmp_path / "outside").mkdir()
    placed = "00000000" if kind == "placed before" else ""
    if placed:
        (tmp_path / "outside" / f"x.{placed}").mkdir()
        (tmp_path / "outside" / f"x.{placed}" / "pyproject.toml").write_text(project.read_text())
    version = LEADS_OUT
    done = subprocess.run(
        [sys.executable, "-c", _INSTALLS, version, door, placed, str(project)],
        env=_environment(home),
        capture_output=True,
        text=True,
        timeout=120,
    )
    if door == "open":  # Flower alone lets it through: the day this fails, the hook may go
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode != 0
        assert "leads out of the apps folder" in done.stderr
        assert not placed or "hostile" not in done.stdout
        assert placed or not list((tmp_path / "outside").iterdir())


def test_the_bundle_is_the_same_from_any_folder_at_any_time(bundle: Path, tmp_path: Path) -> None:
    app = tmp_path / "another" / "place" / "app"
    write_bundle(app)
    os.utime(app / "pyproject.toml", (0, time.time() - 10**8))
    (app / "pyproject.toml").chmod(0o600)
    other = install_bundle(app, tmp_path / "home")
    ours = next((bundle / "apps").iterdir())
    assert other.name == ours.name == f"fedloop.fedloop.1.0.0.{BUNDLE_DIGEST[:8]}"
    assert [path.name for path in other.iterdir()] == ["pyproject.toml"]
    assert (other / "pyproject.toml").read_bytes() == (ours / "pyproject.toml").read_bytes()
    assert {path.stat().st_mode & 0o777 for path in (other.parent, other)} == {0o555}
    assert (other / "pyproject.toml").stat().st_mode & 0o777 == 0o444


def test_installing_again_leaves_what_is_right_and_throws_out_the_rest(bundle: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(bundle, home)
    write_bundle(tmp_path / "app")
    before = next((home / "apps").iterdir()).stat().st_ino
    assert install_bundle(tmp_path / "app", home).stat().st_ino == before
    (home / "apps").chmod(0o755)
    (home / "apps" / "stranger").mkdir()
    installed = install_bundle(tmp_path / "app", home)
    assert list((home / "apps").iterdir()) == [installed]


def test_another_bundle_than_agreed_is_refused(tmp_path: Path) -> None:
    write_bundle(tmp_path / "app")
    text = (tmp_path / "app" / "pyproject.toml").read_text()
    (tmp_path / "app" / "pyproject.toml").write_text(text.replace("Configuration only", "Something else"))
    with pytest.raises(ProcessFailed, match="makes another bundle"):
        install_bundle(tmp_path / "app", tmp_path / "home")
    assert not (tmp_path / "home" / "apps").exists()


def test_the_digest_of_the_bundle_is_one() -> None:
    assert len(BUNDLE_DIGEST) == len(hashlib.sha256().hexdigest())


def test_superexec_finds_a_program_of_ours_for_every_kind_of_task(tmp_path: Path) -> None:
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

    assert set(TASK_TYPE_TO_COMMAND.values()) <= set(APP_PROGRAMS)
    write_app_programs(tmp_path / "bin", ["flwr-clientapp"])
    write_app_programs(tmp_path / "bin", ["flwr-clientapp"])
    for name in APP_PROGRAMS:
        done = subprocess.run(
            [tmp_path / "bin" / name, "--help"], env=_environment(tmp_path), capture_output=True, text=True, timeout=120
        )
        if name == "flwr-clientapp":
            assert (done.returncode, "--token" in done.stdout) == (0, True)
        else:
            assert done.returncode == 1
            assert f"fedloop starts no {name} here" in done.stderr
