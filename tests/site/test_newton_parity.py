"""Sums over sites give what pooled rows give, on the heart data of four hospitals."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from fedloop_clients.statistics import exact_moments
from fedloop_clients.training.newton import log_odds, sum_derivatives
from fedloop_core.dataset import Dataset
from fedloop_core.encoding import InputEncoder, Row
from fedloop_core.errors import UpdateRefused
from fedloop_core.newton import Standardisation, design_columns, design_matrix, logistic_coefficients
from fedloop_core.schema import CategoricalFeature, ClassLabel, Feature, NumericFeature
from fedloop_core.task.document import LogisticModel, NewtonRaphson, Preprocessing, Privacy, Task

FOLDER = Path(__file__).parents[2].parent / "shared" / "data" / "heart_disease_4hospitals"
CENTRALISED = (0.75, 0.7528, 0.75, 0.6)
FEDERATED_SCALER = (0.7692, 0.7978, 0.8125, 0.8222)
NAMES = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")
FEATURES: tuple[Feature, ...] = (
    *(
        NumericFeature(kind="numeric", name=name, range=(-1000.0, 1000.0))
        for name in NAMES
        if name not in {"cp", "restecg"}
    ),
    CategoricalFeature(kind="categorical", name="cp", values=("1", "2", "3", "4")),
    CategoricalFeature(kind="categorical", name="restecg", values=("0", "1", "2")),
)


def heart_task(scaling: str) -> Task:
    return Task(
        format=1,
        name="heart",
        features=FEATURES,
        label=ClassLabel(kind="classes", name="disease", classes=("0", "1")),
        model=LogisticModel(kind="logistic"),
        preprocessing=Preprocessing.model_validate({"scaling": scaling}),
        training=NewtonRaphson(algorithm="newton", ridge=1.0),
        privacy=Privacy(epsilon=float("inf")),
    )


@pytest.fixture(scope="module")
def hospitals() -> list[tuple[Dataset, Dataset]]:
    if not FOLDER.is_dir():
        pytest.skip("the heart data of four hospitals are not beside the repository")
    encoder = InputEncoder(heart_task("per-site").feature_schema)
    return [_hospital(encoder, name) for name in ("cleveland", "hungarian", "switzerland", "va")]


def _hospital(encoder: InputEncoder, name: str) -> tuple[Dataset, Dataset]:
    with (FOLDER / f"processed.{name}.data").open() as file:
        cells = [line[:10] + line[13:] for line in csv.reader(file) if line]
    kept = [line for line in cells if "?" not in line]
    rows: list[Row] = [dict(zip(NAMES, map(float, line), strict=False)) for line in kept]
    labels = np.array([int(float(line[10]) > 0) for line in kept], dtype=np.int64)
    stratify = labels if min(np.bincount(labels)) > 2 else None
    split = train_test_split(
        np.arange(len(rows)), test_size=1 - 0.66, train_size=0.66, random_state=43, shuffle=True, stratify=stratify
    )
    whole = Dataset(encoder.encode(rows), labels, tuple(f"{name}-{at}" for at in range(len(rows))))
    return whole.take(split[0]), whole.take(split[1])


def fit(task: Task, sites: list[Dataset], scaler: Standardisation | None) -> dict[str, NDArray[np.generic]]:
    theta = np.zeros(1 + len(design_columns(task.feature_schema)))
    beside = {} if scaler is None else scaler.arrays()
    for _ in range(4):
        parts = [sum_derivatives(task, {"theta": theta, **beside}, rows) for rows in sites]
        hessian = sum(part.hessian for part in parts) + np.eye(len(theta))
        theta = theta + np.linalg.solve(hessian, sum(part.gradient for part in parts))
    return {"theta": theta, **beside}


def accuracies(
    task: Task, arrays: dict[str, NDArray[np.generic]], hospitals: list[tuple[Dataset, Dataset]]
) -> list[float]:
    return [
        float((log_odds(task, arrays, test, train).argmax(axis=1) == test.labels).mean()) for train, test in hospitals
    ]


def shared_scaler(task: Task, sites: list[Dataset]) -> Standardisation:
    moments = [exact_moments(task, rows) for rows in sites]
    return Standardisation.from_moments(
        np.sum([m.total for m in moments], axis=0),
        np.sum([m.total_of_squares for m in moments], axis=0),
        np.sum([m.count for m in moments], axis=0),
    )


def test_scaling_per_hospital_gives_the_published_accuracies(hospitals: list[tuple[Dataset, Dataset]]) -> None:
    task = heart_task("per-site")
    arrays = fit(task, [train for train, _ in hospitals], None)
    assert accuracies(task, arrays, hospitals) == pytest.approx(CENTRALISED, abs=5e-5)


def test_a_federated_scaler_gives_the_known_accuracies(hospitals: list[tuple[Dataset, Dataset]]) -> None:
    task = heart_task("federated")
    sites = [train for train, _ in hospitals]
    arrays = fit(task, sites, shared_scaler(task, sites))
    assert accuracies(task, arrays, hospitals) == pytest.approx(FEDERATED_SCALER, abs=5e-5)


def test_sums_over_sites_equal_pooled_rows(hospitals: list[tuple[Dataset, Dataset]]) -> None:
    task = heart_task("federated")
    sites = [train for train, _ in hospitals]
    pooled = sites[0]
    for rows in sites[1:]:
        pooled = pooled.concatenate(rows)
    scaler = shared_scaler(task, sites)
    together = shared_scaler(task, [pooled])
    np.testing.assert_allclose(scaler.deviation, together.deviation, rtol=1e-12)
    federated = fit(task, sites, scaler)["theta"].astype(np.float64)
    centralised = fit(task, [pooled], together)["theta"].astype(np.float64)
    np.testing.assert_allclose(federated, centralised, rtol=0, atol=1e-12)


def test_coefficients_on_all_categories_give_the_same_log_odds(hospitals: list[tuple[Dataset, Dataset]]) -> None:
    task = heart_task("federated")
    schema = task.feature_schema
    rows = hospitals[0][0]
    scaler = shared_scaler(task, [rows])
    arrays = fit(task, [rows], scaler)
    full = logistic_coefficients(arrays["theta"].astype(np.float64), schema, scaler)
    numeric = len(schema.numeric)
    numbers = design_matrix(rows.inputs, schema, scaler)[:, :numeric]
    codes = rows.inputs["categorical"]
    one_hot = [codes[:, [at]] == np.arange(f.cardinality) for at, f in enumerate(schema.categorical)]
    columns = np.concatenate([np.ones((len(rows), 1)), numbers, *one_hot], axis=1)
    np.testing.assert_allclose(columns @ full, log_odds(task, arrays, rows, rows)[:, 1], atol=1e-5)


NUMERIC = 8
COLUMNS = 13


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"scaler.mean": np.zeros(5), "scaler.deviation": np.ones(5)}, "shape"),
        ({"scaler.mean": np.zeros(COLUMNS), "scaler.deviation": np.ones(NUMERIC)}, "shape"),
        ({"scaler.mean": np.zeros(COLUMNS), "scaler.deviation": np.zeros(COLUMNS)}, "scaler"),
        ({"scaler.mean": np.full(COLUMNS, np.nan), "scaler.deviation": np.ones(COLUMNS)}, "scaler"),
        ({"scaler.mean": np.zeros(COLUMNS)}, "scaler"),
    ],
    ids=["too short", "unequal", "deviation of 0", "not finite", "half"],
)
def test_a_scaler_that_does_not_fit_the_design_is_refused(arrays: dict[str, NDArray[np.generic]], reason: str) -> None:
    with pytest.raises(UpdateRefused) as caught:
        Standardisation.from_arrays(heart_task("federated").feature_schema, arrays)
    assert caught.value.fields["reason"] == reason


def test_a_scaler_of_the_numbers_alone_leaves_dummies_as_they_are() -> None:
    arrays = {"scaler.mean": np.full(NUMERIC, 2.0), "scaler.deviation": np.full(NUMERIC, 4.0)}
    scaler = Standardisation.from_arrays(heart_task("range").feature_schema, arrays)
    assert scaler.mean.tolist() == [2.0] * 8 + [0.0] * 5
    assert scaler.deviation.tolist() == [4.0] * 8 + [1.0] * 5
    assert design_columns(heart_task("range").feature_schema)[NUMERIC:] == (
        "cp=2",
        "cp=3",
        "cp=4",
        "restecg=1",
        "restecg=2",
    )
