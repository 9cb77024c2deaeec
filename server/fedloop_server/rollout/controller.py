"""Carries out what the rules decide: stores the state durably, assigns on the release repository."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from fedloop_core.durable import write_bytes
from fedloop_core.errors import AssignmentRefused, ReleaseError, StorageError
from fedloop_core.release import Assignment, task_role
from fedloop_core.strict import Strict
from fedloop_core.task.document import Task
from fedloop_server.release import ReleaseRepository
from fedloop_server.rollout.machine import Step, advance, plan
from fedloop_server.rollout.state import Action, AssignGroup, Event, Phase, RolloutState, Tick
from fedloop_server.rollout.waves import wave_groups

__all__ = ["RolloutController", "RolloutRecord"]


class RolloutRecord(Strict):
    """What is on disk: a state, and actions that were decided and may not have been carried out."""

    state: RolloutState
    pending: tuple[Action, ...] = ()


class RolloutController:
    """One rollout for each task at a time, one JSON file for each task; threads may share it.

    A decision is stored before it is carried out, and carried out again after a crash: an assignment that the repository
    already has is not repeated.
    """

    def __init__(self, folder: Path, releases: ReleaseRepository, clock: Callable[[], int]) -> None:
        self._folder = folder
        self._releases = releases
        self._clock = clock
        self._lock = threading.RLock()

    def start(
        self, task: Task, version: int, previous: int | None, members: Mapping[str, Sequence[str]]
    ) -> tuple[Action, ...]:
        """Begins the rollout of a published version and opens its first wave; ``members`` are devices by group.

        Raises:
            AssignmentRefused: ``version`` or ``previous`` is not listed in the release.
            ReleaseError: another rollout of the task is under way, or the version would go back to itself.
            StorageError: the disk fails.
        """
        if version == previous:
            raise ReleaseError(f"task {task.name}: version {version} cannot go back to itself.", hint="Name another.")
        with self._lock:
            # What the last one decided is carried out first: its record is about to be replaced.
            running = None if self._load(task.name) is None else self._resume(task.name)
            if running is not None and running.phase in (Phase.PLANNED, Phase.OPEN):
                raise ReleaseError(
                    f"task {task.name}: the rollout of version {running.version} is under way.",
                    hint="Wait for its end or stop it.",
                )
            listed = self._releases.listed_versions(task.name)
            for wanted in (version, previous):
                if wanted is not None and wanted not in listed:
                    raise AssignmentRefused(
                        f"task {task.name} version {wanted} is not listed in the release.",
                        hint="Publish it first.",
                        reason="version",
                    )
            current = {
                group: self._releases.current_assignment(task.name, group) for group in wave_groups(task.rollout)
            }
            counters = {group: assignment.counter for group, assignment in current.items() if assignment is not None}
            state = plan(task.rollout, task.name, version, previous, members, counters)
            self._store(RolloutRecord(state=state))
            return self.tick(task.name)

    def handle(self, task: str, event: Event) -> Step:
        """Takes one event to its end.

        Raises:
            ReleaseError: the task has no rollout.
            StorageError: the disk fails; what was decided is carried out at the next call.
        """
        with self._lock:
            state = self._resume(task)
            step = advance(state, event)
            if step.state != state:
                self._store(RolloutRecord(state=step.state, pending=step.actions))
                self._carry_out(step.state, step.actions)
            return step

    def tick(self, task: str) -> tuple[Action, ...]:
        """Decides what is due now, until nothing more is; returns what was done, in order.

        Raises:
            ReleaseError: the task has no rollout.
            StorageError: the disk fails.
        """
        with self._lock:
            done: list[Action] = []
            now = self._clock()
            while actions := self.handle(task, Tick(now)).actions:
                done += actions
            return tuple(done)

    def state(self, task: str) -> RolloutState | None:
        """The last rollout of a task; None when it never had one.

        Raises:
            StorageError: its file cannot be read.
        """
        record = self._load(task)
        return None if record is None else record.state

    def _resume(self, task: str) -> RolloutState:
        record = self._load(task)
        if record is None:
            raise ReleaseError(f"task {task} has no rollout.", hint="Start one.")
        if record.pending:
            self._carry_out(record.state, record.pending)
        return record.state

    def _carry_out(self, state: RolloutState, actions: Sequence[Action]) -> None:
        for action in actions:
            if not isinstance(action, AssignGroup):
                continue
            wanted = Assignment(
                format=1,
                task=state.task,
                group=action.group,
                version=action.version,
                counter=action.counter,
                rollback_of=action.rollback_of,
            )
            if self._releases.current_assignment(state.task, action.group) != wanted:
                self._releases.assign(wanted)
        if actions:
            self._store(RolloutRecord(state=state))

    def _path(self, task: str) -> Path:
        return self._folder / f"{task_role(task)}.json"

    def _store(self, record: RolloutRecord) -> None:
        write_bytes(self._path(record.state.task), record.model_dump_json().encode())

    def _load(self, task: str) -> RolloutRecord | None:
        path = self._path(task)
        try:
            return RolloutRecord.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise StorageError(f"rollout {path} cannot be read.", hint="Restore it from a backup.") from error
