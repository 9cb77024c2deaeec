"""Which of the processes that ``supervisor.json`` names live: a supervisor that was killed could not correct what it says."""

from __future__ import annotations

from pathlib import Path

from fedloop_core.processes.procfs import boot_id, facts
from fedloop_core.processes.status import ProcessState, ProcessStatus, SupervisorStatus, read_status

__all__ = ["now_in", "process_lives", "supervisor_lives"]


def now_in(folder: Path) -> tuple[bool, tuple[ProcessStatus, ...]]:
    """Whether a supervisor runs in a folder, and its processes.

    Where none runs, those that have ended are told as stopped; one that has a pid still lives.
    """
    status = read_status(folder)
    if status is None:
        return False, ()
    if supervisor_lives(status):
        return True, status.processes
    same_boot = status.boot_id == boot_id()
    return False, tuple(
        process if same_boot and process_lives(process) else _ended(process) for process in status.processes
    )


def supervisor_lives(status: SupervisorStatus) -> bool:
    """Whether the very process lives that wrote it: of this boot, with this pid, started at that moment."""
    return status.boot_id == boot_id() and _lives(status.pid, status.started_ticks)


def process_lives(process: ProcessStatus) -> bool:
    """Whether this very process lives; it must have been started since the last boot."""
    return process.pid is not None and _lives(process.pid, process.started_ticks)


def _lives(pid: int, started_ticks: int | None) -> bool:
    found = facts(pid)
    return found is not None and not found.zombie and started_ticks in (None, found.started_ticks)


def _ended(process: ProcessStatus) -> ProcessStatus:
    return process.model_copy(update={"pid": None, "started_ticks": None, "state": ProcessState.STOPPED})
