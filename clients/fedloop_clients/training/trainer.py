"""Local work of a round of federated averaging: from the arrays received to the update that is sent back.

A round depends on the arrays, the rows and the noise source of that round alone: no optimizer or generator lives longer,
so that a round that is repeated after a crash gives the same update.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from opacus import GradSampleModule
from torch import Tensor
from torch.optim.sgd import sgd

from fedloop_clients.statistics import own_scaler
from fedloop_clients.training.dpsgd import NoisyOptimizer, physical_batches, private_module
from fedloop_clients.training.isolation import require_isolated_rows
from fedloop_clients.training.rows import PreparedRows, UnitIndex, prepare, raw_tensors, shuffled_batches
from fedloop_clients.training.watching import TrainingWatch, Unwatched
from fedloop_core.arrays import ArraySpec, NamedArrays
from fedloop_core.dataset import Dataset
from fedloop_core.errors import TooFewRows, UpdateRefused, UsageError
from fedloop_core.models import TaskModel, build_model, cox_loss, per_row_loss
from fedloop_core.noise import NoiseSource
from fedloop_core.scaling import SCALER_DEVIATION, SCALER_MEAN, Scaler
from fedloop_core.schema import SurvivalLabel
from fedloop_core.task.document import CustomModel, FederatedAveraging, Task

__all__ = ["LocalResult", "LocalTrainer"]

_UNWATCHED = Unwatched()


@dataclass(frozen=True)
class LocalResult:
    """The update (new minus received, float32, in the model's order) and what it took.

    ``empty_batches`` of the ``steps`` held no unit; ``nonfinite_gradients``, of rows or of
    whole units, were set to 0.
    """

    update: dict[str, NDArray[np.float32]]
    steps: int
    empty_batches: int = 0
    nonfinite_gradients: int = 0


@dataclass(frozen=True)
class _Cached:
    rows: Dataset
    key: bytes
    prepared: PreparedRows
    units: UnitIndex


class LocalTrainer:
    """One task's model, built once and kept warm.

    Args:
        task: one that is trained by federated averaging.

    Raises:
        UsageError: the task is trained otherwise.
        TaskInvalid: a custom model does not do what a model must.
        PrivacyParameterInvalid: the task is private and its model mixes the rows of a batch.
    """

    def __init__(self, task: Task) -> None:
        if not isinstance(task.training, FederatedAveraging):
            raise UsageError(f"task {task.name!r} is not trained by federated averaging.")
        self._task = task
        self._training = task.training
        self._model: TaskModel = build_model(task)
        self._model.train()
        trainable = self._model.trainable_arrays()
        self._spec = ArraySpec.of(trainable)
        self._parameters: list[Tensor] = [self._model.get_parameter(name) for name in trainable]
        self._backbone, self._postprocessing = self._model.backbone, self._model.postprocessing
        self._schema = task.feature_schema
        self._random_layers = isinstance(task.model, CustomModel)
        self._private: GradSampleModule | None = None
        self._cached: _Cached | None = None
        if task.privacy.private:
            require_isolated_rows(self._model, self._schema)
            self._private = private_module(self._model.backbone)

    def train(self, arrays: NamedArrays, rows: Dataset, seed: int, watch: TrainingWatch = _UNWATCHED) -> LocalResult:
        """Plain stochastic gradient descent over shuffled batches.

        Args:
            arrays: trainable arrays, then the scaler's where the schema has numbers.
            rows: training rows.
            seed: decides the order of the rows, and what random layers draw.
            watch: is told of each step, and may end the training by raising.

        Raises:
            TooFewRows: there is no row.
            UpdateRefused: arrays that do not fit the model, or an update that is not finite.
        """
        start = self._load(arrays)
        cached = self._prepared(rows, arrays)
        with _seeded(seed, needed=self._random_layers):
            settings, parameters = self._training, self._parameters
            buffers: list[Tensor | None] = [None] * len(parameters)
            batches = shuffled_batches(len(rows), settings.batch_size, settings.local_steps, seed)
            for step, places in enumerate(batches, 1):
                watch.at_step(step, settings.local_steps)
                loss = self._mean_loss(cached.prepared.take(places))
                gradients = list(torch.autograd.grad(loss, parameters))
                with torch.no_grad():
                    self._pull_to(start, gradients)
                    sgd(
                        parameters,
                        gradients,
                        buffers,
                        foreach=True,
                        weight_decay=settings.weight_decay,
                        momentum=settings.momentum,
                        lr=settings.learning_rate,
                        dampening=0.0,
                        nesterov=False,
                        maximize=False,
                    )
        return LocalResult(self._update(start), settings.local_steps)

    def train_privately(
        self,
        arrays: NamedArrays,
        rows: Dataset,
        noise_multiplier: float,
        rate: float,
        noise: NoiseSource,
        *,
        expected_batch_size: float,
        watch: TrainingWatch = _UNWATCHED,
    ) -> LocalResult:
        """DP-SGD over Poisson batches of units, each unit's mean gradient clipped; every step counts, empty ones too.

        Args:
            arrays: trainable arrays, then the scaler's where the schema has numbers.
            rows: training rows; rows of one unit are protected together.
            noise_multiplier: deviation of the noise over the clipping norm.
            rate: probability of each unit to be in a step.
            noise: source of sampling and noise, each from a source of its own.
            expected_batch_size: divides the noised sum of each step. Rate times the number of units as it was told: the
                exact number would scale the update by something that nobody paid for.
            watch: is told of each step, and may end the training by raising.

        Raises:
            TooFewRows: there is no row.
            UpdateRefused: arrays that do not fit the model, or an update that is not finite.
            UsageError: the task is not private.
        """
        if self._private is None:
            raise UsageError(f"task {self._task.name!r} is not private.")
        start = self._load(arrays)
        cached = self._prepared(rows, arrays)
        sampling, gaussian = noise.derive("sampling"), noise.derive("gradients")
        optimizer = NoisyOptimizer(
            self._optimizer(),
            noise=gaussian,
            noise_multiplier=noise_multiplier,
            clipping_norm=self._task.privacy.clipping_norm,
            expected_batch_size=expected_batch_size,
        )
        empty = 0
        with _seeded(noise.seed_for("layers"), needed=self._random_layers), warnings.catch_warnings():
            # Rows need no gradient, so torch says of Opacus' hooks that they see gradients of outputs alone: as meant.
            warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
            for step in range(1, self._training.local_steps + 1):
                watch.at_step(step, self._training.local_steps)
                units = sampling.poisson_sample(len(cached.units), rate)
                empty += int(len(units) == 0)
                self._accumulate(optimizer, self._private, cached, units, watch)
                optimizer.noisy_mean()
                self._pull_to(start, [parameter.grad for parameter in optimizer.params])
                optimizer.descend()
        return LocalResult(self._update(start), self._training.local_steps, empty, optimizer.nonfinite_gradients)

    def outputs(self, arrays: NamedArrays, rows: Dataset, scaler_rows: Dataset) -> NDArray[np.float32]:
        """The model's outputs for rows: float32 ``[rows, outputs]``.

        Args:
            arrays: trainable arrays, then the scaler's where the schema has numbers.
            rows: rows to score.
            scaler_rows: the site's training rows, by which a task with scaling per site scales.

        Raises:
            UpdateRefused: arrays that do not fit the model.
        """
        self._load(arrays)
        if self._schema.numeric:
            self._model.set_scaler(self._scaler(arrays, scaler_rows))
        self._model.eval()
        with torch.no_grad():
            outputs: Tensor = self._model(*raw_tensors(rows.inputs))
        self._model.train()
        return outputs.numpy()

    def _accumulate(
        self,
        optimizer: NoisyOptimizer,
        module: GradSampleModule,
        cached: _Cached,
        units: NDArray[np.int64],
        watch: TrainingWatch,
    ) -> None:
        for part in physical_batches(units, cached.units.sizes[units], self._training.physical_batch_size):
            places, owners = cached.units.rows_of(part)
            if len(part):
                batch = cached.prepared.take(torch.from_numpy(places))
                outputs = self._postprocessing(module(*batch.inputs))
                per_row_loss(self._task, outputs, batch.labels).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.accumulate(owners, len(part))
            watch.between_batches()

    def _mean_loss(self, batch: PreparedRows) -> Tensor:
        outputs = self._postprocessing(self._backbone(*batch.inputs))
        if isinstance(self._task.label, SurvivalLabel):
            return cox_loss(outputs, batch.labels)
        return per_row_loss(self._task, outputs, batch.labels).mean()

    def _optimizer(self) -> torch.optim.SGD:
        settings = self._training
        return torch.optim.SGD(
            self._parameters, settings.learning_rate, momentum=settings.momentum, weight_decay=settings.weight_decay
        )

    def _pull_to(self, start: list[Tensor], gradients: list[Tensor]) -> None:
        """Adds the gradient of FedProx' ``proximal / 2 * |w - start|^2``, which no row enters."""
        if self._training.proximal:
            with torch.no_grad():
                for gradient, parameter, origin in zip(gradients, self._parameters, start, strict=True):
                    gradient.add_(parameter - origin, alpha=self._training.proximal)

    def _load(self, arrays: NamedArrays) -> list[Tensor]:
        """Loads the trainable arrays; returns them as tensors."""
        trainable = {name: array for name, array in arrays.items() if name not in {SCALER_MEAN, SCALER_DEVIATION}}
        self._spec.check(trainable)
        start = [torch.from_numpy(np.array(array)) for array in trainable.values()]
        with torch.no_grad():
            for parameter, values in zip(self._parameters, start, strict=True):
                parameter.copy_(values)
        return start

    def _update(self, start: list[Tensor]) -> dict[str, NDArray[np.float32]]:
        with torch.no_grad():
            moved = [parameter - origin for parameter, origin in zip(self._parameters, start, strict=True)]
        update: dict[str, NDArray[np.float32]] = {
            name: values.numpy() for name, values in zip(self._spec.names, moved, strict=True)
        }
        if not all(np.isfinite(array).all() for array in update.values()):
            raise UpdateRefused(
                "training gave weights that are not finite.", hint="Lower training.learning_rate.", reason="not-finite"
            )
        return update

    def _scaler(self, arrays: NamedArrays, rows: Dataset) -> Scaler:
        """The scaler received, or the site's own where a task scales per site.

        Raises:
            UpdateRefused: no scaler travels beside the weights.
        """
        if self._task.preprocessing.scaling == "per-site":
            return own_scaler(self._schema, rows)
        if SCALER_MEAN not in arrays or SCALER_DEVIATION not in arrays:
            raise UpdateRefused("the scaler does not travel beside the weights.", reason="scaler")
        return Scaler.from_arrays(arrays)

    def _prepared(self, rows: Dataset, arrays: NamedArrays) -> _Cached:
        """Prepared training rows; prepared again only when the rows or the scaler are others than last time."""
        if len(rows) == 0:
            raise TooFewRows("there is no training row.", hint="Add data, or leave the run.")
        key = b"".join(arrays[name].tobytes() for name in (SCALER_MEAN, SCALER_DEVIATION) if name in arrays)
        if self._cached is None or self._cached.rows is not rows or self._cached.key != key:
            if self._schema.numeric:
                self._model.set_scaler(self._scaler(arrays, rows))
            self._cached = _Cached(rows, key, prepare(self._model, rows), UnitIndex.of(rows.units))
        return self._cached


@contextmanager
def _seeded(seed: int, *, needed: bool) -> Iterator[None]:
    """Draws of a model's own random layers follow the round's seed; torch's global generator is put back."""
    if not needed:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
