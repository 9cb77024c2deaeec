"""A rank on a CPU that behaves as a GPU in trouble; started as ``faulty_rank.py FAULTS DESCRIPTOR``."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from fedloop_clients.training.accelerator import Peak, TorchAccelerator
from fedloop_clients.training.rank_process import main
from fedloop_core.strict import Strict


class Fault(Strict):
    """What goes wrong on one device. ``holds``: rows that fit its memory, and what a look at it says of that.

    ``says`` and ``dies``: at the nth piece of a batch. ``slow``: a piece is computed when the file ``slow`` is gone.
    """

    holds: int | None = None
    tells_free_rows: int | None = None
    opens: bool = True
    says: str = ""
    dies: bool = False
    at_piece: int = 1
    slow: str = ""
    pieces: str = ""


class FaultyAccelerator(TorchAccelerator):
    """A row takes 1000 bytes, where anything is told of memory."""

    def __init__(self, faults: dict[str, Fault]) -> None:
        self._faults = faults
        self._fault = Fault()
        self._pieces = 0
        self._most = 0

    def open(self, name: str) -> torch.device:
        self._fault = self._faults.get(name, Fault())
        if not self._fault.opens:
            raise RuntimeError("Found no NVIDIA driver on your system.")
        return super().open(name)

    def place(self, values: Tensor, device: torch.device) -> Tensor:
        fault = self._fault
        self._pieces += 1
        self._most = max(self._most, len(values))
        if fault.pieces:
            with Path(fault.pieces).open("a") as log:
                log.write(f"{len(values)}\n")
        while fault.slow and Path(fault.slow).exists():
            signal.sigtimedwait([], 0.05)
        if fault.holds is not None and len(values) > fault.holds:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        if self._pieces >= fault.at_piece:
            if fault.dies:
                os.kill(os.getpid(), signal.SIGKILL)
            if fault.says:
                raise RuntimeError(fault.says)
        return super().place(values, device)

    def free_bytes(self, device: torch.device) -> int | None:
        told = self._fault.tells_free_rows
        return None if told is None else told * 1000

    @contextmanager
    def peak(self, device: torch.device) -> Iterator[Peak]:
        self._most = 0
        peak = Peak()
        yield peak
        peak.bytes = self._most * 1000


if __name__ == "__main__":
    told = {name: Fault.model_validate(fault) for name, fault in json.loads(sys.argv[1]).items()}
    sys.exit(main(int(sys.argv[2]), FaultyAccelerator(told)))
