"""The deployment that is killed: two sites with made rows, two tasks, and what is seen of it from outside.

No process of it knows that it is watched: phases are read from the journal, the site's ``status.json``, the number of
answers in its outbox, and /proc.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployment import Deployment, SiteSetup
from fedloop_core.processes.environment import MARK
from fedloop_core.processes.procfs import carries
from fedloop_server.runs.lock import driver_of

__all__ = ["COORDINATOR", "SITES", "Scene", "children_of", "scene"]

COORDINATOR = "coordinator"
SITES = ("first", "second")
_ROWS = 120
_FEATURES = 8
_SEED = "7"
_BUDGETS = "".join(f"\n[budget.{kind}]\nepsilon = inf\ndelta = 1e-4\n" for kind in ("training", "evaluation"))
_PRIVACY = {False: "epsilon = inf", True: "epsilon = 8.0\ndelta = 1e-4"}
_HIDDEN = {False: "[640, 512]", True: "[16]"}  # exact: megabytes, so that sending and writing take a while
_STEPS = {False: 3000, True: 400}  # a second or two, so that the training of a round can be seen and met


def _task(rounds: int, *, private: bool) -> str:
    features = "\n".join(f'  {{ kind = "numeric", name = "x{n}", range = [-4, 4] }},' for n in range(_FEATURES))
    return f"""format = 1
name = "chaos-{"private" if private else "exact"}"
features = [
{features}
]

[label]
kind = "classes"
name = "y"
classes = ["no", "yes"]

[model]
kind = "mlp"
hidden = {_HIDDEN[private]}

[training]
algorithm = "fedavg"
local_steps = {_STEPS[private]}
batch_size = 32
learning_rate = 0.01

[privacy]
{_PRIVACY[private]}

[rounds]
count = {rounds}
quorum = 0.5
deadline_seconds = 400.0
evaluate_every = 0

[export]
targets = ["onnx-fp32"]
"""


def _rows(site: str) -> str:
    chance = random.Random(site)  # noqa: S311  made rows guard nothing
    lines = [",".join([*(f"x{n}" for n in range(_FEATURES)), "y"])]
    for _ in range(_ROWS):
        values = [max(-4.0, min(4.0, chance.gauss(0, 1))) for _ in range(_FEATURES)]
        label = "yes" if sum(values) + chance.gauss(0, 1) > 0 else "no"
        lines.append(",".join([*(f"{value:.4f}" for value in values), label]))
    return "\n".join(lines) + "\n"


@dataclass
class Scene(Deployment):
    """A deployment that may move to another folder, and eyes."""

    moved: str = COORDINATOR

    @property
    def home(self) -> Path:
        """The coordinator's folder."""
        return self.folder / self.moved

    def begin_run(self, name: str, rounds: int, *, private: bool = False, export: bool = False) -> str:
        """Starts a run of both sites."""
        task = self.folder / f"{name}.toml"
        task.write_text(_task(rounds, private=private))
        options = ["--name", name, "--seed", _SEED, "--sites", str(len(SITES))]
        return self.start_run(str(task), *options, *([] if export else ["--no-export"]))

    def last(self, run_id: str) -> str:
        """Kind of the newest event."""
        events = self.journal(run_id)
        return str(events[-1]["event"]) if events else "nothing"

    def status(self, site: str) -> dict[str, Any]:
        """``status.json`` of a site's daemon; nothing while it is not there."""
        try:
            return dict(json.loads((self.site_home(site) / "status.json").read_bytes()))
        except FileNotFoundError:
            return {}

    def answers(self, site: str) -> int:
        """Questions that a site has answered and kept, each counted once."""
        return _count(self.site_home(site) / "outbox.db", "SELECT count(*) FROM answer")

    def charges(self, site: str, run_id: str) -> int:
        """Trainings that a site's ledger holds for a run: each is written down before it begins."""
        query = "SELECT count(*) FROM entry WHERE CAST(body AS TEXT) LIKE ?"
        return _count(self.site_home(site) / "ledger.db", query, f'%"run_id":"{run_id}","purpose":"round %')

    def driver(self, run_id: str) -> int | None:
        """The ServerApp of a run."""
        return driver_of(self.home / "runs" / run_id) or None

    def client_app(self, site: str) -> int | None:
        """The ClientApp that works at a site: the child of the relay."""
        relay = self.processes(site).get("relay")
        children = children_of(relay) if relay is not None else ()
        return children[0] if children else None

    def left(self) -> list[int]:
        """Processes of this deployment that live."""
        homes = [self.home, *(self.site_home(site) for site in SITES)]
        return [pid for pid in _pids() if any(carries(pid, MARK, str(home.resolve())) for home in homes)]

    def server_apps(self) -> list[int]:
        """ServerApps that live."""
        mark = str(self.home.resolve())
        return [pid for pid in _pids() if b"flwr-serverapp" in _command(pid) and carries(pid, MARK, mark)]


def children_of(pid: int) -> tuple[int, ...]:
    """Processes whose parent is ``pid``."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return ()
    return tuple(int(child) for child in text.split())


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _count(path: Path, query: str, *values: str) -> int:
    if not path.exists():
        return 0
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as connection:
        try:
            return int(connection.execute(query, values).fetchone()[0])
        except sqlite3.OperationalError:  # its tables are not made yet
            return 0


@contextlib.contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    """A coordinator and both sites, up and joined; they end with the block."""
    made = Scene(folder)
    try:
        made.begin()
        for site in SITES:
            (folder / f"{site}.csv").write_text(_rows(site))
            made.add_site(SiteSetup(site, f'[data]\nfile = "{folder / f"{site}.csv"}"\n{_BUDGETS}'))
        yield made
    finally:
        made.close()
        _reap(made)


def _reap(made: Scene) -> None:
    """What a supervisor that was killed has left ends too."""
    deadline = time.monotonic() + 10
    while (left := made.left()) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
