"""Sums over ranks, and parameters from rank 0 to all: torch.distributed, NCCL between GPUs and gloo between CPUs.

Not DistributedDataParallel, though it rests on the same collectives. It averages over ranks with equal weights, which is
wrong when shares differ in size, waits for a backward pass on each rank, which an empty share has none of, and its hooks and
Opacus' do not go together. Here each rank brings a sum, rank 0 gets the sum of the sums, adds the noise once, takes the one
optimizer step and tells the parameters: as much traffic as the all-reduce, and every rank has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["PeerLost", "RankLink"]

_TIMEOUT = timedelta(minutes=30)  # whoever started the ranks sees one die at once, and ends the others


class PeerLost(Exception):
    """Another rank did not take its part."""


class RankLink:
    """One rank among several; a single one needs no link and talks to nobody.

    Args:
        rank: this one's place.
        ranks: how many there are.
        device: of this rank.
        store: a file, in a folder that only this user can enter, over which the ranks find each other.

    Raises:
        PeerLost: the others do not come.
    """

    def __init__(self, rank: int, ranks: int, device: torch.device, store: Path) -> None:
        self.rank = rank
        self._ranks = ranks
        if ranks > 1:
            backend = "nccl" if device.type == "cuda" else "gloo"
            try:
                dist.init_process_group(
                    backend, init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=_TIMEOUT
                )
                self.sum_to_first([torch.zeros(1, device=device)])  # connects all, so that no round has to
            except RuntimeError as error:
                raise PeerLost(str(error)) from error

    def sum_to_first(self, tensors: list[Tensor]) -> list[Tensor]:
        """The sums over all ranks, at rank 0; what others get means nothing.

        Raises:
            PeerLost: another rank did not take its part.
        """
        if self._ranks == 1:
            return tensors
        flat = torch.cat([values.reshape(-1) for values in tensors])
        self._collective(lambda: dist.reduce(flat, dst=0))
        return _pieces(flat, tensors)

    def tell_from_first(self, tensors: list[Tensor]) -> None:
        """Overwrites the tensors with those of rank 0.

        Raises:
            PeerLost: another rank did not take its part.
        """
        if self._ranks == 1:
            return
        with torch.no_grad():
            flat = torch.cat([values.reshape(-1) for values in tensors])
            self._collective(lambda: dist.broadcast(flat, src=0))
            if self.rank:
                for piece, values in zip(_pieces(flat, tensors), tensors, strict=True):
                    values.copy_(piece)

    def _collective(self, call: Callable[[], object]) -> None:
        try:
            call()
        except RuntimeError as error:
            if "CUDA error" in str(error):
                raise
            raise PeerLost(str(error)) from error


def _pieces(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    pieces = torch.split(flat, [values.numel() for values in like])
    return [piece.view_as(values) for piece, values in zip(pieces, like, strict=True)]
