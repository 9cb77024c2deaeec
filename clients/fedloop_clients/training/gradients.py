"""A rank's share of a batch: the sum of its rows' gradients, in as many pieces as the device's memory takes.

When a piece does not fit, what was summed is thrown away and the whole share is computed again in smaller pieces: nothing is
counted twice, and nothing has left the rank before its share is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloop_clients.training.accelerator import Accelerator
from fedloop_clients.training.clipping import UnitClipping
from fedloop_clients.training.dpsgd import NoisyOptimizer, physical_batches
from fedloop_clients.training.memory import PROBE_ROWS, BatchFit, fitted_size
from fedloop_clients.training.network import Network
from fedloop_clients.training.rows import PreparedRows
from fedloop_core.errors import UsageError

__all__ = ["RankGradients", "Share"]

T = TypeVar("T")
_ROWS_SHARE = 0.5  # of the memory that training may use; rows that take more stay with the host


@dataclass(frozen=True)
class Share:
    """Places of the rows of a rank's part of a batch, unit by unit, and the number of rows of each unit."""

    places: NDArray[np.int64]
    sizes: NDArray[np.int64]


class RankGradients:
    """Computes shares on one device.

    Args:
        network: the model, on the device.
        clipping: of a private task.
        rows: all training rows, on the CPU.
        accelerator: the device.
        device: as torch knows it.
        memory_share: of the free memory that may be used.
        abandoned: asked before each piece; when it says yes, the sum may be left incomplete.
    """

    def __init__(
        self,
        network: Network,
        clipping: UnitClipping | None,
        rows: PreparedRows,
        accelerator: Accelerator,
        device: torch.device,
        memory_share: float,
        abandoned: Callable[[], bool],
    ) -> None:
        self._network = network
        self._clipping = clipping
        self._accelerator = accelerator
        self._device = device
        self._share = memory_share
        self._abandoned = abandoned
        self._rows = self._placed(rows)
        self._fit: BatchFit | None = None

    @property
    def physical_batch_size(self) -> int:
        """Rows at once; 0 before the first batch."""
        return 0 if self._fit is None else self._fit.size

    def plain(self, places: NDArray[np.int64]) -> list[Tensor]:
        """The sum of the rows' gradients; of a survival task the gradient of the whole batch's loss.

        Raises:
            OutOfMemoryError: not even one row fits.
        """
        if not self._network.sums_over_rows:
            return self._gradients(places, whole=True)

        def attempt(size: int) -> list[Tensor]:
            total = self._zeros()
            for start in range(0, len(places), size):
                if self._abandoned():
                    break
                for sum_, gradient in zip(total, self._gradients(places[start : start + size]), strict=True):
                    sum_.add_(gradient)
            return total

        return self._fitting(attempt, lambda: None)

    def private(self, optimizer: NoisyOptimizer, share: Share) -> None:
        """Clips and adds the mean gradient of each unit: ``summed_grad`` of each parameter.

        Raises:
            OutOfMemoryError: not even one row fits.
        """
        clipping, counted = self._private(), optimizer.nonfinite_gradients

        def forget() -> None:
            clipping.forget()
            optimizer.forget()
            optimizer.nonfinite_gradients = counted

        def attempt(size: int) -> None:
            ends = np.cumsum(share.sizes)
            for part in physical_batches(np.arange(len(share.sizes)), share.sizes, size):
                if self._abandoned():
                    break
                if len(part) == 0:
                    optimizer.accumulate(part, 0)
                    continue
                places = share.places[ends[part[0]] - share.sizes[part[0]] : ends[part[-1]]]
                if len(places) > size:
                    self._large_unit(optimizer, places, size)
                else:
                    owners = np.repeat(np.arange(len(part)), share.sizes[part])
                    clipping.add(optimizer, self._take(places), owners, len(part))

        self._fitting(attempt, forget)
        for parameter in optimizer.params:
            if parameter.summed_grad is None:
                parameter.summed_grad = torch.zeros_like(parameter)

    def _large_unit(self, optimizer: NoisyOptimizer, places: NDArray[np.int64], size: int) -> None:
        """One unit alone has more rows than fit."""
        total = self._zeros()
        for start in range(0, len(places), size):
            self._private().write_down(self._take(places[start : start + size]))
            for sum_, rows in zip(total, optimizer.sum_of_rows(), strict=True):
                sum_.add_(rows)
        optimizer.accumulate_mean(total, len(places))

    def _private(self) -> UnitClipping:
        if self._clipping is None:
            raise UsageError(f"task {self._network.task.name!r} is not private.")
        return self._clipping

    def _gradients(self, places: NDArray[np.int64], *, whole: bool = False) -> list[Tensor]:
        if len(places) == 0:
            return self._zeros()
        batch = self._take(places)
        loss = self._network.mean_loss(batch) if whole else self._network.summed_loss(batch)
        return list(torch.autograd.grad(loss, self._network.parameters))

    def _zeros(self) -> list[Tensor]:
        return [torch.zeros_like(parameter) for parameter in self._network.parameters]

    def _take(self, places: NDArray[np.int64]) -> PreparedRows:
        batch = self._rows.take(torch.from_numpy(places).to(self._rows.labels.device))
        inputs = tuple(self._accelerator.place(values, self._device) for values in batch.inputs)
        return PreparedRows(inputs, self._accelerator.place(batch.labels, self._device))

    def _placed(self, rows: PreparedRows) -> PreparedRows:
        """The rows on the device when they leave room there, else as they are."""
        free = self._accelerator.free_bytes(self._device)
        tensors = (*rows.inputs, rows.labels)
        if free is not None and sum(values.nbytes for values in tensors) > free * self._share * _ROWS_SHARE:
            return rows
        *inputs, labels = [values.to(self._device) for values in tensors]
        return PreparedRows(tuple(inputs), labels)

    def _fitting(self, attempt: Callable[[int], T], forget: Callable[[], None]) -> T:
        """The attempt with as many rows at once as fit; halved after each that does not."""
        fit = self._fit or BatchFit(self._first_size(forget))
        while True:
            try:
                done = attempt(fit.size)
            except torch.OutOfMemoryError:
                smaller = fit.halved()
                if smaller is None:
                    raise
                fit = smaller
            else:
                self._fit = fit
                return done
            forget()  # not inside `except`: its traceback holds the tensors
            self._accelerator.release(self._device)

    def _first_size(self, forget: Callable[[], None]) -> int:
        """From a trial on a few rows, whose gradients are thrown away."""
        bound = self._network.training.physical_batch_size
        rows = min(PROBE_ROWS, bound, len(self._rows.labels))
        if self._accelerator.free_bytes(self._device) is None or rows == 0:
            return bound
        places = np.arange(rows)
        free = self._accelerator.free_bytes(self._device) or 0
        try:
            with self._accelerator.peak(self._device) as peak:
                if self._clipping is not None:
                    self._clipping.probe(self._take(places))
                else:
                    self._gradients(places)
        except torch.OutOfMemoryError:
            size = max(rows // 2, 1)
        else:
            size = fitted_size(bound, rows, peak.bytes, free, self._share)
        forget()
        self._accelerator.release(self._device)
        return size
