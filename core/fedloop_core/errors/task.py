"""The task file."""

from __future__ import annotations

from fedloop_core.errors.root import FedloopError, Field

__all__ = ["ModelDiffers", "TaskError", "TaskInvalid", "TaskUnreadable"]


class TaskError(FedloopError):
    """The task file is wrong."""

    code = "FL-TASK-000"
    exit_status = 3


class TaskUnreadable(TaskError):
    """The file is missing, not UTF-8, or not TOML."""

    code = "FL-TASK-001"


class TaskInvalid(TaskError):
    """The file is TOML and breaks the schema; ``problems`` lists each mistake with its line."""

    code = "FL-TASK-002"

    def __init__(self, message: str, *, problems: tuple[str, ...] = (), hint: str = "", **fields: Field) -> None:
        super().__init__(message, hint=hint, **fields)
        self.problems = problems


class ModelDiffers(TaskError):
    """A site builds the task's model with other frozen weights than the coordinator: it would train another model."""

    code = "FL-TASK-003"
