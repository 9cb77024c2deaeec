"""The task file: its document, reading it with the place of every mistake, and the presets that ship."""

from fedloop_core.task.document import Task

__all__ = ["Task"]
