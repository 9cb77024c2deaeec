"""Adding each unit's clipped mean gradient to the sums of a step: by book-keeping where the model allows it, else by Opacus' hooks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from opacus import GradSampleModule
from torch import Tensor

from fedloop_clients.training.book_keeping import BookKeeping
from fedloop_clients.training.dpsgd import NoisyOptimizer, forget_batch, private_module
from fedloop_clients.training.network import Network
from fedloop_clients.training.rows import PreparedRows, nobodys_rows, raw_tensors
from fedloop_core.models import per_row_loss
from fedloop_core.schema import ClassLabel, Label, RegressionLabel, SurvivalLabel

__all__ = ["UnitClipping"]

_TRIAL_ROWS = 3


class UnitClipping:
    """The way in which one network's gradients are clipped, found once.

    Book-keeping takes batches in which each unit has one row. Whatever else there is goes through hooks, which write down
    each row's gradient: models with other layers, and units of several rows, whose gradients are averaged before they are clipped.

    Args:
        network: of a private task, on the device on which it is trained.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._norm = network.task.privacy.clipping_norm
        self._hooks: GradSampleModule | None = None
        self._book = BookKeeping.of(network.backbone, network.parameters, _trial(network))

    @property
    def keeps_book(self) -> bool:
        """Whether batches of one row a unit need no gradient for each row."""
        return self._book is not None

    def add(self, optimizer: NoisyOptimizer, batch: PreparedRows, owners: NDArray[np.int64], units: int) -> None:
        """Adds one part of a batch, of whole units.

        Args:
            optimizer: of the round.
            batch: the part's rows.
            owners: for each row, the place of its unit in the part.
            units: number of units in the part.
        """
        if units and self._book is not None and len(owners) == units:
            found = self._book.clipped_sums(lambda: self._network.summed_loss(batch), self._norm)
            optimizer.add_clipped(found.sums, found.nonfinite)
            return
        if units:
            self.write_down(batch)
        optimizer.accumulate(owners, units)

    def write_down(self, batch: PreparedRows) -> None:
        """Each row's gradient, into ``grad_sample`` of each parameter."""
        with self._hooked() as module, warnings.catch_warnings():
            # Rows need no gradient, so torch says of Opacus' hooks that they see gradients of outputs alone: as meant.
            warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
            self._network.summed_loss(batch, module).backward()  # type: ignore[no-untyped-call]

    def probe(self, batch: PreparedRows) -> None:
        """What ``add`` does with one row a unit, for nothing: to see what it takes."""
        if self._book is not None:
            self._book.clipped_sums(lambda: self._network.summed_loss(batch), self._norm)
        else:
            self.write_down(batch)

    def forget(self) -> None:
        """Forgets what a batch left behind that broke off."""
        if self._hooks is not None:
            forget_batch(self._hooks)

    @contextmanager
    def _hooked(self) -> Iterator[GradSampleModule]:
        """The backbone with hooks, which are taken away again where book is kept of other batches."""
        if self._hooks is None:
            self._hooks = private_module(self._network.backbone)
        elif self._book is not None:
            self._hooks.add_hooks(loss_reduction="sum")
        try:
            yield self._hooks
        finally:
            if self._book is not None:
                self._hooks.remove_hooks()


def _trial(network: Network) -> _Trial:
    schema = network.task.feature_schema
    device = network.parameters[0].device
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        prepared = network.model.prepared(*raw_tensors(nobodys_rows(schema, _TRIAL_ROWS)))
    inputs = tuple(
        torch.randn(values.shape, generator=generator).to(device) if values.is_floating_point() else values.to(device)
        for values in prepared
    )
    return _Trial(network, PreparedRows(inputs, _labels(schema.label, generator).to(device)))


class _Trial:
    """Losses of a few rows that are no one's, the same at each call."""

    def __init__(self, network: Network, rows: PreparedRows) -> None:
        self._network = network
        self._rows = rows

    def __call__(self) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            outputs = self._network.postprocessing(self._network.backbone(*self._rows.inputs))
        return per_row_loss(self._network.task, outputs, self._rows.labels)


def _labels(label: Label, generator: torch.Generator) -> Tensor:
    match label:
        case ClassLabel(classes=classes):
            return torch.randint(len(classes), (_TRIAL_ROWS,), generator=generator)
        case RegressionLabel(range=(low, high)):
            return low + (high - low) * torch.rand(_TRIAL_ROWS, generator=generator)
        case SurvivalLabel():
            raise ValueError("survival times are not trained privately")
