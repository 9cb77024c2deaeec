"""What a supervisor that was killed has left: found by pid and start time, or by its mark, never by a pid alone."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from fedloop_core.processes.environment import MARK
from fedloop_core.processes.procfs import ProcessFacts, boot_id, carries, facts, group_members
from fedloop_core.processes.status import ProcessStatus, read_status

__all__ = ["clear_leftovers"]

_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.05


def clear_leftovers(folder: Path, *, grace: float = _GRACE_SECONDS) -> tuple[str, ...]:
    """Ends the processes that an earlier supervisor of this folder started and that still live.

    The caller holds the folder's lock, so nobody supervises them. A process whose pid was given to somebody else since is
    left alone.

    Args:
        folder: of the coordinator or site.
        grace: seconds between SIGTERM and SIGKILL.

    Returns:
        The names of the processes.
    """
    status = read_status(folder, ours=True)
    if status is None or status.boot_id != boot_id():
        return ()
    found = {process.name: _left(process, folder) for process in status.processes}
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, grace)):
        for member in (member for members in found.values() for member in members):
            _send(member, number)
        _wait([member for members in found.values() for member in members], seconds)
    return tuple(name for name, members in found.items() if members)


def _left(process: ProcessStatus, folder: Path) -> tuple[ProcessFacts, ...]:
    if process.pid is None:
        return ()
    leader = facts(process.pid)
    members = group_members(process.pid)
    if leader is not None:
        return members if leader.started_ticks == process.started_ticks else ()
    return tuple(member for member in members if carries(member.pid, MARK, str(folder.resolve())))


def _lives(member: ProcessFacts) -> bool:
    now = facts(member.pid)
    return now is not None and now.started_ticks == member.started_ticks and not now.zombie


def _send(member: ProcessFacts, number: signal.Signals) -> None:
    try:
        handle = os.pidfd_open(member.pid)
    except OSError:
        return
    try:
        if _lives(member):  # asked after the handle was taken: it cannot change hands any more
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def _wait(members: list[ProcessFacts], seconds: float) -> None:
    until = time.monotonic() + seconds
    while any(_lives(member) for member in members) and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
