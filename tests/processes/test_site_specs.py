"""The processes of a site: users, proxy, files they are given, and the one program that its superexec may start."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedloop_clients.home import Membership, SiteHome
from fedloop_clients.settings import SiteSettings, parse_site_settings, starter_text
from fedloop_clients.up import check_site, prepare_site, site_specs
from fedloop_core.durable import write_secret
from fedloop_core.errors import NotSetUp
from fedloop_core.processes import ProcessSpec
from fedloop_core.processes.environment import python_environment
from fedloop_core.processes.roles import Roles

PROXY = "http://proxy.hospital.example:3128"
SECRET = "5ec2e7" * 8


@pytest.fixture
def home(tmp_path: Path) -> SiteHome:
    """As joining leaves it, with made-up keys."""
    site = SiteHome(tmp_path / "site")
    site.prepare()
    for path in (site.node_key, site.authorities, site.signing_key_file, site.superexec_secret):
        write_secret(path, SECRET.encode())
    site.store_membership(
        Membership(
            site="north",
            coordinator_key="0" * 64,
            fleet_address="coordinator.example:8443",
            hub_address="coordinator.example:8444",
            protocol=1,
            joined_unix=0,
        )
    )
    site.settings_file.write_text(starter_text("north", PROXY))
    return site


def _settings() -> SiteSettings:
    return parse_site_settings(starter_text("north", PROXY))


def _specs(home: SiteHome) -> dict[str, ProcessSpec]:
    return {spec.name: spec for spec in site_specs(home, _settings(), Roles(separate=True), node_port=9000)}


def test_each_process_has_its_user_and_only_what_it_needs(home: SiteHome) -> None:
    specs = _specs(home)
    assert {name: spec.user for name, spec in specs.items()} == {
        "daemon": "fedloop",
        "relay": "fedloop-relay",
        "supernode": "fedloop-flower",
        "superexec": "fedloop-relay",
    }
    assert {name for name, spec in specs.items() if spec.confined} == {"relay", "supernode", "superexec"}
    assert [file.source.name for file in specs["superexec"].handed] == ["superexec.secret"]
    assert not specs["relay"].handed
    assert specs["supernode"].restart_when[:1] == (home.authorities,)
    for spec in specs.values():
        said = " ".join((*spec.command, *spec.environment.values()))
        assert SECRET not in said
        assert str(home.keys) not in said


def test_the_one_proxy_setting_reaches_all_that_calls_out(home: SiteHome) -> None:
    for name in ("supernode", "superexec", "relay"):
        environment = _specs(home)[name].environment
        assert {environment[key] for key in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")} == {PROXY}
        assert environment["no_proxy"] == environment["NO_PROXY"] == "localhost,127.0.0.1,::1"


def test_supernode_calls_the_coordinator_and_listens_on_loopback(home: SiteHome) -> None:
    command = " ".join(_specs(home)["supernode"].command)
    assert "--superlink coordinator.example:8443" in command
    assert "--host 127.0.0.1 --port 9000 --isolation process" in command
    assert '--node-config site="north"' in command
    assert "--insecure" not in command


def test_gpu_variables_reach_the_daemon_alone(home: SiteHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert {name for name, spec in _specs(home).items() if "CUDA_VISIBLE_DEVICES" in spec.environment} == {"daemon"}


def test_superexec_finds_the_warm_relay_and_refusals(home: SiteHome) -> None:
    prepare_site(home, Roles(separate=False))
    prepare_site(home, Roles(separate=False))
    superexec = _specs(home)["superexec"]
    first = Path(superexec.environment["PATH"].split(":")[0])
    assert (first / "flwr-clientapp").read_text().startswith(f"#!{sys.executable}")
    assert "fedloop's relay server" in (first / "flwr-clientapp").read_text()
    done = subprocess.run([first / "flwr-serverapp"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "fedloop starts no flwr-serverapp here.\n")
    # Without a relay server the call becomes Flower's own command, behind the closed door too.
    done = subprocess.run(
        [first / "flwr-clientapp", "--help"],
        env=python_environment() | dict(superexec.environment),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--token" in done.stdout
    own = re.search(r"PEER, OWN = .*, '(.*)'", (first / "flwr-clientapp").read_text())
    assert own
    assert "run_app" in Path(own[1]).read_text()


def test_a_site_that_has_not_joined_is_told_to(tmp_path: Path) -> None:
    with pytest.raises(NotSetUp, match="is not there") as refused:
        check_site(SiteHome(tmp_path), None)
    assert "fedloop site join" in refused.value.hint


def test_the_command_says_it_too(tmp_path: Path) -> None:
    fedloop = Path(sys.executable).with_name("fedloop")
    done = subprocess.run(
        [fedloop, "site", "up", "--home", tmp_path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("FL-SET-003")
    assert "fedloop site join" in done.stderr
