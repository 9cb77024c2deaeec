"""Training without privacy: the loop anyone would write by hand, and nothing carried between rounds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedloop_clients.training.rows import shuffled_batches
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.dataset import Dataset
from fedloop_core.encoding import InputEncoder
from fedloop_core.errors import TooFewRows, UpdateRefused, UsageError
from fedloop_core.models import build_model, initial_arrays, per_row_loss
from fedloop_core.noise import SeededNoise
from fedloop_core.scaling import Scaler
from fedloop_core.schema import (
    CategoricalFeature,
    ClassLabel,
    Feature,
    ImageFeature,
    Label,
    NumericFeature,
    RegressionLabel,
    SurvivalLabel,
)
from fedloop_core.task.document import (
    CnnModel,
    FederatedAveraging,
    LogisticModel,
    MlpModel,
    Model,
    Preprocessing,
    Privacy,
    Task,
)

Arrays = dict[str, NDArray[Any]]
TABLE: tuple[Feature, ...] = (
    NumericFeature(kind="numeric", name="age", range=(0.0, 100.0), missing="mean"),
    NumericFeature(kind="numeric", name="dose", range=(0.0, 1.0)),
    CategoricalFeature(kind="categorical", name="sex", values=("f", "m"), other=True),
)
CLASSES = ClassLabel(kind="classes", name="y", classes=("a", "b", "c"))


def plain_task(
    features: tuple[Feature, ...] = TABLE,
    label: Label = CLASSES,
    model: Model | None = None,
    scaling: str = "range",
    **training: float,
) -> Task:
    settings = {"algorithm": "fedavg", "local_steps": 7, "batch_size": 8, "learning_rate": 0.1} | training
    return Task(
        format=1,
        name="plain",
        features=features,
        label=label,
        model=model or MlpModel(kind="mlp", hidden=(8,)),
        preprocessing=Preprocessing.model_validate({"scaling": scaling}),
        training=FederatedAveraging.model_validate(settings),
        privacy=Privacy(epsilon=float("inf")),
    )


def rows_for(task: Task, count: int = 30) -> Dataset:
    generator = np.random.default_rng(5)
    inputs: dict[str, NDArray[np.generic]] = {}
    for spec in InputEncoder(task.feature_schema).inputs:
        if spec.name == "categorical":
            inputs[spec.name] = generator.integers(0, 3, (count, *spec.shape))
        else:
            inputs[spec.name] = generator.uniform(0, 1, (count, *spec.shape)).astype(np.float32)
    labels: NDArray[np.generic]
    match task.label:
        case ClassLabel():
            labels = generator.integers(0, len(task.label.classes), count)
        case RegressionLabel():
            labels = generator.uniform(0, 10, count).astype(np.float32)
        case SurvivalLabel():
            labels = np.stack([generator.uniform(0, 9, count), generator.integers(0, 2, count)], 1).astype(np.float32)
    return Dataset(inputs, labels, tuple(f"u{at}" for at in range(count)))


def start(task: Task) -> Arrays:
    scaler = Scaler.from_ranges(task.feature_schema)
    return {**initial_arrays(task, 3), **(scaler.arrays() if task.feature_schema.numeric else {})}


TASKS = {
    "plain": plain_task(),
    "momentum and decay": plain_task(momentum=0.9, weight_decay=0.01),
    "FedProx": plain_task(proximal=0.7),
    "regression": plain_task(label=RegressionLabel(kind="regression", name="y", range=(0.0, 10.0))),
    "logistic": plain_task(model=LogisticModel(kind="logistic")),
    "image": plain_task(
        features=(ImageFeature(kind="image", name="scan", height=8, width=8),),
        model=CnnModel(kind="cnn", channels=(4,), hidden=8),
    ),
}


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS.keys())
def test_training_is_the_loop_written_by_hand(task: Task) -> None:
    arrays, rows = start(task), rows_for(task)
    ours = LocalTrainer(task).train(arrays, rows, seed=42)
    assert ours.steps == 7
    assert isinstance(task.training, FederatedAveraging)
    settings = task.training
    model = build_model(task)
    model.load_trainable_arrays(initial_arrays(task, 3))
    origin = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(
        model.parameters(), settings.learning_rate, settings.momentum, weight_decay=settings.weight_decay
    )
    inputs = [torch.from_numpy(array) for array in rows.inputs.values()]
    labels = torch.from_numpy(rows.labels)
    for places in shuffled_batches(len(rows), settings.batch_size, 7, 42):
        optimizer.zero_grad()
        loss = per_row_loss(task, model(*(values[places] for values in inputs)), labels[places]).mean()
        drift = sum(((p - o) ** 2).sum() for p, o in zip(model.parameters(), origin, strict=True))
        (loss + settings.proximal / 2 * drift).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for (name, new), old in zip(model.named_parameters(), origin, strict=True):
        np.testing.assert_allclose(ours.update[name], (new.detach() - old).numpy(), atol=1e-6)
    assert list(ours.update) == list(initial_arrays(task, 3))
    assert all(array.dtype == np.float32 for array in ours.update.values())


def test_survival_is_trained_by_partial_likelihood() -> None:
    task = plain_task(label=SurvivalLabel(kind="survival", time="t", event="e", time_range=(0.0, 9.0)))
    result = LocalTrainer(task).train(start(task), rows_for(task), seed=1)
    assert any((array != 0).any() for array in result.update.values())


def test_a_round_does_not_depend_on_what_came_before() -> None:
    task = plain_task(momentum=0.9)
    arrays, rows = start(task), rows_for(task)
    fresh = LocalTrainer(task).train(arrays, rows, seed=8)
    used = LocalTrainer(task)
    used.train(arrays, rows, seed=7)
    used.outputs(arrays, rows, rows)
    again = used.train(arrays, rows, seed=8)
    for name, array in fresh.update.items():
        np.testing.assert_array_equal(array, again.update[name])


def test_other_rows_and_another_scaler_are_prepared_anew() -> None:
    task = plain_task()
    arrays, rows = start(task), rows_for(task)
    trainer = LocalTrainer(task)
    first = trainer.train(arrays, rows, seed=1)
    moved = {**arrays, "scaler.mean": arrays["scaler.mean"] * np.float32(0.9)}
    assert any((trainer.train(moved, rows, 1).update[n] != first.update[n]).any() for n in first.update)
    half = rows.take(range(15))
    assert any((trainer.train(arrays, half, 1).update[n] != first.update[n]).any() for n in first.update)


def test_scaling_per_site_is_by_the_sites_own_rows() -> None:
    task = plain_task(scaling="per-site")
    arrays, rows = start(task), rows_for(task)
    trainer = LocalTrainer(task)
    moved = {**arrays, "scaler.mean": arrays["scaler.mean"] + np.float32(5)}
    first, second = trainer.train(arrays, rows, 1), trainer.train(moved, rows, 1)
    for name, array in first.update.items():
        np.testing.assert_array_equal(array, second.update[name])


def test_batches_pass_over_all_rows_before_any_comes_again() -> None:
    batches = [batch.tolist() for batch in shuffled_batches(10, 4, 6, 0)]
    assert [len(batch) for batch in batches] == [4, 4, 2, 4, 4, 2]
    assert sorted(chain(*batches[:3])) == sorted(chain(*batches[3:])) == list(range(10))
    assert batches[:3] != batches[3:]


def _without_scaler(arrays: Arrays) -> Arrays:
    return {name: array for name, array in arrays.items() if not name.startswith("scaler")}


def _reordered(arrays: Arrays) -> Arrays:
    return dict(sorted(arrays.items(), reverse=True))


def _not_finite(arrays: Arrays) -> Arrays:
    name = next(iter(arrays))
    return {**arrays, name: np.full_like(arrays[name], np.nan)}


def _broadcastable(arrays: Arrays) -> Arrays:
    name = next(name for name in arrays if name.endswith("bias"))
    return {**arrays, name: arrays[name][:1]}


BROKEN: dict[str, Callable[[Arrays], Arrays]] = {
    "no scaler": _without_scaler,
    "another order": _reordered,
    "not finite": _not_finite,
    "a shape that would broadcast": _broadcastable,
    "double precision": lambda arrays: {name: array.astype(np.float64) for name, array in arrays.items()},
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_arrays_that_do_not_fit_are_refused(broken: Callable[[Arrays], Arrays]) -> None:
    task = plain_task()
    with pytest.raises(UpdateRefused):
        LocalTrainer(task).train(broken(start(task)), rows_for(task), seed=1)


def test_weights_that_explode_are_refused_and_never_sent() -> None:
    task = plain_task(
        label=RegressionLabel(kind="regression", name="y", range=(0.0, 1.0)), learning_rate=1e30, local_steps=50
    )
    with pytest.raises(UpdateRefused, match="not finite"):
        LocalTrainer(task).train(start(task), rows_for(task), seed=1)


def test_no_rows_are_refused() -> None:
    task = plain_task()
    with pytest.raises(TooFewRows):
        LocalTrainer(task).train(start(task), rows_for(task).take([]), seed=1)


def test_a_public_task_is_never_trained_by_the_private_path() -> None:
    task = plain_task()
    with pytest.raises(UsageError, match="not private"):
        LocalTrainer(task).train_privately(start(task), rows_for(task), 1.0, 0.5, SeededNoise(1), expected_batch_size=8)
