"""A coordinator's process that is killed in a masked sum, over sites that live on behind their sockets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.simulation import secure_coordinator
from tests.simulation.secure_sites import SEED, Watched, rows_of, task_of

from fedloop_clients.socket_server import SocketServer
from fedloop_core.arrays import digest
from fedloop_server.runs.plan import RunPlan

Make = Callable[..., Any]
POINTS = {  # the numbers of the instances in which sites have released, and how many are asked for shares after the kill
    "before anything is kept": (33, 5),
    "a site has released": (17, 5),
    "between answers": (17, 3),
    "before the checkpoint": (17, 0),
}


def drive(home: Any, point: str, sockets: dict[str, Path]) -> int:
    given = [f"{name}={path}" for name, path in sockets.items()]
    command = [sys.executable, secure_coordinator.__file__, str(home.folder), point, *given]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran.returncode


@pytest.fixture(scope="module")
def uninterrupted(federation: Make) -> bytes:
    members = federation(task_of(True), rows_of(task_of(True), 5), SEED)
    assert members.run().failure is None
    return digest(members.home.trained_arrays("run-1"))


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_coordinator_finishes_the_sum(
    federation: Make, tmp_path: Path, uninterrupted: bytes, point: str
) -> None:
    members = federation(task_of(True), rows_of(task_of(True), 5), SEED)
    plan = RunPlan(run_id="run-1", task=members.task, seed=SEED, private=False, expected_sites=5, export=False)
    members.home.store_plan(plan)
    instance, asked_after = POINTS[point]
    watched, sockets = Watched(), {}
    with ExitStack() as stack:
        for rows in members.rows:
            sockets[rows.name] = tmp_path / rows.name
            site = watched.wrap(members._site(rows))
            stack.enter_context(SocketServer(sockets[rows.name], site, allowed_users=frozenset({os.getuid()})))
        assert drive(members.home, point, sockets) == -signal.SIGKILL
        before = len(watched.replies)
        assert drive(members.home, "never", sockets) == 0
    assert digest(members.home.trained_arrays("run-1")) == uninterrupted
    released = watched.released(2)
    assert all(len(shares) == 1 for shares in released.values())
    assert {each.instance.number for shares in released.values() for each in shares} == {instance}
    assert [told[1:3] for told in watched.replies[before:]].count(("unmask", 2)) == asked_after
    assert not list(members.home.run_folder("run-1").glob("*unmasking*"))
