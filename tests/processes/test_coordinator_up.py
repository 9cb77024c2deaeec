"""``fedloop server up``: all processes of a coordinator from an empty folder, one of them killed, and a clean end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.processes.supervising import lives, wait_for

from fedloop_core.errors import NotSetUp, ProcessFailed, SettingsInvalid
from fedloop_core.processes import ProcessSpec, read_status
from fedloop_core.processes.ports import check_ports, check_socket_path, free_port
from fedloop_core.processes.roles import Roles
from fedloop_server.settings import ServerSettings, load_settings
from fedloop_server.up import check_server, prepare_server, server_specs

FEDLOOP = str(Path(sys.executable).with_name("fedloop"))
Up = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("founded") / "home"
    words = ("--name", "test", "--public", "localhost", "--listen", "127.0.0.1")
    ports = ("--front-port", "0", "--hub-port", "0", "--superlink-port", "0", "--health-port", "0")
    subprocess.run(
        [FEDLOOP, "server", "init", "--home", folder, *words, *ports], check=True, capture_output=True, timeout=120
    )
    return folder


@pytest.fixture
def home(founded: Path, tmp_path: Path) -> Path:
    shutil.copytree(founded, tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def up(home: Path) -> Iterator[Up]:
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [FEDLOOP, "server", "up", "--home", home, "--single-user", *options],
            env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout:
            process.stdout.close()


def _healthy(home: Path) -> bool:
    port = load_settings(home).health_port
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _pids(home: Path) -> dict[str, int]:
    found = read_status(home)
    return {entry.name: entry.pid for entry in found.processes if entry.pid is not None} if found else {}


@pytest.mark.slow
def test_a_coordinator_starts_survives_the_death_of_each_process_and_stops(home: Path, up: Up) -> None:
    process = up("--json")
    wait_for(lambda: _healthy(home), "all processes run", patience=200.0)
    before = _pids(home)
    assert list(before) == ["service", "superlink", "front", "superexec"]
    second = up()
    assert second.wait(120) == 13
    assert second.stdout is not None
    assert "FL-PROC-002" in second.stdout.read()
    for name in ("front", "superexec"):
        os.kill(before[name], signal.SIGKILL)
    wait_for(lambda: _healthy(home) and _pids(home)["front"] != before["front"], "the front is back")
    wait_for(lambda: _healthy(home) and _pids(home)["superexec"] != before["superexec"], "superexec is back")
    last = _pids(home)
    assert (last["service"], last["superlink"]) == (before["service"], before["superlink"])
    process.terminate()
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert not any(lives(pid) for pid in last.values())
    told = [json.loads(line)["message"] for line in out.splitlines()]
    assert any("all processes run" in line and "fedloop server site add" in line for line in told)
    assert told[-1] == "all processes have stopped"
    assert [path.name for path in (home / "flower" / "superexec" / "home" / "apps").iterdir()] == [
        "fedloop.fedloop.1.0.0.1cdd4c3d"
    ]


def _specs(home: Path) -> tuple[ProcessSpec, ...]:
    return server_specs(home, load_settings(home), Roles(separate=True))


def test_each_process_has_its_user_and_no_secret_on_its_command_line(home: Path) -> None:
    secret = (home / "keys" / "superexec.secret").read_text()
    specs = {spec.name: spec for spec in _specs(home)}
    assert {name: spec.user for name, spec in specs.items()} == {
        "service": "fedloop",
        "superlink": "fedloop-flower",
        "front": "fedloop-front",
        "superexec": "fedloop",
    }
    for spec in specs.values():
        said = " ".join((*spec.command, *spec.environment.values()))
        assert secret not in said
        assert str(home / "keys") not in said  # its user could not read them there
    assert specs["superlink"].confined
    assert specs["superexec"].confined
    assert {name for name, value in specs["superexec"].environment.items() if name.lower() == "no_proxy"} == {
        "no_proxy",
        "NO_PROXY",
    }
    path = specs["superexec"].environment["PATH"].split(":")
    assert path[0] == str(home / "flower" / "superexec" / "bin")
    assert str(Path(sys.executable).parent) not in path  # no program of Flower but ours


def test_credentials_of_a_store_are_passed_on_only_to_who_needs_them(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3")
    assert not any("AWS_SECRET_ACCESS_KEY" in spec.environment for spec in _specs(home))
    settings = load_settings(home).model_copy(update={"blobs": "s3://bucket/fedloop"})
    have = {
        spec.name
        for spec in server_specs(home, settings, Roles(separate=False))
        if "AWS_SECRET_ACCESS_KEY" in spec.environment
    }
    assert have == {"service", "superexec"}


def test_folders_of_a_single_user_are_closed_to_others(home: Path) -> None:
    prepare_server(home, Roles(separate=False))
    prepare_server(home, Roles(separate=False))
    for name in ("logs", "sockets", "front", "keys", "restarts", "flower/superlink", "flower/superexec/work"):
        assert (home / name).stat().st_mode & 0o077 == 0, name


def _settings(home: Path) -> ServerSettings:
    return load_settings(home)


def test_a_taken_port_is_named(home: Path) -> None:
    settings = _settings(home)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", settings.front.port))
        taken.listen()
        with pytest.raises(ProcessFailed, match=rf"the front cannot listen on 127.0.0.1:{settings.front.port}"):
            check_server(home, settings, None)


def test_a_missing_key_is_named(home: Path) -> None:
    (home / "keys" / "superexec.secret").unlink()
    with pytest.raises(NotSetUp, match=r"has no superexec\.secret"):
        check_server(home, _settings(home), None)


def test_a_path_that_no_socket_can_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match="too long"):
        check_socket_path(tmp_path / ("x" * 120) / "service.sock")


def test_a_host_that_is_not_this_machine_is_named() -> None:
    with pytest.raises(ProcessFailed, match=r"the hub cannot listen on 192\.0\.2\.1"):
        check_ports({"the hub": ("192.0.2.1", free_port())})


def test_an_empty_folder_is_told_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [FEDLOOP, "server", "up", "--home", tmp_path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 3
    assert done.stderr.startswith("FL-SET-003")
    assert "fedloop server init" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user needs no users")
def test_as_root_without_users_one_sentence_says_what_to_do(home: Path) -> None:
    try:
        Roles.choose(("fedloop",), single_user=False)
    except NotSetUp:
        pass
    else:
        pytest.skip("this machine has fedloop's users")
    done = subprocess.run(
        [FEDLOOP, "server", "up", "--home", home], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 3
    assert "no user fedloop" in done.stderr
    assert "--single-user" in done.stderr
