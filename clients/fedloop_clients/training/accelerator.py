"""What training asks of a device beside arithmetic: a place for tensors, and how much memory is left and was taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Accelerator", "DeviceGone", "Peak", "TorchAccelerator"]


class DeviceGone(Exception):
    """A device cannot be opened, whatever torch says of it: no driver, no such number, in use by another program alone."""


@dataclass
class Peak:
    """Bytes that a piece of work took at most, above what was there; known when it has ended."""

    bytes: int = 0


class Accelerator(Protocol):
    """A device of torch's. Its methods raise what torch raises: OutOfMemoryError, and RuntimeError when it is lost."""

    def open(self, name: str) -> torch.device:
        """Makes the device ready: one start of its context, kept until the process ends."""

    def place(self, values: Tensor, device: torch.device) -> Tensor:
        """The values there, themselves when they are."""

    def free_bytes(self, device: torch.device) -> int | None:
        """Memory that new tensors can take; none where the machine's own memory is the limit."""

    def peak(self, device: torch.device) -> AbstractContextManager[Peak]:
        """Measures what the body takes."""

    def release(self, device: torch.device) -> None:
        """Gives back what is cached."""


class TorchAccelerator:
    """The real one: a GPU, or the CPU under any number, ``cpu:1``."""

    def open(self, name: str) -> torch.device:
        """See ``Accelerator``."""
        device = torch.device("cpu" if name.startswith("cpu") else name)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        torch.zeros(1, device=device)
        return device

    def place(self, values: Tensor, device: torch.device) -> Tensor:
        """See ``Accelerator``."""
        return values.to(device)

    def free_bytes(self, device: torch.device) -> int | None:
        """See ``Accelerator``; what torch holds and does not use counts as free."""
        if device.type != "cuda":
            return None
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))

    @contextmanager
    def peak(self, device: torch.device) -> Iterator[Peak]:
        """See ``Accelerator``; 0 on the CPU."""
        peak = Peak()
        if device.type != "cuda":
            yield peak
            return
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        peak.bytes = int(torch.cuda.max_memory_allocated(device) - before)

    def release(self, device: torch.device) -> None:
        """See ``Accelerator``."""
        if device.type == "cuda":
            torch.cuda.empty_cache()
