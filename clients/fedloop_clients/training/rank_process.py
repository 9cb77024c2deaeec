"""Entry point of a rank's process; its trainer starts it: ``python -m fedloop_clients.training.rank_process DESCRIPTOR``.

The process belongs to training alone, so torch's switches for repeatable results are set for all of it and nowhere else.
"""

from __future__ import annotations

import logging
import signal
import sys
import warnings
from multiprocessing.connection import Connection

import torch

from fedloop_clients.training.accelerator import Accelerator, DeviceGone, TorchAccelerator
from fedloop_clients.training.distributed import PeerLost
from fedloop_clients.training.inbox import Inbox
from fedloop_clients.training.messages import DeviceFault, Failure, Kind
from fedloop_clients.training.rank import Rank

__all__ = ["main"]

_LOG = logging.getLogger(__name__)
_LONGEST = 300  # characters


def main(descriptor: int, accelerator: Accelerator | None = None) -> int:
    """Serves until the trainer closes the connection, or a failure was told; returns the exit status.

    Args:
        descriptor: number of the connection's descriptor.
        accelerator: the device; torch's when there is none.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which then closes the connection
    inbox = Inbox(Connection(descriptor))
    _repeatable()
    try:
        rank = Rank(inbox, accelerator or TorchAccelerator())
        while True:
            rank.serve_one()
    except Exception as error:  # noqa: BLE001  the boundary of the process
        _LOG.warning("a rank ends: %s", error, exc_info=not isinstance(error, PeerLost | torch.OutOfMemoryError))
        inbox.say(Kind.FAILED, _failure(error))
    return 1


def _repeatable() -> None:
    """The same sums in the same order each time, in float32 proper: TF32 would be another result than the CPU's."""
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)  # see LocalTrainer


def _failure(error: Exception) -> Failure:
    said = f"{type(error).__name__}: {error}".splitlines()[0][:_LONGEST]
    if isinstance(error, torch.OutOfMemoryError):
        return Failure(fault=DeviceFault.FULL, by_peer=False, said=said)
    lost = isinstance(error, RuntimeError) and "CUDA error" in str(error)
    if lost or isinstance(error, DeviceGone) or type(error).__name__ == "AcceleratorError":  # from torch 2.8 on
        return Failure(fault=DeviceFault.LOST, by_peer=False, said=said)
    return Failure(fault=None, by_peer=isinstance(error, PeerLost), said=said)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
