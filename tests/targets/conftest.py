"""A task of each kind of label with rows for it, and federations of real sites over them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.data.site_data import SiteData
from fedloop_clients.outbox import Outbox
from fedloop_clients.policy import Budget, SiteConfig
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core.dataset import Dataset
from fedloop_core.noise import SeededNoise
from fedloop_core.task.document import Task
from fedloop_server.home import CoordinatorHome
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import RunState
from fedloop_simulations.federation import run_in_process
from fedloop_simulations.keys import rehearsal_key

SITES = ("north", "east", "south")


@dataclass(frozen=True)
class Target:
    """A task, a federation's rows, and rows that nobody trains on."""

    task: Task
    rows: Mapping[str, Dataset]
    unseen: Dataset

    def changed(self, **parts: Mapping[str, Any]) -> Target:
        """The same with other settings, given by part of the document."""
        document = self.task.model_dump()
        for part, settings in parts.items():
            document[part].update(settings)
        return Target(Task.model_validate(document, strict=False), self.rows, self.unseen)


@dataclass(frozen=True)
class Federation:
    """A run that has ended: its state, the coordinator's folder, and each site's ledger."""

    state: RunState
    home: CoordinatorHome
    ledgers: Mapping[str, Ledger]


def make_target(label: dict[str, Any], ranges: list[tuple[float, float]], values: Any, labels: Any) -> Target:
    """Deals rows: a third unseen, the others to the sites."""
    task = Task.model_validate(
        {
            "format": 1,
            "name": str(label["kind"]),
            "features": [{"kind": "numeric", "name": f"x{at}", "range": bounds} for at, bounds in enumerate(ranges)],
            "label": label,
            "model": {"kind": "logistic"},
            "training": {"algorithm": "fedavg", "local_steps": 10, "batch_size": 64, "learning_rate": 0.1},
            "privacy": {"epsilon": math.inf, "delta": 1e-4},
            "rounds": {"count": 6, "evaluate_every": 3},
            "export": {"targets": ["onnx-fp32"]},
        },
        strict=False,
    )
    order = np.random.default_rng(0).permutation(len(values))
    rows = Dataset(
        {"numeric": np.asarray(values, dtype=np.float32)[order]},
        np.asarray(labels)[order],
        tuple(f"row-{at}" for at in order),
    )
    third = len(rows) // 3
    dealt = {site: rows.take(np.arange(third + at, len(rows), len(SITES))) for at, site in enumerate(SITES)}
    return Target(task, dealt, rows.take(np.arange(third)))


def _classes() -> Target:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    values = bunch.data[:, :6]
    ranges = [(float(low), float(high)) for low, high in zip(values.min(axis=0), values.max(axis=0), strict=True)]
    label = {"kind": "classes", "name": "y", "classes": ("malignant", "benign")}
    return make_target(label, ranges, values, bunch.target.astype(np.int64))


def _regression() -> Target:
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes(scaled=False)
    ranges = [(float(low), float(high)) for low, high in zip(bunch.data.min(0), bunch.data.max(0), strict=True)]
    label = {"kind": "regression", "name": "y", "range": (25.0, 350.0), "unit": "points"}
    return make_target(label, ranges, bunch.data, bunch.target.astype(np.float32))


def _survival() -> Target:
    """Proportional hazards with two effects and a feature without any; a third of the times are censored."""
    generator = np.random.default_rng(7)
    values = generator.normal(size=(450, 3)).clip(-3, 3)
    hazard = np.exp(0.9 * values[:, 0] - 0.6 * values[:, 1])
    event, censored = generator.exponential(10 / hazard), generator.exponential(20, 450)
    labels = np.stack([np.minimum(event, censored).clip(0, 99), event <= censored], axis=1).astype(np.float32)
    label = {"kind": "survival", "time": "t", "event": "e", "time_range": (0.0, 100.0)}
    return make_target(label, [(-3.0, 3.0)] * 3, values, labels)


TARGETS: dict[str, Callable[[], Target]] = {
    "classes": _classes,
    "regression": _regression,
    "survival": _survival,
}


@pytest.fixture(scope="session")
def targets() -> dict[str, Target]:
    """One of each kind of label."""
    return {kind: make() for kind, make in TARGETS.items()}


@pytest.fixture
def federate(tmp_path: Path) -> Callable[..., Federation]:
    """Runs a federation to its end."""

    def run(target: Target) -> Federation:
        home, task = CoordinatorHome(tmp_path / "coordinator"), target.task
        budget = Budget(epsilon=math.inf if not task.privacy.private else 20.0, delta=task.privacy.delta)
        ledgers: dict[str, Ledger] = {}
        daemons: dict[str, SiteDaemon] = {}
        for site, rows in target.rows.items():
            ledgers[site] = Ledger(tmp_path / f"{site}-ledger.db", _clock)
            quarter = len(rows) // 4
            daemons[site] = SiteDaemon(
                SiteConfig(site=site, training_budget=budget, evaluation_budget=budget),
                SiteData(rows.take(np.arange(quarter, len(rows))), rows.take(np.arange(quarter)), secret=b"s" * 32),
                ledgers[site],
                Outbox(tmp_path / f"{site}-outbox.db"),
                SeededNoise(3, site),
                home.envelope_key.verifying,
                _clock,
                signing_key=rehearsal_key(site),
            )
        plan = RunPlan(run_id="run-1", task=task, seed=3, private=False, expected_sites=len(daemons), export=False)
        return Federation(run_in_process(home, plan, daemons, lambda *_: None), home, ledgers)

    return run


def _clock() -> int:
    return int(time.time())
