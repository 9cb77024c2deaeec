"""One row moves a sum by the clipping norm at most, whatever finite numbers go in: extreme weights, inputs and errors.

``ROUNDED`` is what float32 may add to that: each of the other rows' values is rounded once more, or once less, when one row leaves the
sum, by 2**-24 of a partial sum of at most ``rows`` times the norm.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor, nn

from fedloop_clients.training import layer_rules
from fedloop_clients.training.book_keeping import BookKeeping, _Entry, _Layer
from fedloop_clients.training.bounding import LARGEST, LARGEST_WEIGHT, clip_factors, lengths
from fedloop_clients.training.clipping import UnitClipping
from fedloop_clients.training.layer_rules import rule_of
from fedloop_clients.training.network import Network
from fedloop_clients.training.rows import PreparedRows
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.dataset import Dataset
from fedloop_core.errors import UpdateRefused
from fedloop_core.models import initial_arrays
from fedloop_core.noise import SeededNoise
from fedloop_core.scaling import Scaler
from fedloop_core.task import Task

Arrays = dict[str, NDArray[Any]]
ROWS = 4
GREATEST = float(np.finfo(np.float32).max)
EXPONENTS = st.integers(-149, 127)
BOUNDS = st.sampled_from([1e-4, 1e-2, 1.0, 1e6])


def rounded(rows: int) -> float:
    return 1 + 4 * rows**2 * 2.0**-24


def norm(values: list[Tensor]) -> float:
    return math.sqrt(sum(float(value.double().square().sum()) for value in values))


def extreme(shape: tuple[int, ...], powers: list[int], seed: int) -> Tensor:
    """Finite float32 values, each row of its own power of two."""
    drawn = np.random.default_rng(seed).uniform(-1.0, 1.0, shape)
    scaled = drawn * np.exp2(np.array(powers, dtype=np.float64)).reshape(-1, *[1] * (len(shape) - 1))
    return torch.from_numpy(np.clip(scaled, -GREATEST, GREATEST).astype(np.float32))


def cancelled(values: Tensor, axis: int, by: float) -> Tensor:
    """With each second place the opposite of the one before, but for a share of ``by``."""
    places = values.movedim(axis, -1).clone()
    pairs = places.shape[-1] // 2
    places[..., 1 : 2 * pairs : 2] = -places[..., 0 : 2 * pairs : 2] * (1 + by)
    return places.movedim(-1, axis).contiguous()


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...], int]] = {
    "linear, one place": (lambda: nn.Linear(5, 3), (5,), (3,), 1),
    "linear, few places: products": (lambda: nn.Linear(5, 4), (4, 5), (4, 4), 1),
    "linear, many places: written": (lambda: nn.Linear(2, 3), (9, 2), (9, 3), 1),
    "images: written": (lambda: nn.Conv2d(1, 2, 3), (1, 7, 7), (2, 5, 5), 3),
    "images: products": (lambda: nn.Conv2d(2, 6, 3), (2, 4, 4), (6, 2, 2), 3),
    "signals": (lambda: nn.Conv1d(2, 3, 3), (2, 12), (3, 10), 2),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 3, 3), (4, 3, 3), 3),
    "layer norm": (lambda: nn.LayerNorm(6), (2, 6), (2, 6), 1),
    "codes": (lambda: nn.Embedding(3, 4), (6,), (6, 4), 1),
}
"""A layer, shapes of a row's input and output, and the axis of places, the first being that of rows."""


@pytest.mark.parametrize("name", [*LAYERS, "linear, many places: row by row", "images: row by row"])
@settings(max_examples=60, deadline=None)
@given(
    inputs=st.lists(EXPONENTS, min_size=ROWS, max_size=ROWS),
    errors=st.lists(EXPONENTS, min_size=ROWS, max_size=ROWS),
    bound=BOUNDS,
    alike=st.booleans(),
    cancels=st.sampled_from([None, 0.0, 1e-7, 1e-5, 1e-3]),
    seed=st.integers(0, 2**32 - 1),
)
@example(inputs=[63] * ROWS, errors=[-75] * ROWS, bound=1e-4, alike=True, cancels=None, seed=1)  # squares vanish
@example(inputs=[127] * ROWS, errors=[-149] * ROWS, bound=1e-4, alike=False, cancels=None, seed=2)
@example(inputs=[127, -149, 127, 0], errors=[127, 127, -127, 0], bound=1.0, alike=False, cancels=None, seed=3)
@example(inputs=[30] * ROWS, errors=[0] * ROWS, bound=1.0, alike=True, cancels=0.0, seed=4)  # places cancel
@example(inputs=[30] * ROWS, errors=[0] * ROWS, bound=1.0, alike=True, cancels=1e-7, seed=5)
def test_no_row_moves_the_sum_of_a_layer_by_more(
    name: str, inputs: list[int], errors: list[int], bound: float, alike: bool, cancels: float | None, seed: int
) -> None:
    make, entered, left, axis = LAYERS[name.replace("row by row", "written")]
    layer = make()
    x, g = extreme((ROWS, *entered), inputs, seed), extreme((ROWS, *left), errors, seed + 1)
    if alike:  # the same at each place, so that errors which cancel leave nothing
        x = torch.ones_like(x) * x.flatten(1)[:, :1].reshape(ROWS, *[1] * len(entered))
    if name == "codes":
        x = torch.from_numpy(np.random.default_rng(seed).integers(0, 1 if alike else 3, (ROWS, *entered)))
    if cancels is not None and g.dim() > 2:
        g = cancelled(g, axis, cancels)
    with pytest.MonkeyPatch.context() as patched:
        if name.endswith("row by row"):
            patched.setattr(layer_rules, "_MOST_WRITTEN", 20)
        together = clipped(layer, x, g, bound)
        for row in range(ROWS):
            others = [other for other in range(ROWS) if other != row]
            alone, without = clipped(layer, x[[row]], g[[row]], bound), clipped(layer, x[others], g[others], bound)
            assert norm(alone) <= bound
            assert difference(together, without) <= bound * rounded(ROWS)


def clipped(layer: nn.Module, entered: Tensor, gradient: Tensor, bound: float) -> list[Tensor]:
    """As book is kept of one layer."""
    rule = rule_of(layer)
    assert rule is not None
    parameters = list(layer.parameters())
    kept = _Layer(layer, rule, tuple(range(len(parameters))))
    found = BookKeeping([kept], parameters)._summed([_Entry(kept, entered, gradient)], [gradient], bound)
    return found.sums


def difference(first: list[Tensor], second: list[Tensor]) -> float:
    return norm([one.double() - other.double() for one, other in zip(first, second, strict=True)])


# --- models --------------------------------------------------------------------------------------------------------

CUSTOM = """
import torch
from torch import nn


class Twice(nn.Module):
    def __init__(self, schema):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, schema.outputs)

    def forward(self, x):
        return self.head(self.layer(torch.relu(self.layer(x))))


class Adapted(nn.Module):
    def __init__(self, schema):
        super().__init__()
        self.frozen = nn.Linear(4, schema.outputs).requires_grad_(False)
        nn.init.ones_(self.frozen.weight), nn.init.ones_(self.frozen.bias)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, schema.outputs, bias=False)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


class Grouped(nn.Module):
    def __init__(self, schema):
        super().__init__()
        self.over = nn.Conv1d(2, 4, 2, groups=2)
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4, schema.outputs)

    def forward(self, x):
        return self.head(self.norm(self.over(x.reshape(-1, 2, 2))).flatten(1))


class Places(nn.Module):
    def __init__(self, schema):
        super().__init__()
        self.mix = nn.Linear(2, 3)
        self.head = nn.Linear(6, schema.outputs)

    def forward(self, x):
        return self.head(torch.relu(self.mix(x.reshape(-1, 2, 2))).flatten(1))
"""
NUMBERS: list[dict[str, object]] = [{"kind": "numeric", "name": f"x{n}", "range": [-4, 4]} for n in range(4)]
IMAGE: list[dict[str, object]] = [{"kind": "image", "name": "i", "height": 6, "width": 6}]
MODELS: dict[str, tuple[dict[str, object], list[dict[str, object]], bool]] = {
    "logistic": ({"kind": "logistic"}, NUMBERS, True),
    "mlp": ({"kind": "mlp", "hidden": [6, 5]}, NUMBERS, True),
    "cnn": ({"kind": "cnn", "channels": [4], "hidden": 4}, IMAGE, True),
    "adapters": ({"kind": "custom", "factory": "clip_bound_networks:Adapted"}, NUMBERS, True),
    "places": ({"kind": "custom", "factory": "clip_bound_networks:Places"}, NUMBERS, True),
    "a layer used twice: hooks": ({"kind": "custom", "factory": "clip_bound_networks:Twice"}, NUMBERS, False),
    "in groups: hooks": ({"kind": "custom", "factory": "clip_bound_networks:Grouped"}, NUMBERS, False),
}


def task_of(model: dict[str, object], features: list[dict[str, object]], bound: float = 1.0, **label: object) -> Task:
    document = {
        "format": 1,
        "name": "t",
        "features": features,
        "label": label or {"kind": "classes", "name": "y", "classes": ["a", "b"]},
        "model": model,
        "training": {"algorithm": "fedavg", "local_steps": 1, "batch_size": 4, "learning_rate": 1.0},
        "privacy": {"epsilon": 1.0, "clipping_norm": bound},
    }
    return Task.model_validate_json(json.dumps(document))


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Network, UnitClipping]]]:
    folder = tmp_path_factory.mktemp("networks")
    (folder / "clip_bound_networks.py").write_text(CUSTOM)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        torch.manual_seed(4)
        made = {name: Network(task_of(model, features)) for name, (model, features, _) in MODELS.items()}
        yield {name: (network, UnitClipping(network)) for name, network in made.items()}


class Silent:
    """No noise."""

    def normal(self, shape: tuple[int, ...], deviation: float) -> NDArray[np.float64]:
        return np.zeros(shape)


def added(
    network: Network, clipping: UnitClipping, rows: PreparedRows, parts: list[list[int]], per_unit: int = 1
) -> list[Tensor]:
    """The sum of a step over parts of a batch, so many rows to each unit."""
    optimizer = network.noisy_optimizer(Silent(), 1.0, 1.0)
    for part in parts:
        owners = np.arange(len(part)) // per_unit
        clipping.add(optimizer, rows.take(torch.tensor(part, dtype=torch.int64)), owners, len(set(owners.tolist())))
    sums = [parameter.summed_grad for parameter in optimizer.params]
    optimizer.forget()
    return sums


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    inputs=st.lists(st.integers(-149, 127), min_size=ROWS, max_size=ROWS),
    weights=st.lists(st.integers(-100, 100), min_size=2, max_size=2),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_row_of_a_model_adds_more(
    name: str, inputs: list[int], weights: list[int], seed: int, networks: dict[str, tuple[Network, UnitClipping]]
) -> None:
    network, clipping = networks[name]
    assert clipping.keeps_book is MODELS[name][2]
    drawn = np.random.default_rng(seed)
    load(network, drawn, weights)
    shape = (4,) if MODELS[name][1] is NUMBERS else (1, 6, 6)
    rows = PreparedRows((extreme((ROWS, *shape), inputs, seed),), torch.from_numpy(drawn.integers(0, 2, ROWS)))
    for row in range(ROWS):
        assert norm(added(network, clipping, rows, [[row]])) <= 1.0
    for parts in ([[0, 1, 2, 3]], [[0], [1, 2], [], [3]]):
        assert norm(added(network, clipping, rows, parts)) <= ROWS * rounded(ROWS)
    assert norm(added(network, clipping, rows, [[0, 1, 2, 3]], per_unit=4)) <= 1.0  # a unit's mean gradient


@pytest.mark.parametrize("name", MODELS)
def test_a_row_that_leaves_a_batch_moves_the_sum_of_a_model_by_no_more(
    name: str, networks: dict[str, tuple[Network, UnitClipping]]
) -> None:
    """Weights and rows of 1e-6 to 1e6, most of which are clipped."""
    network, clipping = networks[name]
    for seed in range(40):
        drawn = np.random.default_rng(seed)
        count = int(drawn.integers(2, 20))
        load(network, drawn, drawn.integers(-20, 20, 2).tolist())
        shape = (4,) if MODELS[name][1] is NUMBERS else (1, 6, 6)
        powers = drawn.integers(-20, 20, count).tolist()
        rows = PreparedRows((extreme((count, *shape), powers, seed),), torch.from_numpy(drawn.integers(0, 2, count)))
        sums = added(network, clipping, rows, [list(range(count))])
        without = added(network, clipping, rows, [list(range(1, count))])
        assert difference(sums, without) <= rounded(count)


def load(network: Network, drawn: np.random.Generator, powers: list[int]) -> None:
    scales = [2.0 ** powers[place % len(powers)] for place in range(len(network.parameters))]
    network.load(
        [
            torch.from_numpy((drawn.uniform(-1, 1, tuple(parameter.shape)) * scale).astype(np.float32))
            for parameter, scale in zip(network.parameters, scales, strict=True)
        ]
    )


# --- what a coordinator may choose ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [1e-4, 1e-2])
def test_a_square_that_vanishes_in_float32_lets_no_row_through(bound: float) -> None:
    """Inputs of 7.5e18 beside an error of 1.6e-23: its square is 0, and so was the norm."""
    network = Network(task_of({"kind": "logistic"}, NUMBERS[:2], bound))
    clipping = UnitClipping(network)
    weight = torch.zeros(2, 2)
    weight[1] = 52.3 / 2 / 7.5e18
    network.load([weight, torch.zeros(2)])
    row = PreparedRows((torch.full((1, 2), 7.5e18),), torch.tensor([1]))
    assert norm(added(network, clipping, row, [[0]])) == pytest.approx(min(bound, 2.0e-4), rel=0.1)


@pytest.mark.parametrize("bound", [1e-4, 1e-2])
def test_hidden_values_that_arrays_alone_make_large_let_no_row_through(bound: float) -> None:
    """A bias of 2e17 for each of 4096 hidden values, beside an error of 2e-23."""
    network = Network(task_of({"kind": "mlp", "hidden": [4096]}, NUMBERS[:2], bound))
    clipping = UnitClipping(network)
    start = [torch.zeros_like(parameter) for parameter in network.parameters]
    start[1] += 2e17
    start[3] = torch.tensor([-52.3, 0.0])
    network.load(start)
    row = PreparedRows((torch.ones(1, 2),), torch.tensor([1]))
    assert norm(added(network, clipping, row, [[0]])) == pytest.approx(min(bound, 2.48e-4), rel=0.1)


def test_a_row_too_large_to_be_clipped_adds_nothing_and_is_counted() -> None:
    network = Network(task_of({"kind": "logistic"}, NUMBERS))
    clipping, optimizer = UnitClipping(network), network.noisy_optimizer(Silent(), 1.0, 1.0)
    rows = PreparedRows((torch.tensor([[2.0 * LARGEST] * 4, [1.0] * 4]),), torch.tensor([0, 1]))
    network.load([torch.zeros_like(parameter) for parameter in network.parameters])
    clipping.add(optimizer, rows, np.arange(2), 2)
    sums = [parameter.summed_grad for parameter in optimizer.params]
    assert optimizer.nonfinite_gradients == 1
    assert difference(sums, added(network, clipping, rows, [[1]])) == 0.0


def test_lengths_of_all_finite_values_are_found() -> None:
    assert lengths(torch.tensor([[GREATEST] * 4, [2.0**-149] * 4])).tolist() == [2 * GREATEST, 2.0**-148]
    factors, sound = clip_factors(torch.tensor([math.nan, math.inf, 0.0, 1.0, 2.0], dtype=torch.float64), 1.0)
    assert sound.tolist() == [False, False, True, True, True]
    assert factors.tolist() == pytest.approx([0.0, 0.0, 1.0, 1.0, 0.5], rel=1e-5)


def start_of(task: Task) -> Arrays:
    return {**initial_arrays(task, 1), **Scaler.from_ranges(task.feature_schema).arrays()}


def put(name: str, place: int, value: float) -> Callable[[Arrays], Arrays]:
    def change(arrays: Arrays) -> Arrays:
        moved = arrays[name].copy()
        moved.reshape(-1)[place] = value
        return {**arrays, name: moved}

    return change


REFUSED: dict[str, tuple[Callable[[Arrays], Arrays], str, str]] = {
    "a deviation that makes inputs of 1e19": (put("scaler.deviation", 0, 4e-19), "scaler", "deviation of x0"),
    "a deviation below a hundredth of the width": (put("scaler.deviation", 1, 0.079), "scaler", "deviation of x1"),
    "a deviation above half the width": (put("scaler.deviation", 3, 4.01), "scaler", "deviation of x3"),
    "a deviation below 0": (put("scaler.deviation", 0, -1.0), "scaler", "deviation of x0"),
    "a deviation that is not finite": (put("scaler.deviation", 0, math.inf), "not-finite", "deviation"),
    "a mean far away": (put("scaler.mean", 2, 1e19), "scaler", "mean of x2"),
    "a mean that is not a number": (put("scaler.mean", 2, math.nan), "not-finite", "mean"),
    "means of fewer features": (lambda a: {**a, "scaler.mean": a["scaler.mean"][:3]}, "shape", "mean has shape"),
    "no scaler": (lambda a: {name: v for name, v in a.items() if "scaler" not in name}, "scaler", "travel"),
    "a weight of 2e17": (put("backbone.linear.bias", 0, 2e17), "weight-size", "backbone.linear.bias"),
    "a weight below -1e6": (put("backbone.linear.weight", 0, -2 * LARGEST_WEIGHT), "weight-size", "weight beyond 1e"),
    "a weight that is not a number": (
        put("backbone.linear.weight", 0, math.nan),
        "not-finite",
        "backbone.linear.weight",
    ),
}


@pytest.mark.parametrize(("change", "reason", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_arrays_that_no_honest_run_has_are_refused_in_one_sentence(
    change: Callable[[Arrays], Arrays], reason: str, said: str
) -> None:
    task = task_of({"kind": "logistic"}, NUMBERS)
    rows = Dataset({"numeric": np.ones((3, 4), np.float32)}, np.array([0, 1, 0]), ("a", "b", "c"))
    with pytest.raises(UpdateRefused, match=said) as refused:
        LocalTrainer(task).train_privately(
            change(start_of(task)), rows, 1.0, 1.0, SeededNoise(1), expected_batch_size=3.0
        )
    assert refused.value.wire().fields == {"reason": reason}
    assert refused.value.message.count(". ") == 0


@settings(max_examples=60, deadline=None)
@given(
    low=st.floats(-1e9, 1e9),
    width=st.floats(1e-3, 1e9),
    sums=st.tuples(st.floats(-1e12, 1e12), st.floats(-1e20, 1e20), st.floats(1, 1e6)),
)
def test_every_scaler_that_a_run_can_make_is_taken(low: float, width: float, sums: tuple[float, float, float]) -> None:
    features: list[dict[str, object]] = [{"kind": "numeric", "name": "x0", "range": [low, low + width]}]
    assume(np.float32(low) < np.float32(low + width))
    schema = task_of({"kind": "logistic"}, features).feature_schema
    total, squares, count = (np.array([value]) for value in sums)
    for made in (Scaler.from_ranges(schema), Scaler.from_moments(schema, total, squares, count)):
        taken = Scaler.received(schema, made.arrays())
        np.testing.assert_array_equal(taken.deviation, made.deviation)


@pytest.mark.parametrize("bound", [0.0, 1e-6, 9.9e-5, 1.1e6, math.inf, math.nan])
def test_clipping_norms_that_float32_cannot_keep_are_refused(bound: float) -> None:
    with pytest.raises(ValidationError, match="clipping_norm"):
        task_of({"kind": "logistic"}, NUMBERS, bound)
