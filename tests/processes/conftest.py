"""Supervisors as threads and as processes of their own, over small Python children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.processes.supervising import QUICK, Running

from fedloop_core.processes import ProcessSpec, Supervisor, read_status


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts a supervisor over specs."""
    all_running: list[Running] = []

    def start(*specs: ProcessSpec, folder: Path = tmp_path, **more: object) -> Running:
        told: list[str] = []
        options = {"health": None, "policy": QUICK, "tell": told.append} | more
        running = Running(folder, Supervisor(folder, specs, **options), told)  # type: ignore[arg-type]
        all_running.append(running)
        running.begin()
        return running

    yield start
    for running in all_running:
        running.end()


@pytest.fixture
def supervisor_process(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts a program that supervises, as a process that can be killed; ends what it leaves."""
    started: list[subprocess.Popen[bytes]] = []

    def start(code: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
    found = read_status(tmp_path)
    for entry in found.processes if found else ():
        if entry.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(entry.pid, signal.SIGKILL)
