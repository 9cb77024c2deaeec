"""What ``fedloop server up`` and ``fedloop site up`` print while they run."""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path

from fedloop_core.processes.roles import Roles

__all__ = ["Progress", "at_home"]


def at_home(folder: Path) -> str:
    """`` --home FOLDER`` for a command that a person types next; empty where the command finds the folder by itself."""
    folder = folder.resolve()
    found = Path(os.environ.get("FEDLOOP_HOME") or ".").resolve()
    if folder == found:
        return ""
    here = Path.cwd()
    return f" --home {shlex.quote(str(folder.relative_to(here) if folder.is_relative_to(here) else folder))}"


class Progress:
    """Sentences for people, or one JSON object a line.

    Args:
        folder: the home, for where the logs are.
        health: address of the health endpoint.
        next_step: what a person does when all processes run.
        as_json: objects with ``unix`` and ``message``.
    """

    def __init__(self, folder: Path, health: tuple[str, int] | None, next_step: str, *, as_json: bool) -> None:
        self._folder = folder
        self._health = health
        self._next_step = next_step
        self._as_json = as_json

    def tell(self, sentence: str) -> None:
        """Prints it at once."""
        if self._as_json:
            print(json.dumps({"unix": int(time.time()), "message": sentence}), flush=True)  # noqa: T201 - a command's output
        else:
            print(f"{time.strftime('%H:%M:%S')} {sentence}", flush=True)  # noqa: T201 - a command's output

    def begin(self, what: str, roles: Roles) -> None:
        """Before anything is started."""
        self.tell(f"starts {what} in {self._folder}; {roles.sentence}")
        self.tell(f"logs are in {self._folder / 'logs'}; Ctrl-C stops")

    def all_run(self) -> None:
        """When all processes run for the first time."""
        where = f"; http://{self._health[0]}:{self._health[1]}/healthz says so" if self._health else ""
        self.tell(f"all processes run{where}. Next: {self._next_step}{at_home(self._folder)}")

    def end(self) -> None:
        """When all have ended."""
        self.tell("all processes have stopped")
