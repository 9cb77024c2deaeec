"""Tasks that ship: three presets on public data, and the starter that ``fedloop task init`` writes without one."""

from __future__ import annotations

import re
from importlib import resources

from fedloop_core.errors import UsageError
from fedloop_core.task.document import Task
from fedloop_core.task.reader import parse_task

__all__ = ["load_preset", "preset_names", "preset_text", "starter_text"]

_PRESETS = ("breast-cancer", "digits", "heart")
_NAME_LINE = re.compile(r'^name = ".*"$', re.MULTILINE)


def preset_names() -> tuple[str, ...]:
    """Names of the presets."""
    return _PRESETS


def load_preset(name: str) -> Task:
    """The task of a preset.

    Raises:
        UsageError: there is no such preset.
    """
    return parse_task(preset_text(name), source=f"{name}.toml")


def preset_text(name: str, *, task: str | None = None) -> str:
    """The commented TOML of a preset, named ``task`` instead of its own name if given.

    Raises:
        UsageError: there is no such preset.
    """
    if name not in _PRESETS:
        raise UsageError(f"there is no preset {name!r}.", hint=f"Presets: {', '.join(_PRESETS)}.")
    return _named(_read(f"{name}.toml"), name if task is None else task)


def starter_text(task: str) -> str:
    """The commented TOML of a first task of one's own, named ``task``."""
    return _named(_read("starter.toml"), task)


def _read(file: str) -> str:
    return resources.files(__name__).joinpath(file).read_text(encoding="utf-8")


def _named(text: str, name: str) -> str:
    return _NAME_LINE.sub(lambda _: f'name = "{name}"', text, count=1)
