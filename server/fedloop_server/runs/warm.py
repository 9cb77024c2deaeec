"""What a run that starts from the weights of a version must keep of it: the purpose that sites gave their data for."""

from __future__ import annotations

from fedloop_core.errors import RunError
from fedloop_core.task.document import Task

__all__ = ["require_same_purpose"]


def require_same_purpose(parent: Task, task: Task, version: int) -> None:
    """Refuses to go on from weights that were trained for something else; a version without a purpose binds nobody.

    Raises:
        RunError: the version was made for a purpose, and the task is for another one or names none.
    """
    made_for, wanted = parent.purpose_name, task.purpose_name
    if made_for and made_for != wanted:
        asked = f"is for {wanted!r}" if wanted else "names no purpose"
        raise RunError(
            f"version {version} of {task.name} was made for {made_for!r}, and this task {asked}: it cannot start from it.",
            hint="Start afresh, so that sites decide about the new purpose, or keep the purpose.",
        )
