"""Local work of a round of federated averaging: from the arrays received to the update that is sent back.

A round depends on the arrays, the rows and the noise source of that round alone: no optimizer or generator lives longer,
so that a round that is repeated after a crash gives the same update.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloop_clients.scoring.model import outputs_apart
from fedloop_clients.statistics import own_scaler
from fedloop_clients.training.bounding import require_ordinary
from fedloop_clients.training.clipping import UnitClipping
from fedloop_clients.training.devices import DevicePool
from fedloop_clients.training.dpsgd import NoisyOptimizer, physical_batches
from fedloop_clients.training.drawing import drawn_ahead
from fedloop_clients.training.isolation import require_isolated_rows
from fedloop_clients.training.network import Descent, Network, seeded
from fedloop_clients.training.parallel import DeviceRounds
from fedloop_clients.training.rounds import PlainRound, PrivateRound, Trained
from fedloop_clients.training.rows import TrainingRows, UnitIndex, prepare, raw_tensors, shuffled_batches
from fedloop_clients.training.watching import TrainingWatch, Unwatched
from fedloop_core.arrays import NamedArrays
from fedloop_core.dataset import Dataset
from fedloop_core.errors import ModelDiffers, TooFewRows, UpdateRefused, UsageError
from fedloop_core.noise import NoiseSource
from fedloop_core.scaling import SCALER_DEVIATION, SCALER_MEAN, Scaler
from fedloop_core.task.document import Task

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
    prepared: TrainingRows


class LocalTrainer:
    """One task's model, built once and kept warm, with its rows, on the site's devices.

    On the CPU alone training runs in this process. On other devices it runs in a process for each: see ``DeviceRounds``.
    Evaluation runs here in both cases.

    Args:
        task: one that is trained by federated averaging.
        devices: where it is trained.

    Raises:
        UsageError: the task is trained otherwise.
        TaskInvalid: a custom model does not do what a model must.
        PrivacyParameterInvalid: the task is private and its model mixes the rows of a batch.
    """

    def __init__(self, task: Task, devices: DevicePool | None = None) -> None:
        self._task = task
        self._network = Network(task)
        self._model = self._network.model
        self._schema = task.feature_schema
        self._clipping: UnitClipping | None = None
        self._cached: _Cached | None = None
        if task.privacy.private:
            require_isolated_rows(self._model, self._schema)
            self._clipping = UnitClipping(self._network)
        self._rounds = DeviceRounds(self._network, devices or DevicePool.cpu())

    def require_fixed(self, expected: bytes) -> None:
        """Refuses to train a model that was built with other frozen weights than the coordinator's.

        Raises:
            ModelDiffers: theirs have another digest.
        """
        own = self._network.fixed_digest
        if own == expected:
            return
        what = (
            "frozen weights here and none at the coordinator"
            if not expected
            else "other frozen weights here than there"
        )
        raise ModelDiffers(
            f"the model of task {self._task.name!r} is built with {what if own else 'frozen weights at the coordinator alone'}.",
            hint="Load them from a file that is the same at every site and at the coordinator.",
        )

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
            DeviceLost: no device is left to train on.
        """
        if len(rows) == 0:
            raise TooFewRows("there is no training row.", hint="Add data, or leave the run.")
        start = self._load(arrays)
        asked = PlainRound(start, self._prepared(rows, arrays), seed)
        return self._result(start, self._rounds.plain(asked, self._train_here, watch))

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
            rows: training rows; rows of one unit are protected together. Without any the update is noise alone: a refusal would
                say that there is none.
            noise_multiplier: deviation of the noise over the clipping norm.
            rate: probability of each unit to be in a step.
            noise: source of sampling and noise, each from a source of its own.
            expected_batch_size: divides the noised sum of each step. Rate times the number of units as it was told: the
                exact number would scale the update by something that nobody paid for.
            watch: is told of each step, and may end the training by raising.

        Raises:
            UpdateRefused: arrays that do not fit the model, or an update that is not finite.
            UsageError: the task is not private.
            DeviceLost: no device is left to train on.
        """
        if self._clipping is None:
            raise UsageError(f"task {self._task.name!r} is not private.")
        start = self._load(arrays)
        asked = PrivateRound(
            start,
            self._prepared(rows, arrays),
            noise_multiplier=noise_multiplier,
            rate=rate,
            expected_batch_size=expected_batch_size,
            sampling=noise.derive("sampling"),
            gaussian=noise.derive("gradients"),
            layer_seed=noise.seed_for("layers"),
        )
        return self._result(start, self._rounds.private(asked, self._train_privately_here, watch))

    @property
    def physical_batch_sizes(self) -> tuple[int, ...]:
        """Rows at once, as the last round on devices fitted them to each; empty before, and on the CPU alone."""
        return self._rounds.physical_batch_sizes

    def close(self) -> None:
        """Ends the processes of devices; a later round starts them anew."""
        self._rounds.close()

    def outputs(self, arrays: NamedArrays, rows: Dataset, scaler_rows: Dataset) -> NDArray[np.float32]:
        """The model's outputs for rows: float32 ``[rows, outputs]``.

        Args:
            arrays: trainable arrays, then the scaler's where the schema has numbers.
            rows: rows to score.
            scaler_rows: the site's training rows, by which a task with scaling per site scales.

        Raises:
            UpdateRefused: arrays that do not fit the model.
        """
        with self._answering(arrays, scaler_rows), torch.no_grad():
            outputs: Tensor = self._model(*raw_tensors(rows.inputs))
        return outputs.numpy()

    def outputs_apart(self, arrays: NamedArrays, rows: Dataset, scaler_rows: Dataset) -> NDArray[np.float32]:
        """As ``outputs``, each row answered alone; not a number for a row on which the model fails.

        Raises:
            UpdateRefused: arrays that do not fit the model.
        """
        with self._answering(arrays, scaler_rows):
            return outputs_apart(self._model, raw_tensors(rows.inputs), self._schema.outputs)

    @contextmanager
    def _answering(self, arrays: NamedArrays, scaler_rows: Dataset) -> Iterator[None]:
        """With these arrays, in evaluation."""
        self._load(arrays)
        if self._schema.numeric:
            self._model.set_scaler(self._scaler(arrays, scaler_rows))
        self._model.eval()
        try:
            yield
        finally:
            self._model.train()

    def _train_here(self, asked: PlainRound, watch: TrainingWatch) -> Trained:
        network, settings = self._network, self._network.training
        with seeded(asked.seed, needed=network.random_layers):
            descent = Descent(network, asked.start)
            batches = shuffled_batches(
                len(asked.rows.prepared.labels), settings.batch_size, settings.local_steps, asked.seed
            )
            for step, places in enumerate(batches, 1):
                watch.at_step(step, settings.local_steps)
                loss = network.mean_loss(asked.rows.prepared.take(places))
                descent.step(list(torch.autograd.grad(loss, network.parameters)))
        return Trained(network.parameters)

    def _train_privately_here(self, asked: PrivateRound, watch: TrainingWatch) -> Trained:
        network, clipping = self._network, self._clipping
        if clipping is None:
            raise UsageError(f"task {self._task.name!r} is not private.")
        clipping.forget()
        steps, empty = network.training.local_steps, 0
        shapes = [tuple(parameter.shape) for parameter in network.parameters]
        deviation = asked.noise_multiplier * self._task.privacy.clipping_norm
        with (
            seeded(asked.layer_seed, needed=network.random_layers),
            drawn_ahead(asked.gaussian, shapes, deviation, steps) as gaussian,
        ):
            optimizer = network.noisy_optimizer(gaussian, asked.noise_multiplier, asked.expected_batch_size)
            for step in range(1, steps + 1):
                watch.at_step(step, steps)
                units = asked.sampling.poisson_sample(len(asked.rows.units), asked.rate)
                empty += int(len(units) == 0)
                self._accumulate(optimizer, clipping, asked.rows, units, watch)
                optimizer.noisy_mean()
                network.pull_to(asked.start, [parameter.grad for parameter in optimizer.params])
                optimizer.descend()
        return Trained(network.parameters, empty, optimizer.nonfinite_gradients)

    def _accumulate(
        self,
        optimizer: NoisyOptimizer,
        clipping: UnitClipping,
        rows: TrainingRows,
        units: NDArray[np.int64],
        watch: TrainingWatch,
    ) -> None:
        for part in physical_batches(units, rows.units.sizes[units], self._network.training.physical_batch_size):
            places, owners = rows.units.rows_of(part)
            clipping.add(optimizer, rows.prepared.take(torch.from_numpy(places)), owners, len(part))
            watch.between_batches()

    def _load(self, arrays: NamedArrays) -> list[Tensor]:
        """Loads the trainable arrays; returns them as tensors."""
        trainable = {name: array for name, array in arrays.items() if name not in {SCALER_MEAN, SCALER_DEVIATION}}
        self._network.spec.check(trainable)
        if self._task.privacy.private:
            require_ordinary(trainable)
        start = [torch.from_numpy(np.array(array)) for array in trainable.values()]
        self._network.load(start)
        return start

    def _result(self, start: list[Tensor], trained: Trained) -> LocalResult:
        with torch.no_grad():
            moved = [new - origin for new, origin in zip(trained.parameters, start, strict=True)]
        update: dict[str, NDArray[np.float32]] = {
            name: values.numpy() for name, values in zip(self._network.spec.names, moved, strict=True)
        }
        if not all(np.isfinite(array).all() for array in update.values()):
            raise UpdateRefused(
                "training gave weights that are not finite.", hint="Lower training.learning_rate.", reason="not-finite"
            )
        return LocalResult(
            update, self._network.training.local_steps, trained.empty_batches, trained.nonfinite_gradients
        )

    def _scaler(self, arrays: NamedArrays, rows: Dataset) -> Scaler:
        """The scaler received, or the site's own where a task scales per site.

        Raises:
            UpdateRefused: no scaler travels beside the weights, or one that the public ranges do not allow.
        """
        if self._task.preprocessing.scaling == "per-site":
            return own_scaler(self._schema, rows)
        return Scaler.received(self._schema, arrays)

    def _prepared(self, rows: Dataset, arrays: NamedArrays) -> TrainingRows:
        """Prepared training rows; prepared again only when the rows or the scaler are others than last time."""
        key = b"".join(arrays[name].tobytes() for name in (SCALER_MEAN, SCALER_DEVIATION) if name in arrays)
        if self._cached is None or self._cached.rows is not rows or self._cached.key != key:
            if self._schema.numeric:
                self._model.set_scaler(self._scaler(arrays, rows))
            prepared = TrainingRows(prepare(self._model, rows), UnitIndex.of(rows.units))
            self._cached = _Cached(rows, key, prepared)
        return self._cached.prepared
