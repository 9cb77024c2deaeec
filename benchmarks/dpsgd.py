"""Time and memory of a private step against plain SGD and against each mode of Opacus, in one run.

Two convolutional networks, of 26 thousand and of 1.2 million parameters, on batches of 64 images of 28 by 28; one thread for torch. A step is
what training takes: forward, backward, clipping, noise, and moving the weights; plain SGD has no clipping and no noise. Ours is the site's own
code, with noise from its cipher, drawn in a second thread; Opacus draws from torch's Mersenne Twister. Each is a process of its own; memory is how far its
resident set grew above what it had before its first step.

Usage: ``python benchmarks/dpsgd.py [--short] [--json]``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.nn import functional

from fedloop_clients.training.clipping import UnitClipping
from fedloop_clients.training.drawing import drawn_ahead
from fedloop_clients.training.network import Network
from fedloop_clients.training.rows import PreparedRows
from fedloop_core.noise import SystemNoise
from fedloop_core.task import Task

__all__ = ["main"]

BATCH = 64
MODELS = {"26k": ([8, 16], 31), "1.2M": ([32, 64], 376)}
"""Channels of the convolutions and width of the hidden layer, by about how many parameters."""
AIM = 2.0
_MIB = 2**20

Step = Callable[[], None]


@dataclass(frozen=True)
class Measured:
    """One way of stepping: least and median seconds of a step, and MiB."""

    mode: str
    parameters: int
    least: float
    median: float
    mebibytes: float


def network_of(model: str) -> Network:
    """The task's own model."""
    channels, hidden = MODELS[model]
    document = {
        "format": 1,
        "name": "dpsgd",
        "features": [{"kind": "image", "name": "image", "height": 28, "width": 28}],
        "label": {"kind": "classes", "name": "digit", "classes": [str(digit) for digit in range(10)]},
        "model": {"kind": "cnn", "channels": channels, "hidden": hidden},
        "privacy": {"epsilon": 8.0},
    }
    torch.manual_seed(0)
    return Network(Task.model_validate_json(json.dumps(document)))


def images() -> tuple[Tensor, Tensor]:
    """One batch."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, 1, 28, 28, generator=generator), torch.randint(10, (BATCH,), generator=generator)


def plain(model: str, steps: int, until_done: ExitStack) -> tuple[Network, Step]:  # noqa: ARG001
    """Stochastic gradient descent."""
    network = network_of(model)
    inputs, labels = images()
    optimizer = torch.optim.SGD(network.parameters, 0.01)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(network.backbone(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return network, step


def ours(model: str, steps: int, until_done: ExitStack) -> tuple[Network, Step]:
    """As a site trains."""
    network = network_of(model)
    rows, units = PreparedRows((images()[0],), images()[1]), np.arange(BATCH)
    clipping = UnitClipping(network)
    shapes = [tuple(parameter.shape) for parameter in network.parameters]
    noise = until_done.enter_context(drawn_ahead(SystemNoise(), shapes, 1.0, steps))
    optimizer = network.noisy_optimizer(noise, 1.0, float(BATCH))

    def step() -> None:
        clipping.add(optimizer, rows, units, BATCH)
        optimizer.noisy_mean()
        optimizer.descend()

    return network, step


def opacus(mode: str) -> Callable[[str, int, ExitStack], tuple[Network, Step]]:
    """One of Opacus' modes, by its engine."""

    def make(model: str, steps: int, until_done: ExitStack) -> tuple[Network, Step]:  # noqa: ARG001
        network = network_of(model)
        inputs, labels = images()
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, labels), batch_size=BATCH)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(network.backbone.parameters(), 0.01)
        criterion: nn.Module = nn.CrossEntropyLoss()
        private = PrivacyEngine().make_private(
            module=network.backbone,
            optimizer=optimizer,
            criterion=criterion,
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
            grad_sample_mode=mode,
        )
        module, optimizer = private[0], private[1]
        criterion = private[2] if mode == "ghost" else criterion

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            criterion(module(inputs), labels).backward()
            optimizer.step()

        return network, step

    return make


MODES: dict[str, Callable[[str, int, ExitStack], tuple[Network, Step]]] = {
    "plain": plain,
    "ours": ours,
    **{f"opacus-{mode}": opacus(mode) for mode in ("hooks", "functorch", "ew", "ghost")},
}


def measure_here(mode: str, model: str, steps: int) -> Measured:
    """In this process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with ExitStack() as until_done:
        network, step = MODES[mode](model, steps, until_done)
        before = _resident()
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        times = []
        for _ in range(steps):
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        grown = _resident("VmHWM") - before
    count = sum(parameter.numel() for parameter in network.parameters)
    return Measured(mode, count, min(times), statistics.median(times), grown / _MIB)


def _resident(field: str = "VmRSS") -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def measure(short: bool) -> dict[str, object]:
    """All modes of both networks, one process after the other."""
    found: dict[str, list[Measured]] = {}
    for model in MODELS:
        steps = {"26k": 20, "1.2M": 5}[model] if short else {"26k": 300, "1.2M": 60}[model]
        found[model] = []
        for mode in MODES:
            command = [sys.executable, __file__, "--child", mode, "--model", model, "--steps", str(steps)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{mode} with {model} failed: {done.stderr[-2000:]}")
            found[model].append(Measured(**json.loads(done.stdout.splitlines()[-1])))
    ratios = {model: {m.mode: m.least / rows[0].least for m in rows} for model, rows in found.items()}
    return {
        "short": short,
        "batch": BATCH,
        "modes": {model: [asdict(row) for row in rows] for model, rows in found.items()},
        "times_plain": ratios,
        "aim": AIM,
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "versions": {name: version(name) for name in ("fedloop", "torch", "opacus", "numpy", "randomgen")},
    }


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="few steps")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--child", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--model", choices=MODELS, default="26k", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=20, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps(asdict(measure_here(chosen.child, chosen.model, chosen.steps))))
        return 0
    told = measure(chosen.short)
    if chosen.json:
        print(json.dumps(told))
        return 0
    for model, rows in told["modes"].items():  # type: ignore[attr-defined]
        print(f"{model}: {rows[0]['parameters']} parameters, batch {BATCH}")
        print(f"  {'mode':18} {'ms (least)':>10} {'ms (median)':>11} {'x plain':>8} {'MiB':>7}")
        for row in rows:
            ratio = row["least"] / rows[0]["least"]
            print(
                f"  {row['mode']:18} {row['least'] * 1e3:10.2f} {row['median'] * 1e3:11.2f} {ratio:8.2f} {row['mebibytes']:7.0f}"
            )
    print(f"aim: ours at most {AIM:g} times plain; load {told['load']:.1f}, {told['cores']} cores")
    return 0


if __name__ == "__main__":
    sys.exit(main())
