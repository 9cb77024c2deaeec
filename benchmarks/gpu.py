"""Training on this machine's GPUs: step times with and without privacy, warm against cold rounds, two precisions.

    python benchmarks/gpu.py [--short] [--json]

A small convolutional network over images. Without a GPU all of it runs on the CPU, in a process of its own as a GPU's would be,
and ``device`` says so.

- cold round: the device's process is started, and takes model and rows; warm round: the next ones, which find all that there.
- step: of warm rounds, the best of them, over their steps.
- bare loop: what one writes by hand in plain torch on the same device and batches: SGD; and for privacy one gradient a row by
  ``torch.func``, clipped, with noise from torch's own generator, which no privacy may rest on. ``ratio_bare_*``: ours over it.
- two precisions: the bare loops under bfloat16 autocast too. fedloop trains in float32 and nothing else: lower precision is
  another result, which no task asks for.
- difference: largest difference of a weight of the update from what this process trains on the CPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib.metadata import version

import numpy as np
import torch
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedloop_clients.settings import ComputeSettings
from fedloop_clients.training.devices import Choice, DevicePool, choose_devices
from fedloop_clients.training.seeing import see_devices
from fedloop_clients.training.trainer import LocalResult, LocalTrainer
from fedloop_core.dataset import Dataset
from fedloop_core.models import build_model, initial_arrays
from fedloop_core.noise import SeededNoise
from fedloop_core.schema import ClassLabel, ImageFeature
from fedloop_core.task.document import CnnModel, FederatedAveraging, Privacy, Task

_CLASSES = 10
_NOISE, _CLIP = 0.8, 1.0
_PACKAGES = ("fedloop", "torch", "opacus", "numpy")


@dataclass(frozen=True)
class Size:
    """The work of one round, and how often it is repeated when warm."""

    side: int
    channels: tuple[int, ...]
    hidden: int
    rows: int
    batch: int
    steps: int
    repeats: int


FULL = Size(side=32, channels=(32, 64), hidden=128, rows=8192, batch=512, steps=30, repeats=3)
SHORT = Size(side=8, channels=(4,), hidden=16, rows=256, batch=32, steps=5, repeats=2)


@dataclass(frozen=True)
class Measured:
    """Seconds of ours on the devices, and how far its result is from the CPU's."""

    cold_round_seconds: float
    warm_round_seconds: float
    step_seconds: float
    difference: float
    physical_batch_sizes: tuple[int, ...]


def task_of(size: Size, *, private: bool) -> Task:
    """A network of convolutions over grey images."""
    return Task(
        format=1,
        name="gpu",
        features=(ImageFeature(kind="image", name="scan", height=size.side, width=size.side),),
        label=ClassLabel(kind="classes", name="y", classes=tuple(f"c{at}" for at in range(_CLASSES))),
        model=CnnModel(kind="cnn", channels=size.channels, hidden=size.hidden),
        training=FederatedAveraging(
            algorithm="fedavg",
            local_steps=size.steps,
            batch_size=size.batch,
            learning_rate=0.05,
            physical_batch_size=size.batch,
        ),
        privacy=Privacy(epsilon=5.0, delta=1e-5, clipping_norm=_CLIP) if private else Privacy(epsilon=math.inf),
    )


def rows_of(size: Size, task: Task) -> Dataset:
    """Noise, with labels that are noise too: nothing is learned here."""
    generator = np.random.default_rng(7)
    name = task.features[0].name
    images = generator.uniform(0, 1, (size.rows, 1, size.side, size.side)).astype(np.float32)
    labels = generator.integers(0, _CLASSES, size.rows)
    return Dataset({name: images}, labels, tuple(f"u{at}" for at in range(size.rows)))


def round_of(task: Task, size: Size, rows: Dataset, trainer: LocalTrainer) -> LocalResult:
    """One round from the same weights, with the same batches and noise each time."""
    arrays = initial_arrays(task, 3)
    if not task.privacy.private:
        return trainer.train(arrays, rows, 11)
    rate = size.batch / size.rows
    return trainer.train_privately(arrays, rows, _NOISE, rate, SeededNoise(5), expected_batch_size=float(size.batch))


def timed(call: Callable[[], object]) -> float:
    """Seconds of a call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def ours(size: Size, devices: tuple[str, ...], *, private: bool) -> Measured:
    """A cold round and warm ones."""
    task = task_of(size, private=private)
    rows = rows_of(size, task)
    expected = round_of(task, size, rows, LocalTrainer(task))
    trainer = LocalTrainer(task, DevicePool(lambda: Choice(devices, cpu_after=False, why="a benchmark")))
    try:
        cold = timed(lambda: round_of(task, size, rows, trainer))
        warm = min(timed(lambda: round_of(task, size, rows, trainer)) for _ in range(size.repeats))
        got = round_of(task, size, rows, trainer).update
        sizes = trainer.physical_batch_sizes
    finally:
        trainer.close()
    difference = max(float(np.abs(got[name] - expected.update[name]).max()) for name in got)
    return Measured(cold, warm, warm / size.steps, difference, sizes)


class BareLoop:
    """The training loop by hand on one device."""

    def __init__(self, size: Size, device: torch.device, *, half: bool) -> None:
        task = task_of(size, private=False)
        self._size = size
        self._device = device
        self._half = half
        model = build_model(task)
        model.load_trainable_arrays(initial_arrays(task, 3))
        rows = rows_of(size, task)
        images = torch.from_numpy(next(iter(rows.inputs.values())).astype(np.float32))
        with torch.no_grad():
            (prepared,) = model.prepared(images)
        self._network = model.backbone.to(device)
        self._inputs, self._labels = prepared.to(device), torch.from_numpy(rows.labels).to(device)

    def step_seconds(self, *, private: bool) -> float:
        """Of a step, the best of the repeats; the first, which warms up, is not counted."""
        take = self._private_round if private else self._plain_round
        take()
        return min(timed(take) for _ in range(self._size.repeats)) / self._size.steps

    def _batches(self) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        orders = [torch.randperm(self._size.rows, generator=generator) for _ in range(self._size.steps)]
        return [order[: self._size.batch].to(self._device) for order in orders]

    def _precision(self) -> torch.autocast | nullcontext[None]:
        return torch.autocast(self._device.type, dtype=torch.bfloat16) if self._half else nullcontext()

    def _plain_round(self) -> None:
        optimizer = torch.optim.SGD(self._network.parameters(), 0.05)
        for places in self._batches():
            optimizer.zero_grad()
            with self._precision():
                loss = functional.cross_entropy(self._network(self._inputs[places]), self._labels[places])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        self._settle()

    def _private_round(self) -> None:
        parameters = {name: values.detach() for name, values in self._network.named_parameters()}

        def loss_of(values: dict[str, torch.Tensor], image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            with self._precision():
                outputs = functional_call(self._network, values, (image[None],))
                return functional.cross_entropy(outputs, label[None])

        per_row = vmap(grad(loss_of), in_dims=(None, 0, 0))
        for places in self._batches():
            gradients = per_row(parameters, self._inputs[places], self._labels[places])
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
            factor = (_CLIP / (norms + 1e-6)).clamp(max=1.0)
            for name, values in parameters.items():
                total = torch.einsum("i,i...", factor, gradients[name].float())
                noisy = total + torch.randn_like(total) * _NOISE * _CLIP
                parameters[name] = values - 0.05 * noisy / self._size.batch
        self._settle()

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def measure(size: Size) -> dict[str, object]:
    """Everything that is told."""
    seen = see_devices()
    gpus = choose_devices(ComputeSettings(), seen).devices
    first = gpus[0] if gpus else "cpu"
    told: dict[str, object] = {
        "device": f"{first}: {seen.gpus[0].name}" if gpus else "cpu",
        "gpus": len(gpus),
        "size": asdict(size),
        "precision_of_ours": "float32",
    }
    for private in (False, True):
        kind = "private" if private else "plain"
        alone = ours(size, gpus[:1] or ("cpu:0",), private=private)
        told[kind] = asdict(alone)
        if len(gpus) > 1:
            told[f"{kind}_all_gpus"] = asdict(ours(size, gpus, private=private))
        bare = {
            name: BareLoop(size, torch.device(first), half=half).step_seconds(private=private)
            for name, half in (("float32", False), ("bfloat16", True))
        }
        told[f"bare_{kind}_step_seconds"] = bare
        told[f"ratio_bare_{kind}"] = alone.step_seconds / bare["float32"]
        told[f"ratio_cold_warm_{kind}"] = alone.cold_round_seconds / alone.warm_round_seconds
    load = os.getloadavg()
    versions = {name: version(name) for name in _PACKAGES}
    return told | {"cores": os.cpu_count(), "load": load, "python": platform.python_version(), "versions": versions}


def main() -> None:
    """Prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--short", action="store_true", help="a network and rounds that take seconds on a CPU")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    chosen = parser.parse_args()
    told = measure(SHORT if chosen.short else FULL)
    if chosen.json:
        print(json.dumps(told))
        return
    for name, value in told.items():
        print(f"{name:28} {value}")


if __name__ == "__main__":
    main()
