"""What a round's folding takes: memory and time against a bare axpy and against Flower's FedAvg, on the same replies.

    python benchmarks/aggregate.py [--part folding | deployed] [--short] [--json]

Part 1, a micro-benchmark: 20 replies of 25 million float32 parameters in 50 arrays, weights 100 to 119, through the update
gate (layout, finite, norm) and the int64 fixed-point sum, and then the step to the next model. Every rival runs in a process of
its own, on one thread, and ends with the same model, or the benchmark fails.

- ours: each reply is checked and folded as it arrives, then the model moves.
- axpy: BLAS ``saxpy`` of each reply into one float32 vector and a scale: the floor, which checks nothing and depends on the order.
- Flower: ``FedAvg.aggregate_train``, which is given all replies at once, as its ``start`` gives them.

Memory is the peak of the resident set while replies are folded and the model moves, less what was resident before: the model,
and for ours and axpy one reply, which is filled anew in place for each site, as a reply that was let go makes room for the next.
Flower's replies are all there before, as they are when ``aggregate_train`` is called, so its peak leaves them out and
``replies_models`` tells them. The peak is the kernel's (VmHWM in /proc/self/status, reset through /proc/self/clear_refs): numpy's
and torch's buffers do not pass through what tracemalloc sees. Models are of 4 bytes a parameter. Seconds leave out the making of
replies.

Part 2, over a real deployment's coordinator (``aggregate_deployed``): the growth of the ServerApp's memory in a round with a model
of 25 million parameters and 5 replies, and with 50, and the peak of the SuperLink's, which keeps every reply until it is fetched.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}  # before imports

import argparse
import json
import logging
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MIB = 2**20
_LARGEST_DIFFERENCE = 1e-6  # of a parameter, between sums in float32 and in fixed point
_MAXIMUM_NORM = 1e4
_PROBES = 997  # parameters that are compared, spread over the model
_PACKAGES = ("fedloop", "flwr", "numpy", "scipy")

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Size:
    """The replies of one run."""

    replies: int
    arrays: int
    values: int  # of an array

    @property
    def model_bytes(self) -> int:
        """Bytes of a model of float32."""
        return 4 * self.arrays * self.values


@dataclass(frozen=True)
class Measured:
    """What one rival took: ``peak_models`` above the resident start, ``replies_models`` of replies that were there before."""

    seconds: float
    peak_models: float
    replies_models: float
    probes: tuple[float, ...]


FULL, SHORT = Size(20, 50, 500_000), Size(5, 50, 50_000)


def weights(size: Size) -> list[int]:
    """Rows of each site."""
    return [100 + at for at in range(size.replies)]


def start_model(size: Size) -> Floats:
    """The model before the round."""
    return np.linspace(-1, 1, size.arrays * size.values, dtype=np.float32)


class Replies:
    """Updates that differ from site to site and are made in place, so that making them needs no memory."""

    def __init__(self, size: Size) -> None:
        generator = np.random.default_rng(7)
        self._base = generator.standard_normal(size.arrays * size.values, dtype=np.float32)
        self._base *= np.float32(0.01)
        self.buffer = np.empty_like(self._base)

    def fill(self, site: int, into: Floats) -> None:
        """Writes the update of a site."""
        np.multiply(self._base, np.float32(1 + site / 16), out=into)

    def each(self, count: int) -> Iterator[int]:
        """Fills the buffer with one update after another."""
        for site in range(count):
            self.fill(site, self.buffer)
            yield site


def named(flat: Floats, size: Size) -> dict[str, NDArray[np.generic]]:
    """A flat vector as the arrays of a model, without a copy."""
    return {f"layer-{at}": part for at, part in enumerate(flat.reshape(size.arrays, size.values))}


class Meter:
    """Peak of the resident set above that of its making, and seconds that are counted."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        self._start = _status("VmRSS")
        self.seconds = 0.0

    def run(self, work: Callable[[], object]) -> object:
        """Counts the seconds of one step."""
        before = time.perf_counter()
        result = work()
        self.seconds += time.perf_counter() - before
        return result

    def models(self, size: Size) -> float:
        """The peak in models."""
        return (_status("VmHWM") - self._start) / size.model_bytes


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def _probes(flat: Floats) -> tuple[float, ...]:
    return tuple(float(value) for value in flat[:: max(1, len(flat) // _PROBES)])


def ours(size: Size) -> Measured:
    """The update gate, the fixed-point sum and the step of FedAvg."""
    from fedloop_core.task.document import FederatedAveraging
    from fedloop_core.update_gate import check_update
    from fedloop_server.aggregation.algorithms import Averaging

    replies, flat = Replies(size), start_model(size)
    model, arrays = named(flat, size), named(replies.buffer, size)
    replies.fill(0, replies.buffer)  # so that its pages are resident
    algorithm = Averaging(FederatedAveraging(algorithm="fedavg"), _MAXIMUM_NORM)
    meter = Meter()
    sums = algorithm.accumulator(model, sum(weights(size)))
    for site in replies.each(size.replies):

        def fold(weight: int = weights(size)[site]) -> None:
            sums.add(arrays, weight, norm=check_update(arrays, sums.spec, maximum_norm=_MAXIMUM_NORM))

        meter.run(fold)
    moved: dict[str, NDArray[np.generic]] = {}
    meter.run(lambda: moved.update(algorithm.step(model, sums)))
    peak = meter.models(size)
    probes = _probes(np.concatenate([array.astype(np.float32) for array in moved.values()]))
    return Measured(meter.seconds, peak, 0.0, probes)


def axpy(size: Size) -> Measured:
    """BLAS alone."""
    from scipy.linalg.blas import saxpy

    replies, flat = Replies(size), start_model(size)
    replies.fill(0, replies.buffer)
    meter = Meter()
    total = np.zeros_like(flat)
    for site in replies.each(size.replies):

        def fold(weight: int = weights(size)[site]) -> None:
            saxpy(replies.buffer, total, a=float(weight))

        meter.run(fold)

    def move() -> None:
        np.divide(total, np.float32(sum(weights(size))), out=total)
        np.add(total, flat, out=total)

    meter.run(move)
    return Measured(meter.seconds, meter.models(size), 0.0, _probes(total))


def flower(size: Size) -> Measured:
    """Flower's own, on messages with one array record and the number of examples."""
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import FedAvg

    from fedloop_simulations.flower_internals import as_server

    logging.getLogger("flwr").setLevel(logging.ERROR)
    as_server(1)
    replies, flat = Replies(size), start_model(size)
    messages = []
    for site, weight in zip(replies.each(size.replies), weights(size), strict=True):
        record = ArrayRecord({name: Array(array) for name, array in named(replies.buffer, size).items()})
        content = RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": weight})})
        messages.append(Message(content, site + 1, "train"))
    strategy = FedAvg()
    meter = Meter()
    averaged: list[ArrayRecord] = []

    def aggregate() -> None:
        arrays, _ = strategy.aggregate_train(1, messages)
        if arrays is None:
            raise RuntimeError("Flower aggregated nothing")
        averaged.append(arrays)

    meter.run(aggregate)
    peak = meter.models(size)
    mean = np.concatenate([array.numpy() for array in averaged[0].values()])
    return Measured(meter.seconds, peak, float(size.replies), _probes(flat + mean.astype(np.float32)))


RIVALS: dict[str, Callable[[Size], Measured]] = {"ours": ours, "axpy": axpy, "flower": flower}


def measure(short: bool) -> dict[str, object]:
    """Runs every rival in a process of its own and compares them.

    Raises:
        RuntimeError: one failed, or they ended with different models.
    """
    size = SHORT if short else FULL
    told: dict[str, Measured] = {}
    for name in RIVALS:
        command = [sys.executable, __file__, "--child", name, *(["--short"] if short else [])]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise RuntimeError(f"{name} failed: {ran.stderr[-2000:]}")
        document = json.loads(ran.stdout.splitlines()[-1])
        told[name] = Measured(**{**document, "probes": tuple(document["probes"])})
        difference = np.abs(np.subtract(told[name].probes, told["ours"].probes)).max()
        if difference > _LARGEST_DIFFERENCE:
            raise RuntimeError(f"{name} ended with another model: {difference:.2e} apart")
    mine = told["ours"]
    return {
        "replies": size.replies,
        "parameters": size.arrays * size.values,
        "arrays": size.arrays,
        "rivals": {name: {k: v for k, v in asdict(m).items() if k != "probes"} for name, m in told.items()},
        "peak_models": mine.peak_models,
        "ratio_axpy": mine.seconds / told["axpy"].seconds,
        "ratio_flower": mine.seconds / told["flower"].seconds,
        "memory": "peak of VmHWM above VmRSS at the start, in models of float32",
        "short": short,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {package: version(package) for package in _PACKAGES},
    }


REPLIES_DEPLOYED, HIDDEN_DEPLOYED = {False: (5, 50), True: (2, 8)}, {False: 5000, True: 1500}  # by --short


def measure_deployed(short: bool) -> dict[str, object]:
    """Part 2; ``growth_ratio`` is the growth with many replies over that with few."""
    from aggregate_deployed import measure as measure_growth

    with TemporaryDirectory(prefix="fedloop-aggregate-") as folder:
        few, many = measure_growth(Path(folder), REPLIES_DEPLOYED[short], HIDDEN_DEPLOYED[short])
    return {
        "rounds": [asdict(few), asdict(many)],
        "growth_models": max(few.serverapp_models, many.serverapp_models),
        "growth_ratio": many.serverapp_models / few.serverapp_models,
        "superlink_models": [round(told.superlink_growth_models, 2) for told in (few, many)],
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="5 replies of 2.5 million parameters")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--part", choices=("folding", "deployed"), help="one of the two parts alone")
    parser.add_argument("--child", choices=sorted(RIVALS), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps(asdict(RIVALS[chosen.child](SHORT if chosen.short else FULL))))
        return
    folding = measure(chosen.short) if chosen.part != "deployed" else None
    deployed = measure_deployed(chosen.short) if chosen.part != "folding" else None
    if chosen.json:
        print(json.dumps({**(folding or {}), "deployed": deployed}))
        return
    if folding is not None:
        tell_folding(folding, SHORT if chosen.short else FULL)
    if deployed is not None:
        tell_deployed(deployed)


def tell_deployed(document: Mapping[str, Any]) -> None:
    """Prints part 2 for people."""
    print("deployed: one round over a real SuperLink, growth of memory in models")
    print(f"{'replies':>8}{'ServerApp':>11}{'SuperLink':>11}{'SuperLink, MiB':>16}{'seconds':>9}")
    for told, superlink in zip(document["rounds"], document["superlink_models"], strict=True):
        print(
            f"{told['replies']:8}{told['serverapp_models']:11.2f}{superlink:11.2f}{told['superlink_mib']:16.0f}{told['seconds']:9.1f}"
        )
    print(f"ServerApp with many replies / with few: {document['growth_ratio']:.3f}")


def tell_folding(document: Mapping[str, Any], size: Size) -> None:
    """Prints part 1 for people."""
    print(
        f"micro-benchmark: {size.replies} replies of {size.model_bytes / _MIB:.0f} MiB in {size.arrays} arrays, one thread"
    )
    print(f"{'':8}{'seconds':>9}{'peak, models':>14}{'replies, models':>17}")
    for name, told in document["rivals"].items():
        print(f"{name:8}{told['seconds']:9.3f}{told['peak_models']:14.2f}{told['replies_models']:17.0f}")
    print(f"ours / axpy: {document['ratio_axpy']:.1f}, ours / Flower: {document['ratio_flower']:.2f}")
    print(f"{document['cores']} cores, load {document['load']:.1f}, {document['versions']}")


if __name__ == "__main__":
    main()
