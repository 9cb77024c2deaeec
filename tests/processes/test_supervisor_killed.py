"""A supervisor that is killed: its children die, and the next one finds what is left and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.processes.supervising import SLEEPS, Running, lives, python, spec, wait_for

from fedloop_core.processes import ProcessState, ProcessStatus, SupervisorStatus, now_in, read_status
from fedloop_core.processes.leftovers import clear_leftovers
from fedloop_core.processes.procfs import boot_id, facts
from fedloop_core.processes.status import write_status

PARENT = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
pathlib.Path('grandchild').write_text(str(child.pid))
time.sleep(600)
"""
SUPERVISES = f"""
import sys
from pathlib import Path
from fedloop_core.processes import ProcessSpec, Supervisor
folder = Path.cwd()
sleeps = (sys.executable, '-c', 'import time; time.sleep(600)')
parent = (sys.executable, '-c', {PARENT!r})
Supervisor(folder, [
    ProcessSpec('one', sleeps, {{}}, None, folder),
    ProcessSpec('two', parent, {{}}, None, folder),
], health=None).run()
"""
Supervise = Callable[..., Running]
Begin = Callable[[str], subprocess.Popen[bytes]]


def _pids(folder: Path) -> list[int]:
    found = read_status(folder)
    return [entry.pid for entry in found.processes if entry.pid is not None] if found and found.healthy else []


def test_sigkill_takes_the_children_and_the_next_supervisor_the_rest(
    supervisor_process: Begin, supervise: Supervise, tmp_path: Path
) -> None:
    first = supervisor_process(SUPERVISES)
    mark = tmp_path / "grandchild"
    wait_for(lambda: len(_pids(tmp_path)) == 2 and mark.exists() and mark.read_text(), "both run")
    assert now_in(tmp_path)[0]
    pids, grandchild = _pids(tmp_path), int(mark.read_text())
    first.kill()
    first.wait()
    wait_for(lambda: not any(map(lives, pids)), "the children have died")
    stopped = [(entry.pid, entry.state) for entry in now_in(tmp_path)[1]]
    assert (now_in(tmp_path)[0], stopped) == (False, [(None, ProcessState.STOPPED)] * 2)
    assert lives(grandchild)  # nobody could tell it; its group's leader is gone
    running = supervise(spec("one", SLEEPS, tmp_path))
    wait_for(lambda: any("two was left by a supervisor" in line for line in running.told), "it was told")
    assert not lives(grandchild)
    wait_for(lambda: running.pid("one") not in (None, *pids) and running.healthy())


def test_sigterm_and_ctrl_c_stop_cleanly(supervisor_process: Begin, tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        process = supervisor_process(SUPERVISES)
        wait_for(lambda: len(_pids(tmp_path)) == 2)
        pids = _pids(tmp_path)
        process.send_signal(number)
        assert process.wait(60) == 0
        assert not any(map(lives, pids))


def test_a_pid_that_somebody_else_has_now_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(SLEEPS, stdout=subprocess.DEVNULL, start_new_session=True) as stranger:
        try:
            _write_leftover(tmp_path, stranger.pid, ticks_off=1)
            assert clear_leftovers(tmp_path) == ()
            assert lives(stranger.pid)
            _write_leftover(tmp_path, stranger.pid, ticks_off=0)
            assert clear_leftovers(tmp_path) == ("one",)
            wait_for(lambda: stranger.poll() is not None)
        finally:
            stranger.kill()


@pytest.mark.parametrize(
    ("boot", "own_ticks_off", "child_ticks_off", "supervised", "left"),
    [
        (None, 0, 0, True, True),
        (None, 1, 0, False, True),  # the supervisor was killed, and its pid is somebody else's now
        (None, 1, 1, False, False),
        ("another", 0, 0, False, False),
    ],
    ids=["runs", "killed", "killed with its child", "before the last boot"],
)
def test_what_is_told_of_a_folder_is_what_lives(
    boot: str | None, own_ticks_off: int, child_ticks_off: int, supervised: bool, left: bool, tmp_path: Path
) -> None:
    assert now_in(tmp_path) == (False, ())
    own = facts(os.getpid())
    assert own is not None
    _write_leftover(tmp_path, os.getpid(), ticks_off=child_ticks_off, boot=boot)
    status = read_status(tmp_path)
    assert status is not None
    update = {"pid": own.pid, "started_ticks": own.started_ticks + own_ticks_off}
    write_status(tmp_path, status.model_copy(update=update))
    told, (one,) = now_in(tmp_path)
    assert (told, one.pid == os.getpid(), one.state is ProcessState.RUNNING) == (supervised, left, left)


def test_a_leftover_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(python(code), stdout=subprocess.PIPE, start_new_session=True) as left:
        try:
            assert left.stdout is not None
            left.stdout.readline()
            _write_leftover(tmp_path, left.pid, ticks_off=0)
            assert clear_leftovers(tmp_path, grace=0.3) == ("one",)
            assert left.wait(60) == -signal.SIGKILL
        finally:
            left.kill()


def test_a_status_of_another_boot_or_another_user_is_not_believed(tmp_path: Path) -> None:
    with subprocess.Popen(SLEEPS, stdout=subprocess.DEVNULL, start_new_session=True) as stranger:
        try:
            _write_leftover(tmp_path, stranger.pid, ticks_off=0, boot="another")
            assert clear_leftovers(tmp_path) == ()
            _write_leftover(tmp_path, stranger.pid, ticks_off=0)
            file = tmp_path / "supervisor.json"
            file.rename(tmp_path / "aside")
            file.symlink_to(tmp_path / "aside")
            assert clear_leftovers(tmp_path) == ()
            if os.geteuid() == 0:
                file.unlink()
                (tmp_path / "aside").rename(file)
                os.chown(file, 65534, 65534)
                assert clear_leftovers(tmp_path) == ()
            assert lives(stranger.pid)
        finally:
            stranger.kill()


def test_a_status_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    for text in ("", "{", "[]", json.dumps({"format": 1})):
        (tmp_path / "supervisor.json").write_text(text)
        assert read_status(tmp_path) is None
        assert clear_leftovers(tmp_path) == ()


def _write_leftover(folder: Path, pid: int, *, ticks_off: int, boot: str | None = None) -> None:
    found = facts(pid)
    assert found is not None
    entry = ProcessStatus(
        name="one",
        pid=pid,
        started_ticks=found.started_ticks + ticks_off,
        state=ProcessState.RUNNING,
        since_unix=0,
        log="",
    )
    write_status(
        folder,
        SupervisorStatus(pid=1, boot_id=boot_id() if boot is None else boot, started_unix=0, processes=(entry,)),
    )
