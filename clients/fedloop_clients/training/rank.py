"""A rank: the model and the rows on one device, and its part of each round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load
from torch import Tensor

from fedloop_clients.training.accelerator import Accelerator, DeviceGone
from fedloop_clients.training.clipping import UnitClipping
from fedloop_clients.training.distributed import RankLink
from fedloop_clients.training.dpsgd import NoisyOptimizer
from fedloop_clients.training.gradients import RankGradients, Share
from fedloop_clients.training.inbox import Inbox
from fedloop_clients.training.messages import Begin, Ended, Kind, RowsPiece, Setup, Step
from fedloop_clients.training.network import Descent, Network
from fedloop_clients.training.rows import PreparedRows
from fedloop_core.arrays import NamedArrays, unpack_arrays
from fedloop_core.errors import ProcessFailed
from fedloop_core.federation.frames import Frame
from fedloop_core.task.document import Task

__all__ = ["Rank", "ReceivedNoise"]


class ReceivedNoise:
    """The noise of a round as rank 0 receives it, one array for each parameter, in their order."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._waiting: list[NDArray[np.generic]] = []

    def normal(self, shape: tuple[int, ...], deviation: float) -> NDArray[np.float64]:  # noqa: ARG002  drawn with it
        """The next array.

        Raises:
            ProcessFailed: what comes is something else.
        """
        if not self._waiting:
            frame = self._inbox.next()
            self._waiting = list(_arrays(frame, Kind.NOISE).values())
        noise = self._waiting.pop(0)
        if noise.shape != shape or noise.dtype != np.float64:
            raise ProcessFailed(f"noise of shape {noise.shape} came for a parameter of shape {shape}.")
        return noise.astype(np.float64)


class Rank:
    """Does what the frames ask, in their order, until the process ends.

    Args:
        inbox: the connection to the trainer.
        accelerator: the device.

    Raises:
        DeviceGone: the device cannot be opened.
        PeerLost: the other ranks do not come.
    """

    def __init__(self, inbox: Inbox, accelerator: Accelerator) -> None:
        self._inbox = inbox
        self._accelerator = accelerator
        self._setup = Setup.model_validate_json(_body(inbox.next(), Kind.SETUP))
        self._device = _opened(accelerator, self._setup.device)
        self._network = self._network_of(Task.from_canonical(self._setup.task.encode()))
        self._link = RankLink(self._setup.rank, self._setup.ranks, self._device, Path(self._setup.store))
        self._gradients: RankGradients | None = None
        self._round: _OpenRound | None = None
        self._pieces: list[NamedArrays] = []
        inbox.say(Kind.READY)

    def serve_one(self) -> None:
        """Waits for a frame and acts on it.

        Raises:
            PeerLost: another rank did not take its part.
            RuntimeError: the device is full or lost.
            ProcessFailed: a frame that does not belong there.
        """
        frame = self._inbox.next()
        match frame.kind:
            case Kind.ROWS:
                self._take_rows(frame)
            case Kind.BEGIN:
                self._begin(frame)
            case Kind.STEP:
                self._step(frame)
                self._inbox.say(Kind.STEPPED)
            case Kind.FINISH:
                self._finish()
            case Kind.ABANDON:
                self._round = None
                self._inbox.forget_abandonment()
                self._inbox.say(Kind.ABANDONED)
            case _:
                raise ProcessFailed(f"a frame {frame.kind!r} does not belong here.")

    def _network_of(self, task: Task) -> Network:
        network = Network(task)
        network.model.load_state_dict(load(_body(self._inbox.next(), Kind.STATE)))
        network.backbone.to(self._device)
        network.postprocessing.to(self._device)
        self._clipping = UnitClipping(network) if task.privacy.private else None
        return network

    def _take_rows(self, frame: Frame) -> None:
        self._pieces.append(_arrays(frame, Kind.ROWS))
        if not RowsPiece.model_validate_json(frame.body).last:
            return
        names = list(self._pieces[0])
        *inputs, labels = [torch.from_numpy(np.concatenate([piece[name] for piece in self._pieces])) for name in names]
        self._pieces = []
        self._gradients = None
        self._accelerator.release(self._device)
        self._gradients = RankGradients(
            self._network,
            self._clipping,
            PreparedRows(tuple(inputs), labels),
            self._accelerator,
            self._device,
            self._setup.memory_share,
            self._inbox.abandoned,
        )

    def _begin(self, frame: Frame) -> None:
        begin = Begin.model_validate_json(frame.body)
        if self._gradients is None:
            raise ProcessFailed("a round begins before there are rows.")
        start = [torch.from_numpy(array.copy()).to(self._device) for array in _arrays(frame, Kind.BEGIN).values()]
        self._network.load(start)
        if self._network.random_layers:
            torch.manual_seed(begin.seed + self._setup.rank)
        optimizer = None
        if begin.private is not None:
            if self._clipping is None:
                raise ProcessFailed("a private round begins in a task without privacy.")
            self._clipping.forget()
            noise = ReceivedNoise(self._inbox)
            settings = begin.private
            optimizer = self._network.noisy_optimizer(noise, settings.noise_multiplier, settings.expected_batch_size)
        self._round = _OpenRound(self._network, self._link, self._gradients, start, optimizer)

    def _step(self, frame: Frame) -> None:
        arrays = _arrays(frame, Kind.STEP)
        self._open().step(
            Step.model_validate_json(frame.body).rows, _places(arrays, "places"), _places(arrays, "sizes")
        )

    def _finish(self) -> None:
        done = self._open()
        ended = Ended(
            nonfinite_gradients=done.nonfinite_gradients, physical_batch_size=done.gradients.physical_batch_size
        )
        names = self._network.spec.names
        values = [parameter.detach().cpu().numpy() for parameter in self._network.parameters]
        self._round = None
        self._inbox.say(Kind.ENDED, ended, dict(zip(names, values, strict=True)) if self._setup.rank == 0 else None)

    def _open(self) -> _OpenRound:
        if self._round is None:
            raise ProcessFailed("a step comes before its round begins.")
        return self._round


class _OpenRound:
    """A round in hand; private when there is an optimizer."""

    def __init__(
        self,
        network: Network,
        link: RankLink,
        gradients: RankGradients,
        start: list[Tensor],
        optimizer: NoisyOptimizer | None,
    ) -> None:
        self.gradients = gradients
        self._network = network
        self._link = link
        self._start = start
        self._optimizer = optimizer
        self._descent = Descent(network, start)

    @property
    def nonfinite_gradients(self) -> int:
        """Counted on this rank."""
        return 0 if self._optimizer is None else self._optimizer.nonfinite_gradients

    def step(self, rows: int, places: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """One step of all ranks; ``rows`` of the whole batch."""
        if self._optimizer is None:
            sums = self._link.sum_to_first(self.gradients.plain(places))
            if self._link.rank == 0:
                divisor = rows if self._network.sums_over_rows else 1
                self._descent.step([values / divisor for values in sums])
        else:
            self._private_step(self._optimizer, Share(places, sizes))
        self._link.tell_from_first(self._network.parameters)

    def _private_step(self, optimizer: NoisyOptimizer, share: Share) -> None:
        self.gradients.private(optimizer, share)
        sums = self._link.sum_to_first([parameter.summed_grad for parameter in optimizer.params])
        if self._link.rank:
            optimizer.zero_grad(set_to_none=True)
            return
        for parameter, values in zip(optimizer.params, sums, strict=True):
            parameter.summed_grad = values
        optimizer.noisy_mean()
        self._network.pull_to(self._start, [parameter.grad for parameter in optimizer.params])
        optimizer.descend()


def _opened(accelerator: Accelerator, name: str) -> torch.device:
    try:
        return accelerator.open(name)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for a device
        raise DeviceGone(str(error)) from error


def _body(frame: Frame, kind: Kind) -> bytes:
    if frame.kind != kind:
        raise ProcessFailed(f"a frame {frame.kind!r} comes where {kind.value!r} belongs.")
    return frame.body


def _arrays(frame: Frame, kind: Kind) -> NamedArrays:
    if frame.kind != kind or frame.arrays is None:
        raise ProcessFailed(f"a frame {frame.kind!r} comes where {kind.value!r} with arrays belongs.")
    return unpack_arrays(frame.arrays)


def _places(arrays: NamedArrays, name: str) -> NDArray[np.int64]:
    return arrays[name].astype(np.int64)
