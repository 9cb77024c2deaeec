"""What the tests of a whole deployment share: tasks, rows, what sites have written down, and someone between relay and daemon."""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from deployment import Deployment, SiteSetup
from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.data.source import load_site_data
from fedloop_clients.endpoint import Question, Reply
from fedloop_clients.home import SiteHome
from fedloop_clients.outbox import Outbox
from fedloop_clients.policy import Budget, SiteConfig
from fedloop_clients.privacy.entries import ReserveEntry, parse_entry
from fedloop_clients.privacy.ledger import Ledger
from fedloop_clients.socket_endpoint import SocketEndpoint
from fedloop_clients.socket_server import SocketServer
from fedloop_core.durable import write_bytes
from fedloop_core.noise import SystemNoise
from fedloop_core.task import Task
from fedloop_core.task.presets import preset_text
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, Envelope, Instruction
from fedloop_server.home import CoordinatorHome
from fedloop_simulations.data.bundled import BUNDLED
from fedloop_simulations.federation import run_in_process
from fedloop_simulations.keys import rehearsal_key

__all__ = [
    "HEART",
    "HOSPITALS",
    "PATIENCE",
    "Between",
    "Books",
    "Held",
    "between",
    "bundled_site",
    "heart_site",
    "heart_task",
    "hearts_are_here",
    "last_digest",
    "now",
    "repeated_in_process",
    "settle",
    "small_task",
]

PATIENCE = 300.0  # seconds for anything that must happen at all: the machine may be busy
HEART = Path("/work/shared/data/heart_disease_4hospitals")
HOSPITALS = ("cleveland", "hungarian", "va")
_FEATURES = {
    "mean_radius": (5, 30),
    "mean_texture": (9, 40),
    "mean_smoothness": (0.05, 0.17),
    "worst_area": (180, 4300),
}
_SITES = 6  # among which the bundled rows are dealt
_HEART_COLUMNS = [
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "num",
]
_HEART_LABELS = {"0": "healthy"} | dict.fromkeys("1234", "diseased")
_BUDGET = "[budget]\ntraining = { epsilon = inf, delta = 1e-4 }\nevaluation = { epsilon = inf, delta = 1e-4 }\n"

Behaviour = Callable[[Instruction, Callable[[], Reply]], Reply]


def now() -> int:
    return int(time.time())


def small_task(
    folder: Path, name: str, *, rounds: Mapping[str, Any], epsilon: float = math.inf, steps: int = 5
) -> Path:
    """A logistic regression over four columns of the bundled rows, with a shared scaler."""
    features = [
        f'{{ kind = "numeric", name = "{column}", range = [{low}, {high}] }}'
        for column, (low, high) in _FEATURES.items()
    ]
    given = {"evaluate_every": 0, "weighting": '"rows"', "deadline_seconds": PATIENCE} | dict(rounds)
    path = folder / f"{name}.toml"
    path.write_text(
        f'format = 1\nname = "{name}"\nfeatures = [{", ".join(features)}]\n'
        '[label]\nkind = "classes"\nname = "diagnosis"\nclasses = ["malignant", "benign"]\n'
        '[model]\nkind = "logistic"\n[preprocessing]\nscaling = "federated"\n'
        f'[training]\nalgorithm = "fedavg"\nlocal_steps = {steps}\nbatch_size = 16\nlearning_rate = 0.1\n'
        f"[privacy]\nepsilon = {epsilon}\ndelta = 1e-3\n"
        "[rounds]\n" + "".join(f"{key} = {value}\n" for key, value in given.items())
    )
    return path


def bundled_site(folder: Path, name: str, part: int) -> SiteSetup:
    """A site with every sixth row of the bundled breast cancer data, written as its CSV file."""
    rows, labels = BUNDLED["breast-cancer"]()
    path = folder / f"{name}.csv"
    lines = [",".join((*_FEATURES, "diagnosis"))]
    lines += [
        ",".join((*(repr(rows[at][column]) for column in _FEATURES), labels[at]))
        for at in range(part, len(rows), _SITES)
    ]
    path.write_text("\n".join(lines) + "\n")
    return SiteSetup(name, f"[data]\nfile = {json.dumps(str(path))}\n\n{_BUDGET}")


def heart_site(folder: Path, name: str, hospital: str) -> SiteSetup:
    """A site with a hospital's file as it was published, its own copy of it."""
    path = folder / f"{name}.data"
    path.write_bytes((HEART / f"processed.{hospital}.data").read_bytes())
    labels = ", ".join(f'"{text}" = "{label}"' for text, label in _HEART_LABELS.items())
    return SiteSetup(
        name,
        f"[data]\nfile = {json.dumps(str(path))}\n"
        f"columns = {json.dumps(_HEART_COLUMNS)}\n"
        f'missing = ["?"]\nmap.num = {{ recode = {{ {labels} }} }}\n\n{_BUDGET}',
    )


def settle(deployment: Deployment, setup: SiteSetup) -> None:
    """Writes other settings into the site.toml of a site that runs."""
    path = deployment.site_home(setup.name) / "site.toml"
    head = path.read_text().partition("\n[data]")[0]
    write_bytes(path, (head + "\n" + setup.settings).encode())


def heart_task(folder: Path, rounds: int) -> Path:
    """The preset without privacy, so that it can be repeated, and short."""
    path = folder / "heart.toml"
    text = preset_text("heart", task="heart").replace("epsilon = 5.0", "epsilon = inf")
    text = re.sub("^count = .*$", f"count = {rounds}\ndeadline_seconds = {PATIENCE}", text, flags=re.MULTILINE)
    path.write_text(text)
    return path


def hearts_are_here() -> bool:
    """Whether the hospitals' files are here."""
    return all((HEART / f"processed.{hospital}.data").exists() for hospital in HOSPITALS)


def last_digest(deployment: Deployment, run: str) -> str:
    """Of the weights after the last round, as the journal has it and as the checkpoint's arrays give it."""
    closed = deployment.events(run, "round-closed")
    return str(closed[-1]["digest"])


def repeated_in_process(deployment: Deployment, run: str, sites: Sequence[str], folder: Path) -> list[str]:
    """The same plan with the same rows, trained in this process; digests of the weights after each round."""
    plan = CoordinatorHome(deployment.home).plan(run)
    home = CoordinatorHome(folder / "coordinator")
    endpoints = {site: _daemon(deployment, plan.task, site, folder / site, home) for site in sites}
    state = run_in_process(home, plan, endpoints, lambda _state, _event: None)
    return [closed.digest for closed in state.rounds]


def _daemon(deployment: Deployment, task: Task, site: str, folder: Path, home: CoordinatorHome) -> SiteDaemon:
    budget = Budget(epsilon=math.inf, delta=1e-4)
    return SiteDaemon(
        SiteConfig(site=site, training_budget=budget, evaluation_budget=budget),
        load_site_data(SiteHome(deployment.site_home(site)), task),
        Ledger(folder / "ledger.db", now),
        Outbox(folder / "outbox.db"),
        SystemNoise(),
        home.envelope_key.verifying,
        now,
        signing_key=rehearsal_key(site),
    )


class Books:
    """What a site has written down: its ledger, its outbox and its logs. It may go on writing meanwhile."""

    def __init__(self, deployment: Deployment, site: str) -> None:
        self.home = SiteHome(deployment.site_home(site))

    def answered(self, run: str) -> Counter[tuple[str, int]]:
        """How often each kind of question was answered, by kind and round: what is kept, not what was sent."""
        with closing(sqlite3.connect(f"file:{self.home.outbox_file}?mode=ro", uri=True)) as outbox:
            bodies = [Answer.FromString(body) for (body,) in outbox.execute("SELECT body FROM answer")]
        return Counter((str(kept.WhichOneof("result")), kept.round) for kept in bodies if kept.run_id == run)

    def charged(self, run: str) -> Counter[str]:
        """How often each purpose of a run was reserved."""
        return Counter(entry.purpose for entry in self.reserved(run))

    def reserved(self, run: str) -> list[ReserveEntry]:
        """The reservations of a run."""
        with closing(sqlite3.connect(f"file:{self.home.ledger_file}?mode=ro", uri=True)) as ledger:
            entries = [parse_entry(body) for (body,) in ledger.execute("SELECT body FROM entry ORDER BY sequence")]
        return [entry for entry in entries if isinstance(entry, ReserveEntry) and entry.run_id == run]

    def ledger(self) -> Ledger:
        """The ledger itself, opened beside the daemon; close it."""
        return self.home.ledger()

    def logged(self) -> str:
        """Everything that the site's processes have logged."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.home.logs.glob("*.log")))


class Between:
    """Stands between a site's relay and its daemon, as a site would act that was built wrongly or taken over.

    ``behaviour`` is given the instruction and what asks the daemon; without one, answers pass as they are.
    """

    def __init__(self, home: SiteHome, behaviour: Behaviour) -> None:
        self._path = home.daemon_socket
        self._daemon = self._path.with_name("real.sock")
        self._behaviour = behaviour
        self._path.rename(self._daemon)
        self._server = SocketServer(self._path, self, allowed_users=frozenset({os.getuid()}))

    def answer(self, question: Question) -> Reply:
        instruction = Instruction.FromString(Envelope.FromString(question.envelope).instruction)
        return self._behaviour(instruction, lambda: SocketEndpoint(self._daemon).answer(question))

    def close(self) -> None:
        self._server.close()
        self._daemon.rename(self._path)


@contextmanager
def between(home: SiteHome, behaviour: Behaviour) -> Iterator[Between]:
    """Stands there for the length of the block."""
    standing = Between(home, behaviour)
    try:
        yield standing
    finally:
        standing.close()


class Held:
    """Lets a site train and holds its answer back, from round ``number`` on: the round is open for as long."""

    def __init__(self, number: int) -> None:
        self._number: float = number
        self._reached = 0
        self._changed = threading.Condition()

    def __call__(self, instruction: Instruction, ask: Callable[[], Reply]) -> Reply:
        reply = ask()
        if instruction.HasField("train_locally"):
            with self._changed:
                self._reached = instruction.round
                self._changed.notify_all()
                self._changed.wait_for(lambda: instruction.round < self._number, PATIENCE)
        return reply

    def wait(self) -> None:
        """Until an answer is held."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._reached >= self._number, PATIENCE), "no answer was ever held"

    def let_go(self, until: float = math.inf) -> None:
        """Lets the answers of the rounds before ``until`` pass."""
        with self._changed:
            self._number = until
            self._changed.notify_all()
