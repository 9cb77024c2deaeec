"""A task's model as training sees it: its trainable parameters, its loss, and the step along a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from fedloop_clients.training.dpsgd import GaussianSource, NoisyOptimizer
from fedloop_clients.training.rows import PreparedRows
from fedloop_core.arrays import ArraySpec
from fedloop_core.errors import UsageError
from fedloop_core.models import TaskModel, build_model, cox_loss, per_row_loss
from fedloop_core.schema import SurvivalLabel
from fedloop_core.task.document import CustomModel, FederatedAveraging, Task

__all__ = ["Descent", "Network", "seeded"]


class Network:
    """The model of a task that is trained by federated averaging, in training mode.

    Raises:
        UsageError: the task is trained otherwise.
        TaskInvalid: a custom model does not do what a model must.
    """

    def __init__(self, task: Task) -> None:
        if not isinstance(task.training, FederatedAveraging):
            raise UsageError(f"task {task.name!r} is not trained by federated averaging.")
        self.task = task
        self.training = task.training
        self.model: TaskModel = build_model(task)
        self.model.train()
        trainable = self.model.trainable_arrays()
        self.spec = ArraySpec.of(trainable)
        self.parameters: list[Tensor] = [self.model.get_parameter(name) for name in trainable]
        self.backbone, self.postprocessing = self.model.backbone, self.model.postprocessing
        self.random_layers = isinstance(task.model, CustomModel)

    @cached_property
    def fixed_digest(self) -> bytes:
        """Of what the model is built with and training does not move; found once."""
        return self.model.fixed_digest()

    @property
    def sums_over_rows(self) -> bool:
        """Whether the loss of a batch is a mean of losses of its rows; that of survival times is not."""
        return not isinstance(self.task.label, SurvivalLabel)

    def mean_loss(self, batch: PreparedRows) -> Tensor:
        """The loss of a batch: one value."""
        outputs = self.postprocessing(self.backbone(*batch.inputs))
        if not self.sums_over_rows:
            return cox_loss(outputs, batch.labels)
        return per_row_loss(self.task, outputs, batch.labels).mean()

    def summed_loss(self, batch: PreparedRows, module: Callable[..., Tensor] | None = None) -> Tensor:
        """The sum of the losses of rows, through ``module`` in place of the backbone when it is given: one value.

        Raises:
            UsageError: the label is a survival time.
        """
        outputs = self.postprocessing((module or self.backbone)(*batch.inputs))
        return per_row_loss(self.task, outputs, batch.labels).sum()

    def load(self, start: list[Tensor]) -> None:
        """Copies values into the trainable parameters."""
        with torch.no_grad():
            for parameter, values in zip(self.parameters, start, strict=True):
                parameter.copy_(values)

    def pull_to(self, start: list[Tensor], gradients: list[Tensor]) -> None:
        """Adds the gradient of FedProx' ``proximal / 2 * |w - start|^2``, which no row enters."""
        if self.training.proximal:
            with torch.no_grad():
                for gradient, parameter, origin in zip(gradients, self.parameters, start, strict=True):
                    gradient.add_(parameter - origin, alpha=self.training.proximal)

    def noisy_optimizer(
        self, noise: GaussianSource, noise_multiplier: float, expected_batch_size: float
    ) -> NoisyOptimizer:
        """A new one: nothing is carried between rounds."""
        settings = self.training
        plain = torch.optim.SGD(
            self.parameters, settings.learning_rate, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
        return NoisyOptimizer(
            plain,
            noise=noise,
            noise_multiplier=noise_multiplier,
            clipping_norm=self.task.privacy.clipping_norm,
            expected_batch_size=expected_batch_size,
        )


class Descent:
    """Plain stochastic gradient descent of one round, with its momentum."""

    def __init__(self, network: Network, start: list[Tensor]) -> None:
        self._network = network
        self._start = start
        self._buffers: list[Tensor | None] = [None] * len(network.parameters)

    def step(self, gradients: list[Tensor]) -> None:
        """Moves the parameters along the gradients of a batch's loss, which are changed in place."""
        settings = self._network.training
        with torch.no_grad():
            self._network.pull_to(self._start, gradients)
            sgd(
                self._network.parameters,
                gradients,
                self._buffers,
                foreach=True,
                weight_decay=settings.weight_decay,
                momentum=settings.momentum,
                lr=settings.learning_rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )


@contextmanager
def seeded(seed: int, *, needed: bool) -> Iterator[None]:
    """Draws of a model's own random layers follow the round's seed; torch's global generator is put back."""
    if not needed:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
