"""What a custom model is built with and training does not move: bound in each question, and the same at every site."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.runs.scripted_sites import KEY, run
from tests.runs.scripted_sites import task as scripted_task
from tests.site.test_daemon import Site, arrays_of, make_task, refused
from torch import nn

from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.data.site_data import SiteData
from fedloop_clients.endpoint import Question, Reply
from fedloop_clients.outbox import Outbox
from fedloop_clients.policy import Budget, SiteConfig, SitePolicy
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core.dataset import Dataset
from fedloop_core.models import build_model, initial_model
from fedloop_core.noise import SeededNoise
from fedloop_core.task.aggregation import Mean
from fedloop_core.task.document import CustomModel, Task
from fedloop_proto.coordination.v1.coordination_pb2 import DescribeData, TrainLocally
from fedloop_server.runs.model import model_of
from fedloop_simulations.keys import rehearsal_key

FACTORY = """
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn


class OnFrozen(nn.Module):
    def __init__(self, schema):
        super().__init__()
        self.frozen = nn.Linear(len(schema.numeric), 4)
        self.frozen.load_state_dict(load_file(Path(__file__).with_name("frozen.safetensors")))
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(4, schema.outputs)
        self.register_buffer("shift", torch.zeros(4))
        self.register_buffer("computed", torch.ones(4), persistent=False)

    def forward(self, x):
        return self.head(self.frozen(x) + self.shift)
"""
POLICY = SitePolicy(model_modules=("nets_on_frozen_weights",))
CUSTOM = CustomModel(kind="custom", factory="nets_on_frozen_weights:OnFrozen")


class Weights:
    """The file with the frozen weights, which factories read when they are called."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "frozen.safetensors"
        self.inputs = 3

    def write(self, seed: int) -> None:
        torch.manual_seed(seed)
        save_file(nn.Linear(self.inputs, 4).state_dict(), self._file)


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    (tmp_path / "nets_on_frozen_weights.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "nets_on_frozen_weights", raising=False)
    made = Weights(tmp_path)
    made.write(1)
    return made


def custom(task: Task) -> Task:
    return task.model_copy(update={"model": CUSTOM})


def test_the_digest_is_of_what_is_not_trained(weights: Weights) -> None:
    task = custom(make_task())
    first = build_model(task)
    own = first.fixed_digest()
    assert own == initial_model(task, 7).fixed_digest() == model_of(task, 7).fixed_digest
    with torch.no_grad():
        first.get_parameter("backbone.head.weight").add_(1.0)  # what is trained
        first.get_buffer("backbone.computed").add_(1.0)  # what each place computes for itself
    assert first.fixed_digest() == own
    first.get_buffer("backbone.shift").add_(1.0)
    assert first.fixed_digest() != own
    weights.write(2)
    assert build_model(task).fixed_digest() != own
    assert build_model(make_task()).fixed_digest() == model_of(make_task(), 7).fixed_digest == b""


def private_site(folder: Path | None = None) -> Site:
    budget = Budget(epsilon=6.0, delta=1e-5)
    return Site(custom(make_task(2.0)), budget=budget, evaluation_budget=budget, policy=POLICY, folder=folder)


def described(site: Site, digest: bytes, **parts: Any) -> Any:
    work = DescribeData(task_document=site.task.canonical(), fixed_weights=digest)
    return site.ask(describe_data=work, **parts)[0]


def trained(site: Site, digest: bytes, number: int, **parts: Any) -> Any:
    work = TrainLocally(rounds_planned=site.task.rounds.count, fixed_weights=digest)
    return site.ask(arrays_of(site.task), round=number, train_locally=work, **parts)[0]


@pytest.mark.parametrize("digest", [b"", b"\0" * 32, b"x"], ids=["none", "another", "nonsense"])
def test_a_site_refuses_what_is_not_its_own_by_name_and_charges_nothing(weights: Weights, digest: bytes) -> None:
    site = private_site()
    assert refused(described(site, digest)) == ("FL-TASK-003", {})
    assert site.ledger.charges("original") == ()


def test_a_site_that_builds_another_model_after_a_restart_refuses_the_round(weights: Weights, tmp_path: Path) -> None:
    site = private_site(tmp_path)
    own = build_model(site.task).fixed_digest()
    assert described(site, own).data_description.admitted
    assert trained(site, own, 1).WhichOneof("result") == "local_update"
    weights.write(2)
    site.restart()
    before = site.ledger.charges("original")
    assert refused(trained(site, own, 2, attempt=2)) == ("FL-TASK-003", {})
    assert site.ledger.charges("original") == before


def test_models_without_frozen_weights_are_asked_for_none() -> None:
    site = Site(make_task())
    assert site.describe().data_description.admitted
    work = TrainLocally(rounds_planned=4, fixed_weights=b"\0" * 32)
    assert refused(site.ask(arrays_of(site.task), round=1, train_locally=work)[0]) == ("FL-TASK-003", {})


class Elsewhere:
    """A real site, on whose machine the file holds what it holds."""

    def __init__(self, name: str, weights: Weights, seed: int) -> None:
        self.name = name
        self._weights, self._seed = weights, seed
        values = np.random.default_rng(len(name)).uniform(0, 4, (120, 1)).astype(np.float32)
        rows = Dataset({"numeric": values}, (values[:, 0] > 2).astype(np.int64), tuple(f"u{at}" for at in range(120)))
        free = Budget(epsilon=math.inf)
        self._daemon = SiteDaemon(
            SiteConfig(site=name, policy=POLICY, training_budget=free, evaluation_budget=free),
            SiteData(rows.take(range(90)), rows.take(range(90, 120)), secret=b"s" * 32),
            Ledger(":memory:", lambda: 0),
            Outbox(":memory:"),
            SeededNoise(1),
            KEY.verifying,
            lambda: 0,
            signing_key=rehearsal_key(name),
        )

    def answer(self, question: Question) -> Reply:
        self._weights.write(self._seed)
        return self._daemon.answer(question)


def test_a_run_leaves_out_by_name_the_site_whose_frozen_weights_differ(
    weights: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "inputs", 1)
    weights.write(1)
    sites: list[Any] = [Elsewhere(name, weights, 2 if name == "north" else 1) for name in ("east", "north", "south")]
    _, state = run(tmp_path / "run", custom(scripted_task(Mean())), sites)
    assert {member.site for member in state.members} == {"east", "south"}
    assert [(out.site, out.code) for out in state.left_out] == [("north", "FL-TASK-003")]
    assert len(state.rounds) == 4
    assert all(set(closed.folded) == {"east", "south"} for closed in state.rounds)
