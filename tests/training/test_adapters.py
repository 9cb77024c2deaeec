"""Low-rank adapters beside frozen layers (LoRA, arXiv 2106.09685), trained privately: fault O14 of Opacus with other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn

from fedloop_clients.training.clipping import UnitClipping
from fedloop_clients.training.network import Network
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.dataset import Dataset
from fedloop_core.models import build_model, initial_arrays
from fedloop_core.noise import SeededNoise
from fedloop_core.scaling import Scaler
from fedloop_core.task import Task

FACTORY = '''
from pathlib import Path

from safetensors.torch import load_file
from torch import nn


class Adapted(nn.Module):
    """``frozen(x) + up(down(x))``: the change has rank 2, and starts as none."""

    def __init__(self, frozen):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, 2, bias=False)
        self.up = nn.Linear(2, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


def adapted(schema):
    network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, schema.outputs))
    network.load_state_dict(load_file(Path(__file__).with_name("base.safetensors")))
    return nn.Sequential(Adapted(network[0]), network[1], Adapted(network[2]))
'''


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nn.Sequential:
    torch.manual_seed(11)
    network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    save_file(network.state_dict(), tmp_path / "base.safetensors")
    (tmp_path / "adapted_networks.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    return network


def task() -> Task:
    return Task.model_validate(
        {
            "format": 1,
            "name": "adapt",
            "features": tuple({"kind": "numeric", "name": f"x{n}", "range": (-3.0, 3.0)} for n in range(4)),
            "label": {"kind": "classes", "name": "y", "classes": ("a", "b")},
            "model": {"kind": "custom", "factory": "adapted_networks:adapted"},
            "training": {"algorithm": "fedavg", "local_steps": 60, "batch_size": 100, "learning_rate": 0.5},
            "privacy": {"epsilon": 4.0, "clipping_norm": 1.0},
        }
    )


def rows(count: int) -> Dataset:
    generator = np.random.default_rng(8)
    values = generator.uniform(-3, 3, (count, 4)).astype(np.float32)
    labels = (values[:, 0] - values[:, 1] > 0).astype(np.int64)
    return Dataset({"numeric": values}, labels, tuple("" for _ in range(count)))


def merged(base: nn.Sequential, arrays: Mapping[str, NDArray[Any]]) -> nn.Sequential:
    """The base with each adapter added to its weight: what would be used without knowing of adapters."""
    network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    network.load_state_dict(base.state_dict())
    with torch.no_grad():
        for place in (0, 2):
            change = arrays[f"backbone.{place}.up.weight"] @ arrays[f"backbone.{place}.down.weight"]
            network.get_parameter(f"{place}.weight").add_(torch.from_numpy(change))
    return network


def test_adapters_learn_privately_alone_and_merge(base: nn.Sequential) -> None:
    adapt, table = task(), rows(400)
    trainer = LocalTrainer(adapt)
    start: dict[str, NDArray[Any]] = dict(initial_arrays(adapt, 1))
    assert set(start) == {f"backbone.{place}.{part}.weight" for place in (0, 2) for part in ("down", "up")}
    found = trainer.train_privately(
        {**start, **Scaler.from_ranges(adapt.feature_schema).arrays()},
        table,
        1.0,
        0.25,
        SeededNoise(5),
        expected_batch_size=100.0,
    )
    assert set(found.update) == set(start)
    assert all(np.abs(change).max() > 1e-4 for change in found.update.values())  # each of them moved
    arrays: dict[str, NDArray[Any]] = {name: start[name] + change for name, change in found.update.items()}
    before, after = (
        trainer.outputs({**values, **Scaler.from_ranges(adapt.feature_schema).arrays()}, table, table).argmax(axis=1)
        == table.labels
        for values in (start, arrays)
    )
    assert after.mean() > max(before.mean(), 0.8)
    model = build_model(adapt)
    model.load_trainable_arrays(arrays)
    prepared = model.prepared(torch.from_numpy(table.inputs["numeric"]))
    with torch.no_grad():
        torch.testing.assert_close(merged(base, arrays)(*prepared), model.backbone(*prepared), rtol=1e-4, atol=1e-5)


def test_book_is_kept_of_adapters_alone(base: nn.Sequential) -> None:
    network = Network(task())
    assert [parameter.shape for parameter in network.parameters] == [(2, 4), (16, 2), (2, 16), (2, 2)]
    assert UnitClipping(network).keeps_book
    frozen = dict(network.backbone.named_parameters())
    for place in (0, 2):
        assert torch.equal(frozen[f"{place}.frozen.weight"], base.get_parameter(f"{place}.weight"))
