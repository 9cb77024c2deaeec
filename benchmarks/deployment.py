"""A whole deployment on this machine, as a person would set it up: empty folders, commands, real processes, TLS.

Nothing here reaches into the product: everything is done by ``fedloop`` commands, and what runs is read from
``supervisor.json``, as an operator would. Processes end with the block, also when it fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["CommandFailed", "Deployment", "SiteSetup", "wait_until"]

FEDLOOP = str(Path(sys.executable).with_name("fedloop"))
PATIENCE_SECONDS = 300.0


class CommandFailed(RuntimeError):
    """A command ended with another status than 0; the message is what it said."""


def wait_until(what: str, holds: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Waits for a condition.

    Raises:
        TimeoutError: it did not come to hold.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.1)


@dataclass(frozen=True)
class SiteSetup:
    """A site that is to be: its name and the text of its tables in site.toml (``[data]``, ``[budget.…]``, …)."""

    name: str
    settings: str


@dataclass
class Deployment:
    """A coordinator and its sites under one folder. ``single_user``: all processes as the user who calls."""

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        """The coordinator's folder."""
        return self.folder / "coordinator"

    def site_home(self, site: str) -> Path:
        """A site's folder."""
        return self.folder / "sites" / site

    def fedloop(self, *arguments: str, json_output: bool = False, timeout: float = PATIENCE_SECONDS) -> Any:
        """Runs one command to its end; returns what it printed, read as JSON when it was asked for.

        Raises:
            CommandFailed: it ended with another status than 0.
        """
        command = [self.program(), *arguments, *(["--json"] if json_output else [])]
        done = subprocess.run(
            command, env=self._environment(), capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode != 0:
            raise CommandFailed(f"fedloop {' '.join(arguments)} ended {done.returncode}: {done.stderr}{done.stdout}")
        return json.loads(done.stdout) if json_output else done.stdout

    def program(self, of: str = "") -> str:  # noqa: ARG002  another installation may stand for a site's
        """The command of the coordinator ("coordinator"), of a site, or (empty) of who sets both up."""
        return FEDLOOP

    def begin(self, public: str = "localhost", settings: str = "") -> None:
        """Sets the coordinator up, under the name that sites are told and with more settings (TOML), and starts it."""
        self.fedloop(
            "server", "init", "--home", str(self.home), "--name", "rehearsal", "--public", public,
            "--front-port", "0", "--hub-port", "0", "--superlink-port", "0", "--health-port", "0",
        )  # fmt: skip
        with (self.home / "server.toml").open("a") as file:
            file.write(settings)
        self.start_server()

    def start_server(self) -> None:
        """Starts the coordinator's supervisor and waits until all of its processes run."""
        self._start("coordinator", self.home, "server", "up", "--home", str(self.home), "--single-user")

    def token(self, site: str) -> str:
        """Adds a site at the coordinator; returns the token by which it joins."""
        return str(self.fedloop("server", "site", "add", site, "--home", str(self.home), json_output=True)["token"])

    def add_site(self, setup: SiteSetup, *join_options: str) -> None:
        """Adds a site, joins it, writes its settings, and starts it."""
        token = self.token(setup.name)
        self.site_home(setup.name).parent.mkdir(parents=True, exist_ok=True)
        self.fedloop("site", "join", token, "--home", str(self.site_home(setup.name)), "--yes", *join_options)
        _settle(self.site_home(setup.name) / "site.toml", setup)
        self.start_site(setup.name)

    def start_site(self, site: str) -> None:
        """Starts a site's supervisor and waits until all of its processes run."""
        home = self.site_home(site)
        self._start(site, home, "site", "up", "--home", str(home), "--single-user")

    def start_run(self, task: str, *options: str) -> str:
        """Starts a run; returns its id."""
        return str(self.fedloop("run", "start", task, "--home", str(self.home), *options, json_output=True)["run"])

    def show(self, run_id: str) -> dict[str, Any]:
        """What ``fedloop run show --json`` says."""
        return dict(self.fedloop("run", "show", run_id, "--home", str(self.home), json_output=True))

    def journal(self, run_id: str) -> list[dict[str, Any]]:
        """The events of a run that are whole, as they lie in its journal."""
        path = self.home / "runs" / run_id / "journal.jsonl"
        if not path.exists():
            return []
        *whole, _ = path.read_bytes().split(b"\n")
        return [json.loads(line) for line in whole]

    def events(self, run_id: str, kind: str) -> list[dict[str, Any]]:
        """The events of one kind."""
        return [event for event in self.journal(run_id) if event["event"] == kind]

    def wait_for_rounds(self, run_id: str, rounds: int, seconds: float = PATIENCE_SECONDS) -> None:
        """Waits until so many rounds have closed."""
        wait_until(f"round {rounds} of {run_id}", lambda: len(self.events(run_id, "round-closed")) >= rounds, seconds)

    def wait_for_end(self, run_id: str, seconds: float = 300.0) -> str:
        """Waits for the run's last event; returns its kind."""
        ends = ("run-finished", "run-failed", "run-stopped")
        wait_until(f"the end of {run_id}", lambda: any(self.events(run_id, kind) for kind in ends), seconds)
        return next(kind for kind in ends if self.events(run_id, kind))

    def processes(self, of: str) -> dict[str, int]:
        """Process ids by name of the coordinator ("coordinator") or of a site, of those that run."""
        home = self.home if of == "coordinator" else self.site_home(of)
        told = json.loads((home / "supervisor.json").read_bytes())
        return {process["name"]: process["pid"] for process in told["processes"] if process["state"] == "running"}

    def kill(self, of: str, name: str) -> None:
        """Kills one process, as a fault would."""
        os.kill(self.processes(of)[name], signal.SIGKILL)

    def kill_all(self, of: str) -> None:
        """Kills the supervisor and, with it, every process that it started."""
        supervisor = self.running.pop(of)
        supervisor.kill()
        supervisor.wait()

    def stop(self, of: str, seconds: float = 60.0) -> None:
        """Stops the coordinator or a site as Ctrl-C would."""
        supervisor = self.running.pop(of)
        supervisor.terminate()
        supervisor.wait(seconds)

    def _start(self, of: str, home: Path, *arguments: str) -> None:
        log = (self.folder / f"{of}.log").open("ab")
        with log:
            self.running[of] = subprocess.Popen(
                [self.program(of), *arguments], env=self._environment(), stdout=log, stderr=subprocess.STDOUT
            )
        wait_until(f"{of} is up", lambda: self._is_up(of, home))

    def _is_up(self, of: str, home: Path) -> bool:
        if self.running[of].poll() is not None:
            raise CommandFailed(f"{of} ended: {(self.folder / f'{of}.log').read_text()}")
        state = home / "supervisor.json"
        if not state.exists():
            return False
        told = json.loads(state.read_bytes())
        return told.get("supervisor_pid", self.running[of].pid) == self.running[of].pid and all(
            process["state"] == "running" for process in told["processes"]
        )

    def _environment(self) -> dict[str, str]:
        own = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"}
        return own | dict(self.environment)

    def close(self) -> None:
        """Stops what runs; kills what does not stop."""
        for supervisor in self.running.values():
            supervisor.terminate()
        for supervisor in self.running.values():
            try:
                supervisor.wait(60)
            except subprocess.TimeoutExpired:
                supervisor.kill()
                supervisor.wait()
        self.running.clear()


def _settle(path: Path, setup: SiteSetup) -> None:
    """Puts the site's own tables in place of those of the starter file."""
    head = re.split(r"^\[", path.read_text(), maxsplit=1, flags=re.MULTILINE)[0]
    path.write_text(head + setup.settings)


@contextlib.contextmanager
def deployed(
    folder: Path, sites: Sequence[SiteSetup], environment: Mapping[str, str] | None = None
) -> Iterator[Deployment]:
    """A coordinator with these sites, up and joined, that ends with the block."""
    deployment = Deployment(folder, environment or {})
    try:
        deployment.begin()
        for setup in sites:
            deployment.add_site(setup)
        yield deployment
    finally:
        deployment.close()
