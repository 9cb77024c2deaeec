"""Whatever the label: a federation of real sites learns it, measures it by the label's own measure, and is charged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedloop_clients.data.site_data import EVALUATION, ORIGINAL
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.schema import ClassLabel
from fedloop_server.runs.events import ErrorsMeasured
from fedloop_simulations.scoring import measured_outputs, metric_of

KINDS = ("classes", "regression", "survival")


def constant_predictor(target: Any) -> np.ndarray:
    """Outputs of the best model that looks at no feature."""
    trained = np.concatenate([rows.labels for rows in target.rows.values()])
    rows = len(target.unseen)
    if isinstance(target.task.label, ClassLabel):
        return np.tile(np.bincount(trained).astype(np.float32), (rows, 1))
    guess = np.median(trained) if trained.ndim == 1 else 0.0
    return np.full((rows, 1), guess, dtype=np.float32)


def value_of(target: Any, outputs: np.ndarray) -> float:
    """The label's measure on rows that nobody trained on, so that more is better."""
    label = target.task.label
    metric = metric_of(label, measured_outputs(label, outputs, target.unseen.labels))
    assert metric is not None
    return metric.value if metric.measure.rises else -metric.value


@pytest.mark.parametrize("kind", KINDS)
def test_a_federation_learns_better_than_a_constant(kind: str, targets: Any, federate: Callable[..., Any]) -> None:
    target = targets[kind]
    federation = federate(target)
    assert federation.state.failure is None
    outputs = LocalTrainer(target.task).outputs(federation.home.trained_arrays("run-1"), target.unseen, target.unseen)
    found, constant = value_of(target, outputs), value_of(target, constant_predictor(target))
    margin = {"classes": 0.1, "regression": 12.0, "survival": 0.15}[kind]
    assert found > constant + margin
    (measured,) = {m.kind for closed in federation.state.rounds for m in closed.measured}
    assert measured == kind


def test_a_private_regression_is_charged_and_noised(targets: Any, federate: Callable[..., Any]) -> None:
    target = targets["regression"].changed(
        privacy={"epsilon": 4.0, "delta": 1e-3}, training={"batch_size": 256, "local_steps": 2}
    )
    federation = federate(target)
    assert federation.state.failure is None
    measured = [m for closed in federation.state.rounds for m in closed.measured]
    assert len(measured) == 3
    assert all(isinstance(m, ErrorsMeasured) and m.noise_scale > 0 and m.width == 325 for m in measured)
    for site, ledger in federation.ledgers.items():
        assert 3.5 < max(s.run_epsilon for c in federation.state.rounds for s in c.spends if s.site == site) <= 4.0
        assert ledger.spend(ORIGINAL).epsilon > 3.5
        assert 0 < ledger.spend(EVALUATION).epsilon < 20.0
