"""The four hospitals reach the published accuracies through the real federation (FLamby, arXiv 2210.04620)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.metrics import precision_score

from fedloop_clients.training.newton import log_odds
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.dataset import Dataset
from fedloop_core.newton import design_matrix
from fedloop_core.task.document import NewtonRaphson, Task
from fedloop_simulations.data import SiteRows, load_world
from fedloop_simulations.tasks import chosen_task

SHARED = Path(__file__).parents[2].parent / "shared"
HEART = SHARED / "data" / "heart_disease_4hospitals"
ORACLE = SHARED / "oracles" / "fed_heart.json"
pytestmark = pytest.mark.skipif(
    not (HEART.is_dir() and ORACLE.is_file()), reason="the UCI files and their oracle are not beside the repository"
)
SEEDS = range(42, 47)
Scaling = Literal["federated", "per-site"]
Matrix = NDArray[np.float64]


def hospitals(task: Task) -> tuple[SiteRows, ...]:
    """Training and test rows of the published protocol."""
    return load_world(task, data=HEART, evaluation_share=1.0).sites


@pytest.fixture(scope="module")
def oracle() -> Any:
    return json.loads(ORACLE.read_text())


def test_the_split_is_the_published_one() -> None:
    """Rows of each hospital, and of each outcome among them, after train_test_split(random_state=43)."""
    sites = hospitals(chosen_task("heart"))
    assert [(len(site.train), len(site.evaluation)) for site in sites] == [(199, 104), (172, 89), (30, 16), (85, 45)]
    train = [np.bincount(site.train.labels.astype(np.int64), minlength=2).tolist() for site in sites]
    test = [np.bincount(site.evaluation.labels.astype(np.int64), minlength=2).tolist() for site in sites]
    assert train[0][0] + test[0][0] == 164
    for site in (0, 1, 3):  # stratified: the same mix in both parts
        assert train[site][1] / sum(train[site]) == pytest.approx(test[site][1] / sum(test[site]), abs=0.02)
    assert train[2][0] + test[2][0] == 1


@pytest.mark.parametrize(("scaling", "least"), [("federated", 0.79), ("per-site", 0.685)])
def test_averaging_reaches_the_published_accuracy(
    scaling: Scaling, least: float, federation: Callable[..., Any], oracle: Any
) -> None:
    if scaling == "per-site":
        assert least == oracle["protocol_A_per_hospital_scaling"]["FedAvg"]["mean"]
    task = chosen_task("heart", epsilon=float("inf"), scaling=scaling)
    sites = hospitals(task)
    scorer = LocalTrainer(task)
    accuracies = []
    for seed in SEEDS:
        members = federation(task, sites, seed)
        state = members.run()
        assert state.failure is None
        assert state.left_out == ()
        arrays = members.home.trained_arrays("run-1")
        accuracies.append([_accuracy(scorer.outputs(arrays, s.evaluation, s.train), s.evaluation) for s in sites])
    assert np.mean(accuracies) >= least


def _accuracy(outputs: NDArray[np.float32], rows: Dataset) -> float:
    return float((outputs.argmax(axis=1) == rows.labels).mean())


@pytest.mark.parametrize("scaling", ["per-site", "federated"])
def test_newton_over_hospitals_is_newton_over_all_rows(
    scaling: Scaling, federation: Callable[..., Any], oracle: Any
) -> None:
    preset = chosen_task("heart", epsilon=float("inf"), scaling=scaling, rounds=4)
    task = preset.model_copy(update={"training": NewtonRaphson(algorithm="newton", ridge=1.0)})
    sites = hospitals(task)
    members = federation(task, sites, 1)
    state = members.run()
    assert state.failure is None
    assert state.completed_rounds == 4
    arrays = members.home.trained_arrays("run-1")
    theta = _centralised(task, sites, pooled=scaling == "federated")
    assert np.abs(arrays["theta"].astype(np.float64) - theta).max() < 1e-9

    listed = oracle["newton_logistic_regression"]
    answers = [log_odds(task, arrays, site.evaluation, site.train).argmax(axis=1) for site in sites]
    accuracy = [float((answer == s.evaluation.labels).mean()) for answer, s in zip(answers, sites, strict=True)]
    wanted = listed["accuracy" if scaling == "per-site" else "federated_scaler_accuracy"]
    assert [round(value, 4) for value in accuracy] == wanted
    if scaling == "per-site":
        precision = [precision_score(s.evaluation.labels, a) for a, s in zip(answers, sites, strict=True)]
        assert [round(float(value), 4) for value in precision] == listed["precision"]


def _centralised(task: Task, sites: tuple[SiteRows, ...], *, pooled: bool) -> Matrix:
    """Four Newton steps in numpy over all rows at once, standardised over all rows or hospital by hospital."""
    designs = [design_matrix(site.train.inputs, task.feature_schema) for site in sites]
    designs = [_standardised(np.concatenate(designs))] if pooled else [_standardised(design) for design in designs]
    columns = np.concatenate(designs)
    matrix = np.concatenate([np.ones((len(columns), 1)), columns], axis=1)
    labels = np.concatenate([site.train.labels for site in sites]).astype(np.float64)
    theta = np.zeros(matrix.shape[1])
    for _ in range(4):
        probability = expit(matrix @ theta)
        hessian = (matrix * (probability * (1 - probability))[:, None]).T @ matrix
        theta = theta + np.linalg.solve(hessian + np.eye(len(theta)), matrix.T @ (labels - probability))
    return theta


def _standardised(design: Matrix) -> Matrix:
    scaled: Matrix = (design - design.mean(axis=0)) / (design.std(axis=0, ddof=1) + 1e-9)
    return scaled
