"""Reading a task file strictly: every mistake at once, in plain words, with its line and column."""

from __future__ import annotations

from pathlib import Path

from fedloop_core.errors import TaskInvalid, TaskUnreadable
from fedloop_core.task.document import Task
from fedloop_core.toml.reader import DocumentKind, parse_document, read_document

__all__ = ["parse_task", "read_task"]

_TASK_FILE = DocumentKind(
    Task, "task file", "`fedloop task init NAME` writes a first one.", "server", TaskUnreadable, TaskInvalid
)


def read_task(path: Path) -> Task:
    """Reads and checks a task file.

    Raises:
        TaskUnreadable: the file is missing, too long, not UTF-8 or not TOML; says where.
        TaskInvalid: the file breaks the schema; ``problems`` has a line for each mistake.
    """
    return read_document(path, _TASK_FILE)


def parse_task(text: str, source: str = "task.toml") -> Task:
    """Checks the text of a task file; ``source`` names it in messages.

    Raises:
        TaskUnreadable: the text is not TOML; says where.
        TaskInvalid: the text breaks the schema; ``problems`` has a line for each mistake.
    """
    return parse_document(text, source, _TASK_FILE)
