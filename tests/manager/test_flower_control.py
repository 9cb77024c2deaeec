"""Flower's commands against a real SuperLink, and in the face of none."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedloop_core.errors import FedloopError, ProcessFailed
from fedloop_server.manager.flower import FlowerControl
from fedloop_server.manager.state import FlowerPhase

if TYPE_CHECKING:
    from tests.manager.conftest import Link

pytestmark = pytest.mark.slow


def test_a_run_is_started_seen_and_stopped(link: Link, tmp_path: Path) -> None:
    control = link.control
    (tmp_path / "runs" / "a").mkdir(parents=True)
    run = control.start({"fedloop-home": str(tmp_path), "fedloop-run": "a"})
    assert control.status(run).phase in {FlowerPhase.PENDING, FlowerPhase.RUNNING}
    assert run in [known.flower_run for known in control.runs()]
    control.stop(run)
    assert control.status(run).phase is FlowerPhase.ENDED
    control.stop(run)  # a second time does no harm
    control.stop(12345)  # nor does one that Flower does not know
    assert control.status(12345).words == "unknown to Flower"


def test_what_a_serverapp_prints_can_be_read(link: Link, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    (folder / "finish").touch()
    run = link.control.start({"fedloop-home": str(tmp_path), "fedloop-run": "a"})
    wait_for(lambda: "the stand-in drives a" in " ".join(link.control.log(run)), "the ServerApp's line")


def test_our_own_bundle_is_taken(link: Link, tmp_path: Path) -> None:
    control = FlowerControl(tmp_path / "cli", f"127.0.0.1:{link.port}", link.folder / "keys" / "ca.pem")
    run = control.start({"fedloop-home": str(tmp_path), "fedloop-run": "none"})
    assert (tmp_path / "cli" / "app" / "pyproject.toml").exists()
    control.stop(run)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.2)


def test_nodes_are_let_in_once_and_shut_out_for_good(link: Link, node_key: bytes) -> None:
    control = link.control
    node = control.register_key(node_key)
    assert {n.node_id: n.status for n in control.nodes()}[node] == "registered"
    with pytest.raises(ProcessFailed, match="in use"):
        control.register_key(node_key)
    control.unregister(node)
    assert node not in [n.node_id for n in control.nodes() if n.status == "registered"]
    with pytest.raises(ProcessFailed):
        control.register_key(node_key)
    with pytest.raises(ProcessFailed):
        control.unregister(node + 1)


@pytest.mark.parametrize("what", ["nobody listens", "another authority", "too slow"])
def test_a_superlink_that_does_not_answer_is_one_sentence(link: Link, tmp_path: Path, what: str) -> None:
    authority, address, seconds = link.folder / "keys" / "ca.pem", f"127.0.0.1:{link.port}", 60.0
    match what:
        case "nobody listens":
            address = "127.0.0.1:9"
        case "another authority":
            authority = link.folder / "keys" / "tls.pem"
        case _:
            seconds = 0.05
    control = FlowerControl(tmp_path, address, authority, app=link.bundle, seconds=seconds)
    with pytest.raises(ProcessFailed) as refused:
        control.nodes()
    assert str(refused.value).count("\n") == 0
    assert "SuperLink" in str(refused.value)


def test_a_key_that_is_none_is_one_sentence(link: Link) -> None:
    with pytest.raises(FedloopError) as refused:
        link.control.register_key(b"ssh-rsa nonsense\n")
    assert str(refused.value).count("\n") == 0
