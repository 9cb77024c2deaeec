"""What a run that starts from a version needs of it: its weights, and the purpose that sites gave their data for."""

from __future__ import annotations

from pathlib import Path

from fedloop_core.errors import RunError
from fedloop_core.task.document import Task

__all__ = ["require_same_purpose", "require_weights"]


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


def require_weights(folder: Path, task: str, version: int) -> None:
    """Refuses to start from a version whose weights have been deleted by their age.

    Raises:
        RunError: none are left in the folder of its run.
    """
    if not any(folder.glob("round-*.safetensors")):
        raise RunError(
            f"the weights that version {version} of {task} was made from are no longer kept: it can be served, and not started from.",
            hint="Start afresh or from a newer version; `fedloop server retention` shows what is kept.",
        )
