"""The task of a simulation: a preset or a file, with what the command line changes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from fedloop_core.errors import PrivacyParameterInvalid, TaskUnreadable, UsageError
from fedloop_core.task import Task
from fedloop_core.task.presets import load_preset, preset_names
from fedloop_core.task.reader import read_task
from fedloop_core.toml.words import mistakes_of

__all__ = ["chosen_task"]


def chosen_task(
    name: str,
    *,
    rounds: int | None = None,
    epsilon: float | None = None,
    scaling: Literal["range", "federated", "per-site"] | None = None,
) -> Task:
    """The preset of that name, or the task in that file, with these changes.

    Raises:
        TaskUnreadable: there is neither.
        TaskInvalid: the file has mistakes.
        PrivacyParameterInvalid: an epsilon that guards nothing, or one that scaling per site would break.
        UsageError: another change that the task does not allow.
    """
    if name in preset_names():
        task = load_preset(name)
    elif Path(name).exists():
        task = read_task(Path(name))
    else:
        raise TaskUnreadable(
            f"{name} is neither a preset nor a file.",
            hint=f"Presets: {', '.join(preset_names())}. `fedloop task init NAME` writes a file to begin with.",
        )
    if epsilon is not None and not epsilon > 0:
        raise PrivacyParameterInvalid(
            f"epsilon must be above 0, not {epsilon:g}.", hint="inf trains without privacy.", parameter="epsilon"
        )
    document = task.model_dump()
    if rounds is not None:
        document["rounds"]["count"] = rounds
    if epsilon is not None:
        document["privacy"]["epsilon"] = epsilon
    if scaling is not None:
        document["preprocessing"]["scaling"] = scaling
    try:
        changed = Task.model_validate(document, strict=False)
    except ValidationError as error:
        first, *_ = mistakes_of(error.errors(), document, Task)
        raise UsageError(first.text, hint="Change the option, or the task.") from error
    if changed.privacy.private and changed.preprocessing.scaling == "per-site":
        raise PrivacyParameterInvalid(
            f"scaling per site reads every row without noise, which privacy at epsilon {changed.privacy.epsilon:g} excludes.",
            hint="Add --epsilon inf, or scale by range or federated.",
            parameter="scaling",
        )
    return changed
