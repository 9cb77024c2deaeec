"""DP-SGD as it is run at a site: clipping, noise, sampling and counting, each against what it must be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import binom, chi2
from torch import nn

from fedloop_clients.training.dpsgd import NoisyOptimizer, physical_batches
from fedloop_clients.training.isolation import require_isolated_rows
from fedloop_clients.training.rows import UnitIndex
from fedloop_clients.training.trainer import LocalResult, LocalTrainer
from fedloop_core.dataset import Dataset
from fedloop_core.encoding import InputEncoder
from fedloop_core.errors import PrivacyParameterInvalid
from fedloop_core.models import TaskModel, build_model, initial_arrays
from fedloop_core.noise import NoiseSource, SeededNoise, SystemNoise
from fedloop_core.scaling import Scaler
from fedloop_core.schema import (
    CategoricalFeature,
    ClassLabel,
    Feature,
    FeatureSchema,
    ImageFeature,
    NumericFeature,
    SignalFeature,
)
from fedloop_core.task.document import (
    CnnModel,
    FederatedAveraging,
    LogisticModel,
    MlpModel,
    Model,
    Privacy,
    SignalCnnModel,
    Task,
)

Arrays = dict[str, NDArray[Any]]
FEATURES = tuple(NumericFeature(kind="numeric", name=f"x{at}", range=(-4.0, 4.0)) for at in range(5))
LABEL = ClassLabel(kind="classes", name="y", classes=("no", "yes"))


def private_task(
    *,
    epsilon: float = 3.0,
    clip: float = 1.0,
    steps: int = 1,
    batch: int = 20,
    rate: float = 0.5,
    momentum: float = 0.0,
    proximal: float = 0.0,
    physical: int = 256,
    model: Model | None = None,
) -> Task:
    return Task(
        format=1,
        name="tabular",
        features=FEATURES,
        label=LABEL,
        model=model or LogisticModel(kind="logistic"),
        training=FederatedAveraging(
            algorithm="fedavg",
            local_steps=steps,
            batch_size=batch,
            learning_rate=rate,
            momentum=momentum,
            proximal=proximal,
            physical_batch_size=physical,
        ),
        privacy=Privacy(epsilon=epsilon, delta=1e-4, clipping_norm=clip),
    )


def some_rows(count: int, seed: int = 0, units: tuple[str, ...] | None = None) -> Dataset:
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(count, len(FEATURES))).astype(np.float32)
    return Dataset(
        {"numeric": values}, (values[:, 0] > 0).astype(np.int64), units or tuple(f"u{at}" for at in range(count))
    )


def start(task: Task) -> Arrays:
    scaler = Scaler.from_ranges(task.feature_schema)
    return {**initial_arrays(task, 7), **(scaler.arrays() if task.feature_schema.numeric else {})}


def norm(update: Mapping[str, NDArray[Any]]) -> float:
    return math.sqrt(sum(float(np.square(array.astype(np.float64)).sum()) for array in update.values()))


def train_privately(
    trainer: LocalTrainer,
    arrays: Arrays,
    rows: Dataset,
    sigma: float,
    rate: float,
    noise: NoiseSource,
    told: int | None = None,
) -> LocalResult:
    """A round as planned from the number of units told: the exact one, unless another is given."""
    units = len(UnitIndex.of(rows.units)) if told is None else told
    return trainer.train_privately(arrays, rows, sigma, rate, noise, expected_batch_size=rate * units)


SILENT = 1e-12  # a noise multiplier that is as good as none


def test_an_update_without_noise_is_bounded_by_the_clipping_norm() -> None:
    task = private_task(clip=1e-3, batch=20, rate=0.5)
    rows = some_rows(100)
    result = train_privately(LocalTrainer(task), start(task), rows, SILENT, 0.2, SeededNoise(1))
    members = len(SeededNoise(1).derive("sampling").poisson_sample(100, 0.2))
    assert 0 < norm(result.update) <= 0.5 * members * 1e-3 / 20 * (1 + 1e-4)


def test_one_more_unit_moves_the_sum_by_at_most_the_clipping_norm() -> None:
    task = private_task(clip=0.05, batch=50, rate=1.0)
    rows, trainer = some_rows(50), LocalTrainer(task)
    # An extreme row, with everything else the same: the number told, and so the divisor, is 53 both times.
    extreme = Dataset({"numeric": np.full((1, 5), 4.0, np.float32)}, np.array([0]), ("extreme",))
    without = train_privately(trainer, start(task), rows, SILENT, 1.0, SeededNoise(1), 53).update
    together = train_privately(trainer, start(task), rows.concatenate(extreme), SILENT, 1.0, SeededNoise(1), 53).update
    difference = {name: (together[name] - without[name]) * 53.0 for name in without}
    assert 0 < norm(difference) <= 0.05 * (1 + 1e-3)


def test_noise_has_the_deviation_that_is_accounted() -> None:
    """Gradients of nothing: with empty batches the update is noise alone, of deviation lr * sigma * C / B."""
    task = private_task(clip=2.0, batch=16, rate=0.5, model=MlpModel(kind="mlp", hidden=(64, 64)))
    rows = some_rows(1000)
    result = train_privately(LocalTrainer(task), start(task), rows, 1.3, 1e-9, SeededNoise(3))
    assert result.empty_batches == result.steps == 1
    values = np.concatenate([array.ravel() for array in result.update.values()]).astype(np.float64)
    expected = 0.5 * 1.3 * 2.0 / (1e-9 * 1000)
    statistic = float(np.square(values / expected).sum())
    low, high = chi2.ppf([0.0005, 0.9995], len(values))
    assert len(values) > 4000
    assert low <= statistic <= high


def test_units_are_included_at_the_sampling_rate() -> None:
    noise = SeededNoise(5)
    counts = np.zeros(200)
    for _ in range(500):
        counts[noise.poisson_sample(200, 0.07)] += 1
    low, high = binom.ppf([1e-5, 1 - 1e-5], 500, 0.07)
    assert ((counts >= low) & (counts <= high)).all()
    total_low, total_high = binom.ppf([0.0005, 0.9995], 500 * 200, 0.07)
    assert total_low <= counts.sum() <= total_high


def test_empty_batches_are_steps_with_noise() -> None:
    task = private_task(steps=60, batch=1)
    result = train_privately(LocalTrainer(task), start(task), some_rows(40), 1.0, 1 / 40, SeededNoise(2))
    assert result.steps == 60
    assert 10 <= result.empty_batches <= 35
    assert all(np.isfinite(array).all() for array in result.update.values())
    assert all((array != 0).any() for array in result.update.values())


def test_a_row_that_is_not_finite_is_zeroed_counted_and_hides_nothing_else() -> None:
    task = private_task(batch=30, rate=1.0)
    rows, trainer = some_rows(30), LocalTrainer(task)
    broken = Dataset(
        {"numeric": np.vstack([rows.inputs["numeric"], np.full((1, 5), np.nan, np.float32)])},
        np.append(rows.labels, 1),
        (*rows.units, "broken"),
    )
    result = train_privately(trainer, start(task), broken, SILENT, 1.0, SeededNoise(1))
    clean = train_privately(trainer, start(task), rows, SILENT, 1.0, SeededNoise(1))
    assert result.nonfinite_gradients == 1
    for name, array in clean.update.items():
        np.testing.assert_allclose(result.update[name] * 31.0, array * 30.0, atol=1e-4)


def test_finite_rows_of_one_unit_that_overflow_together_are_zeroed_and_counted() -> None:
    """Two gradients of 3e38 are finite; their sum in float32 is not, nor is the difference of two such sums."""
    weight = nn.Parameter(torch.zeros(2))
    optimizer = NoisyOptimizer(
        torch.optim.SGD([weight], 1.0),
        noise=SeededNoise(1),
        noise_multiplier=0.0,
        clipping_norm=1.0,
        expected_batch_size=1,
    )
    huge = [3e38, -3e38]
    weight.grad_sample = torch.tensor([huge, huge, [0.3, 0.4]])  # type: ignore[attr-defined]
    optimizer.accumulate(np.array([0, 0, 1]), 2)
    assert optimizer.nonfinite_gradients == 1
    optimizer.noisy_mean()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, torch.tensor([0.3, 0.4]))


def test_physical_batches_change_nothing() -> None:
    """O3: a logical batch computed in parts is one step, and parts are never mixed across batches."""
    whole, parts = private_task(steps=5, batch=40), private_task(steps=5, batch=40, physical=7)
    rows = some_rows(100)
    first = train_privately(LocalTrainer(whole), start(whole), rows, 0.8, 0.4, SeededNoise(4))
    second = train_privately(LocalTrainer(parts), start(parts), rows, 0.8, 0.4, SeededNoise(4))
    for name, array in first.update.items():
        np.testing.assert_allclose(array, second.update[name], atol=1e-5)


def test_a_batch_is_cut_into_whole_units() -> None:
    units, rows = np.array([3, 5, 8, 9, 11]), np.array([2, 2, 9, 1, 1])
    assert [part.tolist() for part in physical_batches(units, rows, 4)] == [[3, 5], [8], [9, 11]]
    assert [part.tolist() for part in physical_batches(units[:0], rows[:0], 4)] == [[]]


def test_all_rows_of_a_unit_weigh_as_one() -> None:
    """O19: a patient with many rows moves the sum by the clipping norm, not by that times the rows."""
    task = private_task(clip=0.05, batch=10, rate=1.0)
    units = tuple(f"patient-{at // 10}" for at in range(100))
    result = train_privately(LocalTrainer(task), start(task), some_rows(100, units=units), SILENT, 1.0, SeededNoise(1))
    assert norm(result.update) <= 10 * 0.05 / 10 * (1 + 1e-4)


def test_a_unit_index_gives_each_unit_its_rows() -> None:
    index = UnitIndex.of(("a", "b", "a", "", "", "b", "a"))
    assert len(index) == 4
    assert index.sizes.tolist() == [3, 2, 1, 1]
    rows, owners = index.rows_of(np.array([1, 3]))
    assert rows.tolist() == [1, 5, 4]
    assert owners.tolist() == [0, 0, 1]


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"proximal": 0.5}])
def test_private_training_is_the_loop_written_by_hand(settings: dict[str, float]) -> None:
    task = private_task(steps=4, batch=8, clip=0.3, rate=0.4, **settings)  # type: ignore[arg-type]
    rows, arrays, noise = some_rows(30), start(private_task()), SeededNoise(11)
    ours = train_privately(LocalTrainer(task), arrays, rows, 1.1, 0.25, noise)
    by_hand = hand_written(task, arrays, rows, 1.1, 0.25, noise)
    for name, array in by_hand.items():
        np.testing.assert_allclose(ours.update[name], array, atol=2e-5)


IMAGE = ImageFeature(kind="image", name="scan", height=8, width=8)
SIGNAL = SignalFeature(kind="signal", name="ecg", length=32, channels=2, range=(-1.0, 1.0))
CATEGORY = CategoricalFeature(kind="categorical", name="sex", values=("f", "m"), other=True)
LAYERS: dict[str, tuple[tuple[Feature, ...], Model]] = {
    "embedding": ((*FEATURES, CATEGORY), MlpModel(kind="mlp", hidden=(6,), embedding=3)),
    "image": ((IMAGE,), CnnModel(kind="cnn", channels=(4, 8), hidden=6)),
    "signal": ((SIGNAL,), SignalCnnModel(kind="signal-cnn", channels=(4,), kernel=3, hidden=6)),
}


@pytest.mark.parametrize(("features", "model"), LAYERS.values(), ids=LAYERS.keys())
def test_every_kind_of_layer_is_clipped_as_by_hand(features: tuple[Feature, ...], model: Model) -> None:
    task = private_task(steps=3, batch=8, clip=0.2, rate=0.4, physical=3).model_copy(
        update={"features": features, "model": model}
    )
    generator = np.random.default_rng(2)
    inputs: dict[str, NDArray[np.generic]] = {}
    for spec in InputEncoder(task.feature_schema).inputs:
        shape = (20, *spec.shape)
        inputs[spec.name] = (
            generator.integers(0, 3, shape)
            if spec.dtype == "int64"
            else generator.uniform(0, 1, shape).astype(np.float32)
        )
    rows = Dataset(inputs, generator.integers(0, 2, 20), tuple(f"u{at}" for at in range(20)))
    arrays, noise = start(task), SeededNoise(13)
    ours = train_privately(LocalTrainer(task), arrays, rows, 0.9, 0.4, noise)
    for name, array in hand_written(task, arrays, rows, 0.9, 0.4, noise).items():
        np.testing.assert_allclose(ours.update[name], array, atol=5e-5)


def hand_written(
    task: Task, arrays: Arrays, rows: Dataset, sigma: float, rate: float, noise: NoiseSource
) -> dict[str, NDArray[np.float64]]:
    """DP-SGD one row at a time."""
    assert isinstance(task.training, FederatedAveraging)
    settings, clip = task.training, task.privacy.clipping_norm
    model = build_model(task)
    model.load_trainable_arrays({name: arrays[name] for name in model.trainable_arrays()})
    if task.feature_schema.numeric:
        model.set_scaler(Scaler.from_arrays(arrays))
    parameters = dict(model.named_parameters())
    origin = {name: p.detach().clone() for name, p in parameters.items()}
    velocity = {name: torch.zeros_like(p) for name, p in parameters.items()}
    sampling, gaussian = noise.derive("sampling"), noise.derive("gradients")
    inputs, labels = [torch.from_numpy(array) for array in rows.inputs.values()], torch.from_numpy(rows.labels)
    for _ in range(settings.local_steps):
        total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
        for row in sampling.poisson_sample(len(rows), rate):
            model.zero_grad()
            nn.functional.cross_entropy(
                model(*(values[row : row + 1] for values in inputs)), labels[row : row + 1]
            ).backward()  # type: ignore[no-untyped-call]
            gradients = {name: p.grad.double() for name, p in parameters.items() if p.grad is not None}
            size = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
            for name, gradient in gradients.items():
                total[name] += gradient * min(1.0, clip / (size + 1e-6))
        with torch.no_grad():
            for name, parameter in parameters.items():
                drawn = torch.from_numpy(gaussian.normal(tuple(parameter.shape), sigma * clip))
                mean = ((total[name] + drawn) / (rate * len(rows))).float()
                mean += settings.proximal * (parameter - origin[name])
                velocity[name] = settings.momentum * velocity[name] + mean
                parameter.sub_(settings.learning_rate * velocity[name])
    return {name: (p.detach() - origin[name]).double().numpy() for name, p in parameters.items()}


def test_a_round_repeated_from_one_seed_is_the_same_whatever_came_before() -> None:
    task = private_task(steps=3, momentum=0.9)
    rows, arrays = some_rows(60), start(task)
    fresh = train_privately(LocalTrainer(task), arrays, rows, 1.0, 0.3, SeededNoise(9).derive("round-2"))
    used = LocalTrainer(task)
    train_privately(used, arrays, rows, 1.0, 0.3, SeededNoise(9).derive("round-1"))
    again = train_privately(used, arrays, rows, 1.0, 0.3, SeededNoise(9).derive("round-2"))
    for name, array in fresh.update.items():
        np.testing.assert_array_equal(array, again.update[name])


def test_system_noise_never_repeats() -> None:
    task = private_task()
    trainer, rows, arrays, noise = LocalTrainer(task), some_rows(30), start(task), SystemNoise()
    first = train_privately(trainer, arrays, rows, 1.0, 0.5, noise)
    second = train_privately(trainer, arrays, rows, 1.0, 0.5, noise)
    assert any((first.update[name] != second.update[name]).any() for name in first.update)


def test_torchs_own_generator_is_neither_used_nor_moved() -> None:
    """O17: noise and sampling from the global generator would be known to whoever knows its seed."""
    task = private_task()
    trainer = LocalTrainer(task)
    before = torch.random.get_rng_state()
    train_privately(trainer, start(task), some_rows(30), 1.0, 0.5, SeededNoise(1))
    assert torch.equal(before, torch.random.get_rng_state())


class BatchMean(nn.Module):
    """Statistics over the batch that no list of layer kinds knows."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values - values.mean(dim=0, keepdim=True)


class Gated(nn.Module):
    """Mixes by a weight that starts at 0, which a coordinator may send as anything."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.gate * values.mean(dim=0, keepdim=True)


class InEvaluation(BatchMean):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values if self.training else super().forward(values)


class FromThree(BatchMean):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return super().forward(values) if len(values) > 2 else values


class ByTheSize(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values / len(values)


class BySight(nn.Module):
    """Adds the second row to the last one."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.cat([values[:-1], values[-1:] + values[1:2]]) if len(values) > 3 else values


class Remembers(nn.Module):
    """Keeps a mean of all rows that it saw, in training."""

    def __init__(self, *, said: bool) -> None:
        super().__init__()
        self.said = said
        self.seen: torch.Tensor
        if said:
            self.register_buffer("seen", torch.zeros(5))
        else:
            self.seen = torch.zeros(5)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen = 0.9 * self.seen + 0.1 * values.detach().mean(dim=0)
            return values if self.said else values + self.seen
        return values + self.seen


class TakesFirst(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(values)
        return out


def frozen_norm() -> nn.Module:
    layer = nn.BatchNorm1d(5)
    layer.requires_grad_(requires_grad=False)
    return layer


MIXING: dict[str, nn.Module] = {
    "batch norm": nn.BatchNorm1d(5),
    "batch norm without affine parameters (O2)": nn.BatchNorm1d(5, affine=False),
    "frozen batch norm (O2)": frozen_norm(),
    "batch norm without running statistics": nn.BatchNorm1d(5, track_running_stats=False),
    "instance norm with running statistics": nn.InstanceNorm1d(5, track_running_stats=True),
    "a mean over the batch": BatchMean(),
    "a mean over the batch by a weight of 0": Gated(),
    "a mean over the batch in evaluation alone": InEvaluation(),
    "a mean over batches of three": FromThree(),
    "another row of batches of four": BySight(),
    "the number of rows": ByTheSize(),
    "a buffer that keeps what it saw": Remembers(said=True),
    "a field that keeps what it saw": Remembers(said=False),
}


@pytest.mark.parametrize("layer", MIXING.values(), ids=MIXING.keys())
def test_layers_that_mix_rows_are_refused(layer: nn.Module) -> None:
    schema = FeatureSchema(features=FEATURES, label=LABEL)
    model = TaskModel(schema, TakesFirst(layer, nn.Linear(5, 2)))
    with pytest.raises(PrivacyParameterInvalid, match=r"rows of a batch|other rows of the batch"):
        require_isolated_rows(model, schema)


def test_layers_that_keep_rows_apart_are_accepted() -> None:
    schema = FeatureSchema(features=FEATURES, label=LABEL)
    model = TaskModel(schema, TakesFirst(nn.LayerNorm(5), nn.Dropout(0.5), nn.Linear(5, 2)))
    before = model.trainable_arrays()
    require_isolated_rows(model, schema)
    assert model.training  # as it was given
    assert all(np.array_equal(array, before[name]) for name, array in model.trainable_arrays().items())
