"""A coordinator and sites with real processes and a long run of a tiny task: what a person can read of it, and do to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # where the whole deployment is written down

from tests.conditions.installation import Installation

from deployment import Deployment, SiteSetup, wait_until

__all__ = ["PATIENCE", "Federation", "federation", "wait_until"]

PATIENCE = 240.0  # seconds for what must happen at all: the machine may be busy
DEADLINE = 150.0  # of a round: longer than a site is away
_TASK = """\
format = 1
name = "tiny"
features = [{{ kind = "numeric", name = "x", range = [-4.0, 4.0] }}, {{ kind = "numeric", name = "z", range = [-4.0, 4.0] }}]
label = {{ kind = "classes", name = "y", classes = ["no", "yes"] }}
model = {{ kind = "logistic" }}
training = {{ algorithm = "fedavg", local_steps = 2, batch_size = 20 }}
privacy = {{ epsilon = inf, delta = 1e-4 }}
rounds = {{ count = {rounds}, deadline_seconds = {deadline}, evaluate_every = 0 }}
"""
_SETTINGS = """\
[data]
file = {file}

[budget]
training = {{ epsilon = inf, delta = 1e-6 }}
evaluation = {{ epsilon = inf, delta = 1e-6 }}
"""


@dataclass
class Federation(Deployment):
    """A deployment with one run at a time. ``programs``: other commands than ours, by side ("": for commands of people)."""

    programs: dict[str, str] = field(default_factory=dict)
    installations: dict[str, Installation] = field(default_factory=dict)
    run: str = ""

    def program(self, of: str = "") -> str:
        """See ``Deployment``."""
        return self.programs.get(of) or self.programs.get("") or super().program(of)

    def install(self, of: str, **environment: str) -> None:
        """Gives a side an installation of its own."""
        self.installations[of] = Installation(self.folder / "installed" / (of or "people"), **environment)
        self.programs[of] = str(self.installations[of].fedloop)

    def small_site(self, name: str) -> SiteSetup:
        """A site with a hundred rows of its own."""
        path = self.folder / f"{name}.csv"
        rows = np.random.default_rng(len(name) + ord(name[0])).uniform(-2, 2, size=(100, 2))
        path.write_text("x,z,y\n" + "".join(f"{x:.4f},{z:.4f},{'yes' if x + z > 0 else 'no'}\n" for x, z in rows))
        return SiteSetup(name, _SETTINGS.format(file=json.dumps(str(path))))

    def begin_run(self, rounds: int = 5000) -> None:
        """Starts a run, which goes on until somebody stops it unless its rounds are few."""
        task = self.folder / "tiny.toml"
        task.write_text(_TASK.format(deadline=DEADLINE, rounds=rounds))
        self.run = self.start_run(str(task), "--no-export", "--seed", "1")

    def said(self, of: str, *words: str, status: int | None = 0) -> str:
        """What a command of a side's own installation says; it ends with that status, or any if None."""
        done = subprocess.run(
            [self.program(of), *words, "--home", str(self.folder_of(of))],
            env=self._environment() | {"COLUMNS": "400"}, capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert status in (None, done.returncode), (done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def folder_of(self, of: str) -> Path:
        """The home of a side."""
        return self.home if of == "coordinator" else self.site_home(of)

    def log(self, of: str, process: str) -> str:
        """The log of a process."""
        path = self.folder_of(of) / "logs" / f"{process}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def audited(self, of: str) -> list[dict[str, Any]]:
        """The entries of a side's audit log."""
        return [json.loads(line) for line in (self.folder_of(of) / "audit.jsonl").read_text().splitlines()]

    def restart(self, of: str, *names: str) -> None:
        """Ends processes, where they have not ended by themselves, and waits until the supervisor has started them anew."""
        before = self._started(of)
        for name in set(names) & set(before):
            os.kill(before[name], signal.SIGTERM)
        self.until(f"{names} of {of} are new", lambda: all(_new(self._started(of), before, name) for name in names))

    def _started(self, of: str) -> dict[str, int]:
        """Process ids by name, also of those that do not stay up long enough to count as running."""
        told = json.loads((self.folder_of(of) / "supervisor.json").read_bytes())
        return {process["name"]: process["pid"] for process in told["processes"] if process["pid"] is not None}

    @contextmanager
    def halted(self, of: str, name: str) -> Iterator[None]:
        """A process that does nothing for the length of the block."""
        pid = self.processes(of)[name]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def until(self, what: str, holds: Callable[[], Any]) -> Any:
        """The first true answer."""
        found: list[Any] = []

        def there() -> bool:
            found.append(holds())
            return bool(found[-1])

        wait_until(what, there, PATIENCE)
        return found[-1]

    def until_round_of(self, *sites: str, again: bool = False) -> None:
        """Waits for a round that is opened from now on, in which just these sites take part; ``again``: after a failure."""
        before = len(self.journal(self.run))

        def closed() -> bool:
            assert again or not self.events(self.run, "run-failed"), self.journal(self.run)[-1]
            later = self.journal(self.run)[before:]
            opened = {event["round"] for event in later if event["event"] == "round-opened"}
            closes = [event for event in later if event["event"] == "round-closed" and event["round"] in opened]
            return any(event["folded"] == sorted(sites) for event in closes)

        self.until(f"a round of {sites}", closed)

    def until_left_out(self, site: str, code: str = "") -> Mapping[str, Any]:
        """Waits until a site is left out from now on, for that reason; what is written about it."""
        before = len(self.events(self.run, "site-left-out"))

        def newest() -> Sequence[Mapping[str, Any]]:
            found = [event["left_out"] for event in self.events(self.run, "site-left-out")[before:]]
            return [out for out in found if out["site"] == site and code in ("", out["code"])]

        found: Mapping[str, Any] = self.until(f"{site} is left out by {code}", newest)[-1]
        return found

    def until_logged(self, of: str, process: str, *words: str, since: str = "") -> str:
        """Waits for a line with these words that was not there before; gives it."""

        def line() -> str:
            lines = self.log(of, process)[len(since) :].splitlines()
            return next((line for line in lines if all(word in line for word in words)), "")

        return str(self.until(f"{words} in {process} of {of}", line))


def _new(now: Mapping[str, int], before: Mapping[str, int], name: str) -> bool:
    return name in now and now[name] != before.get(name)


@contextmanager
def federation(folder: Path) -> Iterator[Federation]:
    """In a folder; nothing runs yet, and nothing does afterwards."""
    made = Federation(folder)
    try:
        yield made
    finally:
        made.close()


def moment() -> int:
    """Now."""
    return int(time.time())
