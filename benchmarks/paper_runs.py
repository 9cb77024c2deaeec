"""The heart task trained in process for the published tables: the federation's own code, on the hospitals' files."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.data.site_data import SiteData
from fedloop_clients.outbox import Outbox
from fedloop_clients.policy import Budget, SiteConfig
from fedloop_clients.privacy.ledger import Ledger
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.arrays import NamedArrays
from fedloop_core.dataset import Dataset
from fedloop_core.noise import SeededNoise
from fedloop_core.task import Task
from fedloop_server.home import CoordinatorHome
from fedloop_server.runs.events import SiteSpend
from fedloop_server.runs.plan import RunPlan
from fedloop_simulations.data import World
from fedloop_simulations.federation import run_in_process
from fedloop_simulations.keys import rehearsal_key

__all__ = ["RunFailed", "accuracies", "trained"]


class RunFailed(Exception):
    """The run did not end well."""


def trained(task: Task, world: World, seed: int) -> tuple[NamedArrays, tuple[SiteSpend, ...]]:
    """Runs the federation in process; returns the arrays at its end, and what each site says to have spent.

    Raises:
        RunFailed: the run did not end well.
    """
    budget = Budget(epsilon=math.inf, delta=1e-4)
    with tempfile.TemporaryDirectory(prefix="fedloop-paper-") as folder:
        home = CoordinatorHome(Path(folder))
        endpoints = {
            site.name: SiteDaemon(
                SiteConfig(site=site.name, training_budget=budget, evaluation_budget=budget),
                SiteData(site.train, site.evaluation, secret=bytes(16), skipped=site.skipped),
                Ledger(":memory:", lambda: 0),
                Outbox(":memory:"),
                SeededNoise(seed, site.name),
                home.envelope_key.verifying,
                lambda: 0,
                signing_key=rehearsal_key(site.name),
            )
            for site in world.sites
        }
        plan = RunPlan(
            run_id="paper",
            task=task,
            seed=seed,
            private=False,
            expected_sites=len(endpoints),
            export=False,
            durable=False,
        )
        state = run_in_process(home, plan, endpoints, lambda _state, _event: None)
        if state.failure is not None:
            raise RunFailed(state.failure.reason)
        return dict(home.trained_arrays("paper")), state.rounds[-1].spends


def accuracies(task: Task, world: World, arrays: NamedArrays) -> list[float]:
    """Accuracy at 0.5 on each hospital's test rows."""
    trainer = LocalTrainer(task)
    return [_accuracy(trainer, arrays, site.evaluation, site.train) for site in world.sites]


def _accuracy(trainer: LocalTrainer, arrays: NamedArrays, rows: Dataset, scaler_rows: Dataset) -> float:
    return float((trainer.outputs(arrays, rows, scaler_rows).argmax(axis=1) == rows.labels).mean())
