"""Models of the user's own: what is taken and what is refused, and why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedloop_core.errors import TaskInvalid
from fedloop_core.models import build_model, initial_arrays
from fedloop_core.task.document import Task

FACTORIES = '''
import torch
from torch import nn


class Sum(nn.Module):
    """Adds a linear layer over numbers and an embedding of codes."""

    def __init__(self, schema):
        super().__init__()
        self.linear = nn.Linear(len(schema.numeric), schema.outputs)
        self.embedding = nn.Embedding(schema.categorical[0].cardinality, schema.outputs)

    def forward(self, numbers, codes):
        return self.linear(numbers) + self.embedding(codes[:, 0])


class Narrow(Sum):
    def forward(self, numbers, codes):
        return super().forward(numbers, codes)[:, :1]


def normed(schema):
    network = Sum(schema)
    network.norm = nn.BatchNorm1d(3)
    return network


def double(schema):
    return Sum(schema).double()


def raises(schema):
    raise KeyError("no such table")


def no_module(schema):
    return [1, 2]


class RaisesLater(Sum):
    def forward(self, numbers, codes):
        raise RuntimeError("shapes do not match")


class Frozen(Sum):
    """Adapts a network that is drawn anew at each call."""

    def __init__(self, schema):
        super().__init__(schema)
        self.linear.requires_grad_(False)


no_function = 7
'''


@pytest.fixture(autouse=True)
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trial_factories.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)


def make_task(factory: str) -> Task:
    return Task.model_validate(
        {
            "format": 1,
            "name": "trial",
            "features": (
                {"kind": "numeric", "name": "age", "range": (0.0, 100.0), "missing": "mean"},
                {"kind": "categorical", "name": "sex", "values": ("f", "m")},
            ),
            "label": {"kind": "classes", "name": "y", "classes": ("a", "b", "c")},
            "model": {"kind": "custom", "factory": factory},
            "privacy": {"epsilon": 1.0},
        }
    )


def test_the_module_gets_scaled_numbers_and_codes() -> None:
    task = make_task("trial_factories:Sum")
    model = build_model(task)
    arrays = initial_arrays(task, 3)
    assert list(arrays) == ["backbone.linear.weight", "backbone.linear.bias", "backbone.embedding.weight"]
    model.load_trainable_arrays(arrays)
    outputs = model(torch.tensor([[75.0], [float("nan")], [1e9]]), torch.tensor([[1], [0], [1]]))
    weight, bias, table = arrays.values()
    expected = np.array([[1.0], [0.0], [2.0]]) @ weight.T + bias + table[[1, 0, 1]]
    np.testing.assert_allclose(outputs.detach(), expected, atol=1e-6)


def test_starting_weights_of_a_custom_model_leave_the_global_generator_alone() -> None:
    task = make_task("trial_factories:Sum")
    state = torch.get_rng_state()
    first, again, other = (initial_arrays(task, seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert any(not np.array_equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        pytest.param("no_such_module_of_ours:make", "cannot be imported", id="no module"),
        pytest.param("trial_factories:absent", "cannot be imported", id="no factory"),
        pytest.param("trial_factories:no_function", "is not a function", id="not callable"),
        pytest.param("trial_factories:raises", "no such table", id="factory raises"),
        pytest.param("trial_factories:no_module", "returns list", id="no torch module"),
        pytest.param("trial_factories:normed", "BatchNorm at norm", id="batch norm"),
        pytest.param("trial_factories:double", "not float32", id="float64"),
        pytest.param("trial_factories:Narrow", r"\(2, 1\) for 2 rows; \(2, 3\)", id="wrong width"),
        pytest.param("trial_factories:RaisesLater", "shapes do not match", id="forward raises"),
        pytest.param("trial_factories:Frozen", "other values there at each call", id="frozen at random"),
    ],
)
def test_what_is_no_model_is_refused(factory: str, reason: str) -> None:
    with pytest.raises(TaskInvalid, match=reason):
        build_model(make_task(factory))
