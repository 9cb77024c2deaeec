"""A command run as people run it, tables of made-up wards to run it over, and federations of real sites in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.data.site_data import SiteData
from fedloop_clients.endpoint import SiteEndpoint
from fedloop_clients.outbox import Outbox
from fedloop_clients.policy import Budget, SiteConfig
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core.cli import main
from fedloop_core.noise import SeededNoise
from fedloop_core.secure_aggregation.identity import Consortium
from fedloop_core.task.document import Task
from fedloop_server.home import CoordinatorHome
from fedloop_server.runs.events import Event
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import RunState
from fedloop_simulations.data import SiteRows
from fedloop_simulations.federation import run_in_process
from fedloop_simulations.keys import rehearsal_consortium, rehearsal_key
from fedloop_simulations.summary import Summary

TASK = """format = 1
name = "wards"
features = [
  { kind = "numeric", name = "a", range = [-4, 4] },
  { kind = "numeric", name = "b", range = [-4, 4] },
]
[label]
kind = "classes"
name = "outcome"
classes = ["no", "yes"]
[model]
kind = "logistic"
[preprocessing]
scaling = "per-site"
[privacy]
epsilon = inf
delta = 1e-4
[rounds]
count = 2
"""
HEADER = "a,b,outcome\n"


@dataclass(frozen=True)
class Told:
    """What a command ended with."""

    status: int
    stdout: str
    stderr: str

    @property
    def last_line(self) -> str:
        """What it said last on stderr."""
        return self.stderr.rstrip().rsplit("\n", 1)[-1]


Command = Callable[..., Told]


@pytest.fixture
def simulate(capsys: pytest.CaptureFixture[str]) -> Command:
    """``fedloop simulate`` in this process, up to its exit status."""

    def call(*arguments: object) -> Told:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["simulate", *map(str, arguments)])
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        return Told(int(ended.value.code or 0), said.out, said.err)

    return call


@pytest.fixture
def start() -> Callable[..., subprocess.Popen[str]]:
    """Starts ``fedloop simulate`` as a process of its own."""

    def call(*arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "fedloop_core", "simulate", *map(str, arguments)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return call


@dataclass(frozen=True)
class Wards:
    """A folder with a task and a table for each of three wards; ``out`` is not there yet."""

    folder: Path

    @property
    def task(self) -> Path:
        return self.folder / "task.toml"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def arguments(self) -> tuple[object, ...]:
        """Of a simulation over these wards."""
        return (self.task, "--data", self.data, "--out", self.out)

    def table(self, name: str) -> Path:
        return self.data / f"{name}.csv"

    def summary(self) -> Summary:
        return Summary.model_validate_json((self.out / "summary.json").read_bytes())

    def change_task(self, old: str, new: str) -> None:
        text = self.task.read_text()
        assert old in text
        self.task.write_text(text.replace(old, new))

    def change_north(self, old: str, new: str, times: int = -1) -> None:
        text = self.table("north").read_text()
        self.table("north").write_text(text.replace(old, new, times))


def ward_table(rows: int, seed: int) -> str:
    values = np.random.default_rng(seed).normal(size=(rows, 2))
    return HEADER + "".join(f"{a:.4f},{b:.4f},{'yes' if a + b > 0 else 'no'}\n" for a, b in values)


@pytest.fixture
def make_wards(tmp_path: Path) -> Callable[[int], Wards]:
    """Wards with so many rows each."""

    def make(rows: int) -> Wards:
        wards = Wards(tmp_path)
        wards.task.write_text(TASK)
        wards.data.mkdir()
        for seed, name in enumerate(("north", "south", "west")):
            wards.table(name).write_text(ward_table(rows, seed))
        return wards

    return make


@pytest.fixture
def wards(make_wards: Callable[[int], Wards]) -> Wards:
    """Three wards of 60 rows; the task scales per site, so that a simulation ends after its run."""
    return make_wards(60)


@dataclass
class Federation:
    """Real sites and a coordinator's folder, in memory and temporary folders. ``folder`` None: nothing of sites lasts.

    ``knows``: sites whose people have accepted another consortium than all sites of the rehearsal.
    """

    task: Task
    rows: Sequence[SiteRows]
    seed: int
    home: CoordinatorHome
    folder: Path | None = None
    budget: float = float("inf")
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    knows: dict[str, Consortium | None] = field(default_factory=dict)

    def run(
        self,
        observe: Callable[[RunState, Event], None] = lambda state, event: None,
        wrap: Callable[[SiteEndpoint], SiteEndpoint] = lambda site: site,
    ) -> RunState:
        """Begins the run, or goes on with it, with daemons that are made afresh."""
        plan = RunPlan(
            run_id="run-1",
            task=self.task,
            seed=self.seed,
            private=False,
            expected_sites=len(self.rows),
            export=False,
            durable=False,
        )
        endpoints = {rows.name: wrap(self._site(rows)) for rows in self.rows}
        return run_in_process(self.home, plan, endpoints, observe)

    def _site(self, rows: SiteRows) -> SiteDaemon:
        budget = Budget(epsilon=self.budget, delta=self.task.privacy.delta)
        folder = ":memory:" if self.folder is None else self.folder / rows.name
        everybody = rehearsal_consortium(rows.name for rows in self.rows)
        self.ledgers[rows.name] = Ledger(folder if isinstance(folder, str) else folder / "ledger.db", lambda: 0)
        return SiteDaemon(
            SiteConfig(site=rows.name, training_budget=budget, evaluation_budget=budget),
            SiteData(rows.train, rows.evaluation, secret=b"sixteen bytes at least", skipped=rows.skipped),
            self.ledgers[rows.name],
            Outbox(folder if isinstance(folder, str) else folder / "outbox.db"),
            SeededNoise(self.seed, f"site {rows.name}"),
            self.home.envelope_key.verifying,
            lambda: 0,
            signing_key=rehearsal_key(rows.name),
            consortium=lambda: self.knows.get(rows.name, everybody),
        )


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Federation]:
    """Makes federations, each with a coordinator's folder of its own."""

    def make(task: Task, rows: Sequence[SiteRows], seed: int, **more: Any) -> Federation:
        return Federation(task, rows, seed, CoordinatorHome(tmp_path_factory.mktemp("home")), **more)

    return make
