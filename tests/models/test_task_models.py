"""Each model against a numpy reference, with per-sample gradients, and with its arrays taken out and put back."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from opacus import GradSampleModule
from torch import nn

from fedloop_core.encoding import CATEGORICAL, NUMERIC, InputEncoder, Inputs
from fedloop_core.errors import UpdateRefused
from fedloop_core.models import TaskModel, build_model, design_matrix, initial_arrays, logistic_arrays, per_row_loss
from fedloop_core.scaling import Scaler
from fedloop_core.task.document import Task

CLASSES = {"kind": "classes", "name": "y", "classes": ("a", "b", "c")}
NUMBERS = (
    {"kind": "numeric", "name": "age", "range": (0.0, 120.0)},
    {"kind": "numeric", "name": "weight", "range": (-5.0, 5.0), "missing": "mean"},
)
CATEGORIES = (
    {"kind": "categorical", "name": "ward", "values": ("a", "b", "c"), "other": True},
    {"kind": "categorical", "name": "sex", "values": ("f", "m"), "missing": "category"},
)
IMAGE = {"kind": "image", "name": "scan", "height": 9, "width": 12, "channels": 2, "range": (0.0, 255.0)}
SIGNAL = {"kind": "signal", "name": "ecg", "length": 50, "channels": 3, "range": (-5.0, 5.0)}


def make_task(features: tuple[dict[str, Any], ...], model: dict[str, Any], label: dict[str, Any] = CLASSES) -> Task:
    return Task.model_validate(
        {
            "format": 1,
            "name": "trial",
            "features": features,
            "label": label,
            "model": model,
            "privacy": {"epsilon": float("inf")},
        }
    )


TASKS = {
    "logistic": make_task(NUMBERS + CATEGORIES, {"kind": "logistic"}),
    "logistic-numbers": make_task(NUMBERS, {"kind": "logistic"}),
    "logistic-categories": make_task(CATEGORIES, {"kind": "logistic"}),
    "mlp": make_task(NUMBERS + CATEGORIES, {"kind": "mlp", "hidden": (8, 6), "embedding": 3}),
    "mlp-regression": make_task(
        NUMBERS, {"kind": "mlp"}, {"kind": "regression", "name": "days", "range": (100.0, 300.0)}
    ),
    "cnn": make_task((IMAGE,), {"kind": "cnn", "channels": (4, 6)}),
    "cnn-beside-columns": make_task(NUMBERS + CATEGORIES + (IMAGE,), {"kind": "cnn", "channels": (5,)}),
    "signal-cnn": make_task((SIGNAL,), {"kind": "signal-cnn", "channels": (4, 8), "kernel": 6}),
}


def random_inputs(task: Task, rows: int, seed: int = 0) -> Inputs:
    """Rows in and around the ranges, with missing numbers where they may be."""
    generator = np.random.default_rng(seed)
    schema = task.feature_schema
    inputs: Inputs = {}
    if schema.numeric:
        low, high = np.array([feature.range for feature in schema.numeric]).T
        values = generator.uniform(low - (high - low), high + (high - low), (rows, len(low))).astype(np.float32)
        may_miss = np.array([feature.missing == "mean" for feature in schema.numeric])
        values[(generator.random(values.shape) < 0.3) & may_miss] = np.nan
        inputs[NUMERIC] = values
    if schema.categorical:
        columns = [generator.integers(0, feature.cardinality, rows) for feature in schema.categorical]
        inputs[CATEGORICAL] = np.stack(columns, axis=1)
    for tensor in schema.tensors:
        inputs[tensor.name] = generator.uniform(*tensor.range, (rows, *tensor.shape)).astype(np.float32)
    return inputs


def tensors(task: Task, inputs: Inputs) -> list[torch.Tensor]:
    return [torch.from_numpy(inputs[spec.name]) for spec in InputEncoder(task.feature_schema).inputs]


def loaded(task: Task, seed: int = 1) -> TaskModel:
    model = build_model(task).eval()
    model.load_trainable_arrays(initial_arrays(task, seed))
    return model


def numpy_columns(task: Task, inputs: Inputs, scaler: Scaler) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Scaled numbers and one-hot categories, the plain way, for a schema that has both."""
    schema = task.feature_schema
    low, high = np.array([feature.range for feature in schema.numeric]).T
    numbers = inputs[NUMERIC].astype(np.float64)
    filled = np.where(np.isnan(numbers), scaler.mean, numbers)
    scaled = (np.clip(filled, low, high) - scaler.mean) / scaler.deviation
    hot = [np.eye(f.cardinality)[inputs[CATEGORICAL][:, at]] for at, f in enumerate(schema.categorical)]
    return np.asarray(scaled, dtype=np.float64), np.concatenate(hot, axis=1)


SCALER = Scaler(np.array([40.0, 1.0], np.float32), np.array([12.0, 0.5], np.float32))


def test_logistic_is_what_numpy_computes() -> None:
    task = TASKS["logistic"]
    model, inputs = loaded(task), random_inputs(task, 40)
    model.set_scaler(SCALER)
    arrays = {name: array.astype(np.float64) for name, array in model.trainable_arrays().items()}
    columns = np.concatenate(numpy_columns(task, inputs, SCALER), axis=1)
    expected = columns @ arrays["backbone.linear.weight"].T + arrays["backbone.linear.bias"]
    np.testing.assert_allclose(model(*tensors(task, inputs)).detach(), expected, atol=1e-4)
    np.testing.assert_allclose(design_matrix(model, *tensors(task, inputs)), columns, atol=1e-5)


def test_mlp_is_what_numpy_computes() -> None:
    task = TASKS["mlp"]
    model, inputs = loaded(task), random_inputs(task, 40)
    model.set_scaler(SCALER)
    arrays = {name: array.astype(np.float64) for name, array in model.trainable_arrays().items()}
    numbers, _ = numpy_columns(task, inputs, SCALER)
    table = arrays["backbone.embedding.weight"]
    first, second = inputs[CATEGORICAL].T
    values = np.concatenate([numbers, table[first], table[4 + second]], axis=1)
    for at in (0, 2, 4):
        values = values @ arrays[f"backbone.layers.{at}.weight"].T + arrays[f"backbone.layers.{at}.bias"]
        values = values if at == 4 else np.maximum(values, 0)
    np.testing.assert_allclose(model(*tensors(task, inputs)).detach(), values, atol=1e-4)


def test_a_missing_number_shows_where_it_may_not_be() -> None:
    task = TASKS["logistic-numbers"]
    outputs = loaded(task)(torch.tensor([[float("nan"), 0.0], [40.0, float("nan")]]))
    assert torch.isnan(outputs[0]).all()
    assert torch.isfinite(outputs[1]).all()


def test_a_regression_answers_in_the_label_s_unit() -> None:
    task = TASKS["mlp-regression"]
    model = loaded(task)
    zero = {name: np.zeros_like(array) for name, array in model.trainable_arrays().items()}
    model.load_trainable_arrays(zero)
    inputs = tensors(task, random_inputs(task, 3))
    outputs = model(*inputs)
    assert outputs.tolist() == [[200.0]] * 3
    losses = per_row_loss(task, outputs, torch.tensor([200.0, 300.0, 900.0]))
    assert losses.tolist() == [0.0, 1.0, 1.0]


def test_theta_gives_log_odds() -> None:
    task = make_task(NUMBERS, {"kind": "logistic"}, {"kind": "classes", "name": "y", "classes": ("no", "yes")})
    model, inputs = build_model(task), tensors(task, random_inputs(task, 20))
    theta = np.array([0.3, -1.0, 2.0])
    model.load_trainable_arrays(logistic_arrays(theta))
    odds = theta[0] + design_matrix(model, *inputs) @ theta[1:]
    outputs = model(*inputs).detach().numpy()
    np.testing.assert_allclose(outputs[:, 1] - outputs[:, 0], odds, atol=1e-5)
    with pytest.raises(TypeError, match="logistic"):
        design_matrix(build_model(TASKS["mlp"]), *inputs)


@pytest.mark.parametrize("name", TASKS)
def test_opacus_sees_every_parameter(name: str) -> None:
    task = TASKS[name]
    plain, inputs = loaded(task).train(), tensors(task, random_inputs(task, 4))
    labels = torch.tensor([150.0, 200, 250, 300]) if "regression" in name else torch.tensor([0, 1, 2, 0])
    wrapped = GradSampleModule(copy.deepcopy(plain), strict=True, loss_reduction="sum")
    with warnings.catch_warnings():  # torch's note about hooks on a module whose inputs need no gradient
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        torch.autograd.backward(per_row_loss(task, wrapped(*inputs), labels).sum())
    samples = [parameter.grad_sample for parameter in wrapped.parameters()]
    assert len(samples) == len(plain.trainable_arrays())
    for row in range(4):
        plain.zero_grad()
        one = [values[row : row + 1] for values in inputs]
        torch.autograd.backward(per_row_loss(task, plain(*one), labels[row : row + 1]).sum())
        for parameter, sample in zip(plain.parameters(), samples, strict=True):
            torch.testing.assert_close(sample[row], parameter.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", TASKS)
def test_a_row_s_answer_does_not_depend_on_its_batch(name: str) -> None:
    task = TASKS[name]
    model, inputs = loaded(task), tensors(task, random_inputs(task, 6))
    together = model(*inputs)
    assert together.shape == (6, task.feature_schema.outputs)
    alone = torch.cat([model(*[values[row : row + 1] for values in inputs]) for row in range(6)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", TASKS)
def test_only_the_backbone_is_trained_and_arrays_come_back(name: str) -> None:
    task = TASKS[name]
    first, second = loaded(task, 1), loaded(task, 2)
    arrays = first.trainable_arrays()
    assert all(key.startswith("backbone.") and array.dtype == np.float32 for key, array in arrays.items())
    second.load_trainable_arrays(arrays)
    inputs = tensors(task, random_inputs(task, 3))
    assert torch.equal(first(*inputs), second(*inputs))
    assert torch.equal(first(*inputs), copy.deepcopy(first)(*inputs))
    arrays[next(iter(arrays))][...] = 1
    assert torch.equal(first(*inputs), second(*inputs)), "arrays are copies"
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in first.modules())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda arrays: dict(list(arrays.items())[1:]), id="one is absent"),
        pytest.param(lambda arrays: dict(reversed(list(arrays.items()))), id="another order"),
        pytest.param(lambda arrays: arrays | {"backbone.linear.bias": np.zeros(1, np.float32)}, id="another shape"),
        pytest.param(lambda arrays: arrays | {"backbone.linear.bias": np.zeros(3)}, id="another dtype"),
        pytest.param(lambda arrays: arrays | {"backbone.linear.bias": np.full(3, np.nan, np.float32)}, id="NaN"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change: Any) -> None:
    model = loaded(TASKS["logistic"])
    before = model.trainable_arrays()
    with pytest.raises(UpdateRefused):
        model.load_trainable_arrays(change(dict(before)))
    after = model.trainable_arrays()
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    "scaler",
    [
        pytest.param(Scaler(np.zeros(3, np.float32), np.ones(3, np.float32)), id="another number of features"),
        pytest.param(Scaler(np.zeros(2, np.float32), np.zeros(2, np.float32)), id="deviation 0"),
        pytest.param(Scaler(np.full(2, np.nan, np.float32), np.ones(2, np.float32)), id="NaN"),
    ],
)
def test_a_scaler_that_does_not_fit_is_refused(scaler: Scaler) -> None:
    with pytest.raises(UpdateRefused):
        build_model(TASKS["logistic"]).set_scaler(scaler)


@pytest.mark.parametrize("name", TASKS)
def test_starting_weights_depend_on_the_seed_alone(name: str) -> None:
    state = torch.get_rng_state()
    first, other = initial_arrays(TASKS[name], 5), initial_arrays(TASKS[name], 6)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    again = initial_arrays(TASKS[name], 5)
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert any(not np.array_equal(first[key], other[key]) for key in first)


@settings(max_examples=25, deadline=None)
@given(
    height=st.integers(4, 70),
    width=st.integers(4, 70),
    channels=st.lists(st.integers(4, 9), min_size=1, max_size=5),
    kernel=st.integers(3, 20),
)
def test_any_size_of_image_and_signal_fits(height: int, width: int, channels: list[int], kernel: int) -> None:
    image = IMAGE | {"height": height, "width": width}
    signal = SIGNAL | {"length": height * width}
    for task in (
        make_task((image,), {"kind": "cnn", "channels": tuple(channels)}),
        make_task((signal,), {"kind": "signal-cnn", "channels": tuple(channels), "kernel": kernel}),
    ):
        outputs = build_model(task)(*tensors(task, random_inputs(task, 2)))
        assert outputs.shape == (2, 3)
        assert torch.isfinite(outputs).all()
