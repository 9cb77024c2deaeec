"""A supervisor in a thread, over small Python children, and patience."""

from __future__ import annotations

import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fedloop_core.processes import ProcessSpec, RestartPolicy, Supervisor, SupervisorStatus, read_status
from fedloop_core.processes.procfs import facts

PATIENCE = 60.0
QUICK = RestartPolicy(first=0.05, longest=0.2, reset_after=30.0, tell_after=3)


def wait_for(condition: Callable[[], object], what: str = "", *, patience: float = PATIENCE) -> None:
    until = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < until, f"did not happen: {what}"
        time.sleep(0.02)


def lives(pid: int) -> bool:
    found = facts(pid)
    return found is not None and not found.zombie


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", textwrap.dedent(code))


SLEEPS = python("import time; print('up', flush=True); time.sleep(600)")


def spec(name: str, command: tuple[str, ...], folder: Path, **more: object) -> ProcessSpec:
    return ProcessSpec(
        **{  # type: ignore[arg-type]
            "name": name,
            "command": command,
            "environment": {},
            "user": None,
            "working_folder": folder,
            "stop_seconds": 5.0,
        }
        | more
    )


@dataclass
class Running:
    """A supervisor in a thread of this process."""

    folder: Path
    supervisor: Supervisor
    told: list[str]
    raised: list[BaseException] = field(default_factory=list)
    thread: threading.Thread | None = None

    def begin(self) -> None:
        def run() -> None:
            try:
                self.supervisor.run()
            except BaseException as error:  # noqa: BLE001 - shown by end()
                self.raised.append(error)

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def status(self) -> SupervisorStatus:
        found = read_status(self.folder)
        assert found is not None
        return found

    def pid(self, name: str) -> int | None:
        found = read_status(self.folder)
        return next((entry.pid for entry in found.processes if entry.name == name), None) if found else None

    def healthy(self) -> bool:
        found = read_status(self.folder)
        return found is not None and found.healthy

    def log(self, name: str) -> str:
        path = self.folder / "logs" / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def end(self) -> None:
        if self.thread is None:
            return
        self.supervisor.stop()
        self.thread.join(PATIENCE)
        if self.thread.is_alive():
            self.supervisor.stop()
            self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        self.thread = None
        if self.raised:
            raise self.raised[0]
