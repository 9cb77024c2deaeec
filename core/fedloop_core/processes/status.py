"""What a supervisor says of its processes, in ``supervisor.json`` and at its health endpoint."""

from __future__ import annotations

import os
import stat
from enum import StrEnum
from pathlib import Path

from pydantic import ValidationError

from fedloop_core.durable import write_bytes
from fedloop_core.strict import Strict

__all__ = ["ProcessState", "ProcessStatus", "SupervisorStatus", "read_status", "write_status"]

_FILE = "supervisor.json"


class ProcessState(StrEnum):
    """Where a process is in its life."""

    WAITING = "waiting"  # for those before it, or after a death
    STARTING = "starting"  # started, not ready yet
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class ProcessStatus(Strict):
    """One process. ``last_exit``: its last exit status, negative for a signal; ``restarts`` since the supervisor began."""

    name: str
    pid: int | None = None
    started_ticks: int | None = None
    user: str | None = None
    state: ProcessState
    restarts: int = 0
    since_unix: int
    last_exit: int | None = None
    log: str


class SupervisorStatus(Strict):
    """All processes of one folder, in the order of their start; ``pid`` and ``started_ticks`` are the supervisor's own."""

    format: int = 1
    pid: int
    boot_id: str
    started_ticks: int | None = None
    started_unix: int
    processes: tuple[ProcessStatus, ...]

    @property
    def healthy(self) -> bool:
        """Whether every process runs and is ready."""
        running = [process.state is ProcessState.RUNNING for process in self.processes]
        return bool(running) and all(running)


def write_status(folder: Path, status: SupervisorStatus) -> None:
    """Replaces ``supervisor.json``.

    Raises:
        StorageError: it cannot be written.
    """
    write_bytes(folder / _FILE, status.model_dump_json(indent=1).encode())


def read_status(folder: Path, *, ours: bool = False) -> SupervisorStatus | None:
    """What the last supervisor of a folder wrote; None: nothing that can be read.

    Args:
        folder: of the coordinator or site.
        ours: believe only a plain file of this process's own user; who acts on it must ask for that.
    """
    path = folder / _FILE
    try:
        found = path.lstat()
        if ours and (not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid()):
            return None
        return SupervisorStatus.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
