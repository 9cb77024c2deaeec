"""A trainer's rounds on the devices that are left, repeated on fewer when one fails, and on the CPU after the last.

The batch of a step is decided once, here: the Poisson sample of units, or the next rows of the shuffled order. Its units are
split over the ranks, the noise is drawn here and sent to rank 0, and one optimizer there takes the step. So sampling, noise and
accounting do not know how many devices there are. What is computed differs from one process by the order in which float32
numbers are added, and by the device's own arithmetic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

from fedloop_clients.training.devices import DevicePool
from fedloop_clients.training.group import RankFailed, RankGroup
from fedloop_clients.training.messages import Begin, Ended, Kind, PrivateSettings, RowsPiece, Step
from fedloop_clients.training.network import Network
from fedloop_clients.training.rounds import PlainRound, PrivateRound, Trained
from fedloop_clients.training.rows import TrainingRows, shuffled_batches
from fedloop_clients.training.splitting import split_rows, split_units
from fedloop_clients.training.watching import TrainingWatch
from fedloop_core.arrays import NamedArrays
from fedloop_core.errors import FedloopError

__all__ = ["DeviceRounds"]

_LOG = logging.getLogger(__name__)
_AHEAD = 4  # steps that ranks may be behind: enough to hide the way there, few enough to be called off soon
_PIECE_BYTES = 64 << 20
_NO_PLACES = np.zeros(0, dtype=np.int64)


class DeviceRounds:
    """Trains rounds of one task.

    Processes of devices are started by the first round and kept, with model and rows on their devices.

    Args:
        network: the model; its frozen parameters and buffers are sent to the devices.
        devices: where to train.
    """

    def __init__(self, network: Network, devices: DevicePool) -> None:
        self._network = network
        self._devices = devices
        self._group: RankGroup | None = None
        self._sent: TrainingRows | None = None
        self.physical_batch_sizes: tuple[int, ...] = ()  # of each rank, as the last round fitted them

    def plain(
        self, asked: PlainRound, here: Callable[[PlainRound, TrainingWatch], Trained], watch: TrainingWatch
    ) -> Trained:
        """A round without privacy; ``here`` trains it in this process.

        Raises:
            DeviceLost: no device is left.
            FedloopError: whatever ``watch`` raises.
        """
        return self._on_what_is_left(
            lambda group: self._plain_on(group, asked, watch), lambda: here(asked, watch), asked.rows, watch
        )

    def private(
        self, asked: PrivateRound, here: Callable[[PrivateRound, TrainingWatch], Trained], watch: TrainingWatch
    ) -> Trained:
        """A private round; each attempt samples and draws the same.

        Raises:
            DeviceLost: no device is left.
            FedloopError: whatever ``watch`` raises.
        """
        return self._on_what_is_left(
            lambda group: self._private_on(group, asked.attempt(), watch), lambda: here(asked, watch), asked.rows, watch
        )

    def close(self) -> None:
        """Ends the processes."""
        if self._group is not None:
            self._group.close()
            self._group = None

    def _on_what_is_left(
        self,
        train: Callable[[RankGroup], Trained],
        here: Callable[[], Trained],
        rows: TrainingRows,
        watch: TrainingWatch,
    ) -> Trained:
        while True:
            devices = self._devices.left()
            if not devices:
                self.close()
                return here()
            try:
                with self._round_of(devices, rows, watch) as group:
                    return train(group)
            except RankFailed as failure:
                _LOG.warning("a round breaks off and is repeated on what is left: %s", failure)
                self._devices.failed(failure.device, failure.fault)

    @contextmanager
    def _round_of(self, devices: tuple[str, ...], rows: TrainingRows, watch: TrainingWatch) -> Iterator[RankGroup]:
        """The group that is there, or a new one. What the watch raises ends the round; anything else ends the group."""
        group = self._group
        if group is None or group.closed or group.devices != devices:
            self.close()
            group = self._started(devices)
        done = False
        try:
            group.await_ready(watch)
            self._send_rows(group, rows)
            yield group
            done = True
        except FedloopError:
            group.abandon()
            done = not group.closed
            raise
        finally:
            if not done:
                self.close()

    def _started(self, devices: tuple[str, ...]) -> RankGroup:
        network = self._network
        state = {name: values.detach().clone() for name, values in network.model.state_dict().items()}
        self._sent = None
        self._group = RankGroup(
            network.task.canonical(), save(state), devices, self._devices.memory_share, self._devices.command
        )
        return self._group

    def _send_rows(self, group: RankGroup, rows: TrainingRows) -> None:
        if self._sent is rows:
            return
        tensors = (*rows.prepared.inputs, rows.prepared.labels)
        total = len(rows.prepared.labels)
        size = max(1, _PIECE_BYTES * total // max(sum(values.nbytes for values in tensors), 1))
        for start in range(0, max(total, 1), size):
            piece = {str(at): values[start : start + size].numpy() for at, values in enumerate(tensors)}
            group.say_all(Kind.ROWS, RowsPiece(last=start + size >= total), piece)
        self._sent = rows

    def _plain_on(self, group: RankGroup, asked: PlainRound, watch: TrainingWatch) -> Trained:
        settings = self._network.training
        group.say_all(Kind.BEGIN, Begin(seed=asked.seed, private=None), self._start_arrays(asked.start))
        rows, ranks = len(asked.rows.prepared.labels), len(group.devices)
        batches = shuffled_batches(rows, settings.batch_size, settings.local_steps, asked.seed)
        for step, batch in enumerate(batches, 1):
            watch.at_step(step, settings.local_steps)
            places = batch.numpy()
            # The partial likelihood of survival times is of a whole batch: one rank computes it.
            parts = split_rows(places, ranks) if self._network.sums_over_rows else _first_alone(places, ranks)
            for rank, part in enumerate(parts):
                group.say(rank, Kind.STEP, Step(rows=len(places)), {"places": part, "sizes": _NO_PLACES})
            group.await_steps(_AHEAD, watch)
        arrays, ended = group.finish(watch)
        return self._trained(arrays, ended, 0)

    def _private_on(self, group: RankGroup, asked: PrivateRound, watch: TrainingWatch) -> Trained:
        steps, units = self._network.training.local_steps, asked.rows.units
        private = PrivateSettings(
            noise_multiplier=asked.noise_multiplier, expected_batch_size=asked.expected_batch_size
        )
        group.say_all(Kind.BEGIN, Begin(seed=asked.layer_seed, private=private), self._start_arrays(asked.start))
        deviation = asked.noise_multiplier * self._network.task.privacy.clipping_norm
        empty = 0
        for step in range(1, steps + 1):
            watch.at_step(step, steps)
            sample = asked.sampling.poisson_sample(len(units), asked.rate)
            empty += int(len(sample) == 0)
            for rank, part in enumerate(split_units(sample, units.sizes[sample], len(group.devices))):
                places, _ = units.rows_of(part)
                group.say(rank, Kind.STEP, Step(rows=len(part)), {"places": places, "sizes": units.sizes[part]})
            noise = {
                name: asked.gaussian.normal(tuple(parameter.shape), deviation)
                for name, parameter in zip(self._network.spec.names, self._network.parameters, strict=True)
            }
            group.say(0, Kind.NOISE, None, noise)
            group.await_steps(_AHEAD, watch)
        arrays, ended = group.finish(watch)
        return self._trained(arrays, ended, empty)

    def _start_arrays(self, start: list[Tensor]) -> NamedArrays:
        return {name: values.numpy() for name, values in zip(self._network.spec.names, start, strict=True)}

    def _trained(self, arrays: NamedArrays, ended: tuple[Ended, ...], empty: int) -> Trained:
        self.physical_batch_sizes = tuple(counted.physical_batch_size for counted in ended)
        parameters = [torch.from_numpy(np.array(arrays[name])) for name in self._network.spec.names]
        return Trained(parameters, empty, sum(counted.nonfinite_gradients for counted in ended))


def _first_alone(places: NDArray[np.int64], ranks: int) -> tuple[NDArray[np.int64], ...]:
    return (places, *[_NO_PLACES] * (ranks - 1))
