"""From what a person asks for to a run in the queue: plan and folder first, then the queue, then the audit log."""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from fedloop_core.audit import AuditAction, AuditLog
from fedloop_core.errors import RunError, UsageError
from fedloop_core.task.document import Task
from fedloop_server.home import CoordinatorHome
from fedloop_server.manager.queue import QueuedRun, RunQueue
from fedloop_server.runs.plan import RunPlan

__all__ = ["RunRequest", "planned", "submit"]

_NAME = r"[a-z0-9][a-z0-9\-]{0,62}"


@dataclass(frozen=True)
class RunRequest:
    """What a person asks for. ``name`` None: the task's name with the next free number; ``sites`` None: all active ones."""

    task: Task
    name: str | None = None
    sites: int | None = None
    seed: int | None = None
    warm_from: int | None = None
    export: bool = True
    not_before: float = 0.0
    every_seconds: float | None = None


def planned(home: CoordinatorHome, queue: RunQueue, request: RunRequest, active: int) -> RunPlan:
    """The plan of the run; nothing is stored.

    Args:
        home: the coordinator's folder.
        queue: its queue.
        request: what is asked for.
        active: number of active sites.

    Raises:
        RunError: no or too few sites, or the name is taken.
        UsageError: the name cannot be one.
    """
    if active == 0:
        raise RunError(
            "there is no active site to train with.",
            hint="`fedloop server site add NAME` makes a join token for one; `fedloop server site list` shows them.",
        )
    if request.sites is not None and request.sites > active:
        raise RunError(
            f"{request.sites} sites are asked for and {active} are active.", hint="Lower --sites, or wait for more."
        )
    return _plan(request, _name(home, queue, request), active)


def submit(
    home: CoordinatorHome, queue: RunQueue, plan: RunPlan, request: RunRequest, *, audit: AuditLog, actor: str
) -> QueuedRun:
    """Stores the plan and queues the run.

    Raises:
        RunError: a run of this name came meanwhile.
        StorageError: the folder or the database cannot be written.
    """
    home.store_plan(plan)
    _hand_over(home.folder, home.run_folder(plan.run_id))
    queued = queue.submit(plan, not_before=request.not_before, every_seconds=request.every_seconds)
    audit.record(
        actor,
        AuditAction.RUN_STARTED,
        plan.run_id,
        task=plan.task.name,
        task_digest=plan.task.digest.hex(),
        purpose=plan.task.purpose_name,
        sites=plan.expected_sites,
    )
    return queued


def _plan(request: RunRequest, name: str, active: int) -> RunPlan:
    return RunPlan(
        run_id=name,
        task=request.task,
        seed=secrets.randbelow(2**31) if request.seed is None else request.seed,
        private=request.task.privacy.private,
        expected_sites=active if request.sites is None else request.sites,
        warm_from=request.warm_from,
        export=request.export,
    )


def _name(home: CoordinatorHome, queue: RunQueue, request: RunRequest) -> str:
    taken = queue.used_names()
    if request.name is None:
        number = 1
        while (name := _numbered(request.task.name, number)) in taken or home.run_folder(name).exists():
            number += 1
        return name
    if re.fullmatch(_NAME, request.name) is None:
        hint = "Use up to 63 small letters, digits and '-', a letter or digit first."
        raise UsageError(f"a run cannot be named {request.name!r}.", hint=hint)
    if queue.find(request.name) is not None or home.run_folder(request.name).exists():
        raise RunError(f"there is a run {request.name} already.", hint="Choose another --name, or leave it out.")
    if request.name in taken:
        raise RunError(
            f"there was a run {request.name}, which sites still know by its name.", hint="Choose another --name."
        )
    return request.name


def _numbered(task: str, number: int) -> str:
    return f"{task[:55]}-{number}"


def _hand_over(home: Path, folder: Path) -> None:
    """A run that root submits belongs to whom the coordinator belongs: its driver writes there."""
    if os.geteuid() != 0:
        return
    owner = home.stat()
    for path in (folder.parent, folder, *folder.iterdir()):
        os.chown(path, owner.st_uid, owner.st_gid)
