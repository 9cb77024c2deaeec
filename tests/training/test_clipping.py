"""Sums of clipped gradients without a gradient for each row: the same as autograd finds row by row, or not used at all."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedloop_clients.training.book_keeping import BookKeeping
from fedloop_clients.training.clipping import UnitClipping
from fedloop_clients.training.network import Network
from fedloop_clients.training.rows import PreparedRows
from fedloop_core.task import Task

ROWS = 7
CLASSES = 3


class Twice(nn.Module):
    """Uses one layer twice: its gradient is a sum of two, whose norm no single use tells."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(torch.relu(self.layer(x))))
        return out


class Bare(nn.Module):
    """Holds a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x * self.scale)
        return out


class LowRank(nn.Module):
    """A frozen layer and the adapter beside it, of which alone the gradient is wanted (LoRA, arXiv 2106.09685)."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, CLASSES).requires_grad_(False)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.frozen(x) + self.up(self.down(x))
        return out


class Words(nn.Module):
    """Looks up codes, some of them twice in a row, and mixes them place by place."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 5)
        self.norm = nn.LayerNorm(5)
        self.mix = nn.Linear(5, 6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, codes: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.mix(self.norm(self.table(codes)))).mean(dim=1))
        return out


def conv(layer: nn.Module, width: int, *rest: nn.Module) -> nn.Module:
    return nn.Sequential(layer, *rest, nn.Flatten(), nn.LazyLinear(CLASSES))


def images(*shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randn(ROWS, *shape, generator=generator)


def codes(generator: torch.Generator) -> Tensor:
    return torch.randint(3, (ROWS, 6), generator=generator)


KEPT: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], Tensor]]] = {
    "a linear layer": (lambda: nn.Linear(4, CLASSES), images(4)),
    "without a bias": (lambda: nn.Linear(4, CLASSES, bias=False), images(4)),
    "layers with ReLU": (lambda: nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, CLASSES)), images(4)),
    "a linear layer over places": (
        lambda: nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Flatten(), nn.Linear(10, CLASSES)), images(2, 3),
    ),
    "a linear layer over many places": (
        lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(60, CLASSES)), images(5, 6, 2),
    ),
    "a convolution of images": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, CLASSES)
        ), images(2, 8, 8),
    ),
    "a convolution with stride and dilation": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, (3, 2), (2, 1), (0, 1), (1, 2)), nn.Flatten(), nn.Linear(96, CLASSES)), images(1, 9, 8),
    ),
    "a convolution to few places": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 5), nn.Flatten(), nn.Linear(24, CLASSES)), images(3, 6, 6),
    ),
    "a convolution of signals": (
        lambda: nn.Sequential(nn.Conv1d(2, 4, 5, stride=2, padding=2), nn.ReLU(), nn.Flatten(), nn.Linear(32, CLASSES)), images(2, 15),
    ),
    "codes that are looked up twice": (Words, codes),
    "adapters beside what is frozen": (LowRank, images(4)),
}  # fmt: skip

NOT_KEPT: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], Tensor]]] = {
    "a layer that is used twice": (Twice, images(4)),
    "a parameter outside of layers": (Bare, images(4)),
    "a layer whose output is changed in place": (
        lambda: nn.Sequential(nn.Linear(4, 9), nn.LeakyReLU(0.1, inplace=True), nn.Linear(9, CLASSES)), images(4),
    ),
    "a convolution in groups": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(144, CLASSES)), images(2, 8, 8),
    ),
    "a convolution that pads with its border": (
        lambda: nn.Sequential(nn.Conv1d(1, 2, 3, padding=1, padding_mode="replicate"), nn.Flatten(), nn.Linear(16, CLASSES)), images(1, 8),
    ),
    "a recurrent layer": (lambda: Recurrent(), images(5, 4)),
    "a layer of a kind that nobody knows": (lambda: nn.Sequential(Own(4, 4), nn.Linear(4, CLASSES)), images(4)),
}  # fmt: skip


class Recurrent(nn.Module):
    """Goes over places in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.over = nn.GRU(4, 4, batch_first=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.over(x)[0][:, -1])
        return out


class Own(nn.Linear):
    """A linear layer that does something else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).square()


def made(
    make: Callable[[], nn.Module], inputs: Callable[[torch.Generator], Tensor]
) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(5)
    return make(), inputs(generator), torch.randint(CLASSES, (ROWS,), generator=generator)


def losses(network: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(network(x), labels, reduction="none")


def reference(network: nn.Module, x: Tensor, labels: Tensor, bound: float) -> list[Tensor]:
    """Row by row, in float64."""
    network = network.double()
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    total = [torch.zeros_like(parameter) for parameter in trained]
    for row in range(len(x)):
        one = x[row : row + 1].double() if x.is_floating_point() else x[row : row + 1]
        gradients = torch.autograd.grad(losses(network, one, labels[row : row + 1]).sum(), trained)
        length = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
        for sum_, gradient in zip(total, gradients, strict=True):
            sum_ += gradient * min(1.0, bound / length)
    network.float()
    return total


@pytest.mark.parametrize("bound", [1e-3, 0.7, 1e3], ids=["all are clipped", "some are clipped", "none is clipped"])
@pytest.mark.parametrize("name", KEPT)
def test_the_sums_are_those_that_autograd_finds_row_by_row(name: str, bound: float) -> None:
    network, x, labels = made(*KEPT[name])
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    book = BookKeeping.of(network, trained, lambda: losses(network, x[:3], labels[:3]))
    assert book is not None
    found = book.clipped_sums(lambda: losses(network, x, labels).sum(), bound)
    assert found.nonfinite == 0
    for sum_, wanted in zip(found.sums, reference(network, x, labels, bound), strict=True):
        torch.testing.assert_close(sum_.double(), wanted, rtol=2e-3, atol=1e-6 * max(bound, 1e-3))


@pytest.mark.parametrize("name", NOT_KEPT)
def test_no_book_is_kept_of(name: str) -> None:
    network, x, labels = made(*NOT_KEPT[name])
    trained = list(network.parameters())
    assert BookKeeping.of(network, trained, lambda: losses(network, x[:3], labels[:3])) is None


@settings(max_examples=40, deadline=None)
@given(
    channels=st.integers(1, 3),
    out=st.integers(1, 4),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    seed=st.integers(0, 1000),
)
def test_every_convolution_has_the_same_sums(
    channels: int,
    out: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    seed: int,
) -> None:
    torch.manual_seed(seed)
    layer = nn.Conv2d(channels, out, kernel, stride, padding, dilation)
    x = torch.randn(ROWS, channels, 7, 6)
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(layer(x).flatten(1).shape[1], CLASSES))
    labels = torch.randint(CLASSES, (ROWS,))
    book = BookKeeping.of(network, list(network.parameters()), lambda: losses(network, x[:3], labels[:3]))
    assert book is not None
    found = book.clipped_sums(lambda: losses(network, x, labels).sum(), 0.5)
    for sum_, wanted in zip(found.sums, reference(network, x, labels, 0.5), strict=True):
        torch.testing.assert_close(sum_.double(), wanted, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38], ids=str)
def test_a_row_whose_gradient_is_not_finite_adds_nothing_and_is_counted(value: float) -> None:
    network, x, labels = made(*KEPT["layers with ReLU"])
    book = BookKeeping.of(network, list(network.parameters()), lambda: losses(network, x[:3], labels[:3]))
    assert book is not None
    bad = x.clone()
    bad[2] = value
    found = book.clipped_sums(lambda: losses(network, bad, labels).sum(), 0.7)
    others = [row for row in range(ROWS) if row != 2]
    assert found.nonfinite == 1
    for sum_, wanted in zip(found.sums, reference(network, x[others], labels[others], 0.7), strict=True):
        torch.testing.assert_close(sum_.double(), wanted, rtol=2e-3, atol=1e-6)


# --- in a task -----------------------------------------------------------------------------------------------------

TABLE = [dict[str, object](kind="numeric", name=f"x{n}", range=[0, 1]) for n in range(3)]
TABLE += [dict[str, object](kind="categorical", name=f"c{n}", values=["a", "b", "c"]) for n in range(2)]
IMAGE: list[dict[str, object]] = [{"kind": "image", "name": "i", "height": 12, "width": 12}]
SIGNAL: list[dict[str, object]] = [{"kind": "signal", "name": "s", "length": 32, "channels": 2, "range": [-1, 1]}]
MODELS: dict[str, tuple[dict[str, object], list[dict[str, object]]]] = {
    "logistic": ({"kind": "logistic"}, TABLE),
    "mlp": ({"kind": "mlp", "hidden": [8, 6]}, TABLE),
    "cnn": ({"kind": "cnn", "channels": [4, 8], "hidden": 10}, IMAGE),
    "cnn beside a table": ({"kind": "cnn", "channels": [4], "hidden": 10}, [*TABLE, *IMAGE]),
    "signal-cnn": ({"kind": "signal-cnn", "channels": [4, 8], "hidden": 10}, SIGNAL),
}  # fmt: skip
LABELS: dict[str, dict[str, object]] = {
    "classes": {"kind": "classes", "name": "y", "classes": ["a", "b", "c"]},
    "a number": {"kind": "regression", "name": "y", "range": [-5, 5]},
}


class Silent:
    """No noise."""

    def normal(self, shape: tuple[int, ...], deviation: float) -> NDArray[np.float64]:
        return np.zeros(shape)


def network_of(model: dict[str, object], features: list[dict[str, object]], label: dict[str, object]) -> Network:
    document = {
        "format": 1, "name": "t", "features": features, "label": label, "model": model, "privacy": {"epsilon": 1.0},
    }  # fmt: skip
    torch.manual_seed(1)
    return Network(Task.model_validate_json(json.dumps(document)))


def batch_of(network: Network, rows: int) -> PreparedRows:
    generator = torch.Generator().manual_seed(2)
    schema = network.task.feature_schema
    inputs: list[Tensor] = []
    if schema.numeric:
        inputs.append(torch.randn(rows, len(schema.numeric), generator=generator))
    if schema.categorical:
        inputs.append(torch.randint(3, (rows, len(schema.categorical)), generator=generator))
    inputs += [torch.randn(rows, *feature.shape, generator=generator) for feature in schema.tensors]
    classes = network.task.label.kind == "classes"
    labels = torch.randint(3, (rows,), generator=generator) if classes else torch.randn(rows, generator=generator)
    return PreparedRows(tuple(inputs), labels)


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("name", MODELS)
def test_each_model_of_the_task_file_is_kept_book_of_and_agrees_with_hooks(name: str, label: str) -> None:
    network = network_of(*MODELS[name], LABELS[label])
    clipping = UnitClipping(network)
    assert clipping.keeps_book
    batch, units = batch_of(network, 9), np.arange(9)
    kept, hooked = (network.noisy_optimizer(Silent(), 1.0, 9.0) for _ in range(2))
    clipping.add(kept, batch, units, 9)
    sums = [parameter.summed_grad for parameter in kept.params]
    hooked.forget()
    clipping.write_down(batch)
    hooked.accumulate(units, 9)
    for sum_, parameter in zip(sums, hooked.params, strict=True):
        torch.testing.assert_close(sum_, parameter.summed_grad, rtol=1e-3, atol=1e-5)


def test_units_of_several_rows_are_averaged_before_they_are_clipped() -> None:
    network = network_of(*MODELS["mlp"], LABELS["classes"])
    clipping, batch = UnitClipping(network), batch_of(network, 4)
    optimizer = network.noisy_optimizer(Silent(), 1.0, 2.0)
    clipping.add(optimizer, batch, np.array([0, 0, 0, 1]), 2)
    units = [[0, 1, 2], [3]]
    wanted = [torch.zeros_like(parameter) for parameter in network.parameters]
    for rows in units:
        mean = network.mean_loss(batch.take(torch.tensor(rows)))
        gradients = torch.autograd.grad(mean, network.parameters)
        length = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        for total, gradient in zip(wanted, gradients, strict=True):
            total += gradient * (1.0 / (length + 1e-6)).clamp(max=1.0)
    for total, parameter in zip(wanted, optimizer.params, strict=True):
        torch.testing.assert_close(parameter.summed_grad, total, rtol=1e-3, atol=1e-6)


def test_parts_of_a_batch_add_up_and_an_empty_part_adds_nothing() -> None:
    network = network_of(*MODELS["cnn"], LABELS["classes"])
    clipping, batch = UnitClipping(network), batch_of(network, 8)
    whole, parts = (network.noisy_optimizer(Silent(), 1.0, 8.0) for _ in range(2))
    clipping.add(whole, batch, np.arange(8), 8)
    sums = [parameter.summed_grad for parameter in whole.params]
    parts.forget()
    for start, end in ((0, 3), (3, 3), (3, 8)):
        clipping.add(parts, batch.take(torch.arange(start, end)), np.arange(end - start), end - start)
    for sum_, parameter in zip(sums, parts.params, strict=True):
        torch.testing.assert_close(sum_, parameter.summed_grad, rtol=1e-4, atol=1e-6)
