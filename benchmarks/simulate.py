"""Seconds per round of a simulation: ours, Flower's own on Ray, and the bare loops that are the floor.

    python benchmarks/simulate.py [--short] [--json]

100 sites of 32 digits, 10 of them a round, two steps of SGD each on a perceptron 64-64-10 (see ``workload``). All rivals
start from the same weights, ask the same sites in the same order and shuffle their rows by the same seeds; the benchmark
fails unless they end with the same weights, so that all of them did the same work:

- ours: ``drive`` over two worker processes, with relay, site daemon, ledger, outbox, signatures, digests and journal.
- ours, one thread: the same over the in-process grid.
- Flower: ``flwr.simulation.run_simulation`` of the same ``drive`` and the same sites in two Ray actors, on two cores.
- bare loop: ``LocalTrainer.train`` of the same sites one after another, and a mean.
- torch loop: the same written by hand with ``torch.optim.SGD``.

``ratio_loop`` sets our two processes on two cores against a loop on one: it tells how long a researcher waits, and flatters us as
a measure of overhead. ``ratio_loop_one_thread`` compares like with like.

A round lasts from the close of the one before to its own close. Medians are over the steady rounds, from the third on; the
fastest tenth and processor time are told too: a machine that others use slows rounds, the longer ones more often, and never
speeds one up. Every rival but Flower runs twice and its runs are pooled. The split is of a run of its own, in one thread. In
the short form most sites are asked for the first time and build their model then, so its figures say that the benchmark works and no
more.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # before imports

import argparse
import contextlib
import json
import logging
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from flower_ray import ACTORS, run_flower
from loops import run_bare_loop, run_torch_loop
from ours import WORKERS, Finished, run_in_one_thread, run_ours
from split import PARTS, SERIALISATION, PartClock, timed_parts
from workload import accuracy

_WARM_UP = 2  # rounds
_LARGEST_DIFFERENCE = 1e-3  # of a weight, between rivals that add in another order and precision
_TENTH = "_fastest_tenth"
_PACKAGES = ("fedloop", "flwr", "numpy", "ray", "torch")


@dataclass(frozen=True)
class Lengths:
    """Rounds of each rival, and how often all but Flower run."""

    ours: int
    flower: int
    runs: int


_FULL, _SHORT = Lengths(ours=200, flower=60, runs=2), Lengths(ours=15, flower=6, runs=1)


@dataclass(frozen=True)
class Measured:
    """Steady rounds of one rival: seconds and processor seconds of this process, and the accuracy at the end."""

    seconds: NDArray[np.float64]
    processor: NDArray[np.float64]
    accuracy: float

    @classmethod
    def of(cls, runs: Sequence[Finished]) -> Measured:
        """Pools the runs of one rival."""
        return cls(
            np.concatenate([_steady(run.clock.wall) for run in runs]),
            np.concatenate([_steady(run.clock.processor) for run in runs]),
            accuracy(runs[0].arrays),
        )

    @property
    def median(self) -> float:
        """Seconds of a round."""
        return float(np.median(self.seconds))

    @property
    def fastest_tenth(self) -> float:
        """Seconds of a round that nothing disturbed."""
        return float(np.percentile(self.seconds, 10))

    def document(self, *, own_process: bool = True) -> dict[str, float]:
        """As the JSON tells it."""
        told = {"seconds_per_round": self.median, "fastest_tenth": self.fastest_tenth}
        if own_process:
            told["processor_seconds_per_round"] = float(np.median(self.processor))
        return {**told, "accuracy": self.accuracy, "rounds": float(len(self.seconds))}


def measure(lengths: Lengths, folder: Path) -> dict[str, object]:
    """Runs all rivals and compares them.

    Raises:
        RuntimeError: they did not do the same work.
    """
    ours, one_thread, bare, by_hand = [], [], [], []
    for attempt in range(lengths.runs):  # alternately, so that what else the machine does meets all of them
        ours.append(run_ours(folder / f"ours-{attempt}", lengths.ours))
        one_thread.append(run_in_one_thread(folder / f"one-thread-{attempt}", lengths.ours))
        asked = ours[0].clock.asked
        bare.append(run_bare_loop(asked))
        by_hand.append(run_torch_loop(asked))
    _same_work(ours[0], one_thread[0], "our run in one thread")
    _same_work(ours[0], bare[0], "the bare loop")
    _same_work(ours[0], by_hand[0], "the torch loop")
    flower = run_flower(folder / "flower", lengths.flower)
    _same_work(run_in_one_thread(folder / "as-flower", lengths.flower), flower, "Flower")
    split = _split(folder / "split", lengths.ours)
    rivals = {
        "ours": Measured.of(ours),
        "ours_one_thread": Measured.of(one_thread),
        "flower": Measured.of([flower]),
        "bare_loop": Measured.of(bare),
        "torch_loop": Measured.of(by_hand),
    }
    return {
        **_ratios(rivals["ours"], rivals["flower"], rivals["bare_loop"]),
        **_ratios(rivals["ours_one_thread"], rivals["flower"], rivals["bare_loop"], "_one_thread"),
        "ratio_loop_processor_one_thread": float(
            np.median(rivals["ours_one_thread"].processor) / np.median(rivals["bare_loop"].processor)
        ),
        "rivals": {name: rival.document(own_process=name not in ("ours", "flower")) for name, rival in rivals.items()},
        "split_seconds": split,
        "workers": WORKERS,
        "flower_actors": ACTORS,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _PACKAGES},
    }


def _ratios(mine: Measured, flower: Measured, loop: Measured, suffix: str = "") -> dict[str, float]:
    """How often ours goes into Flower, and the loop into ours."""
    return {
        f"ratio_flower{suffix}": flower.median / mine.median,
        f"ratio_loop{suffix}": mine.median / loop.median,
        f"ratio_flower_fastest_tenth{suffix}": flower.fastest_tenth / mine.fastest_tenth,
        f"ratio_loop_fastest_tenth{suffix}": mine.fastest_tenth / loop.fastest_tenth,
    }


def _split(folder: Path, rounds: int) -> dict[str, float | dict[str, float]]:
    """Median seconds of a steady round in training, in serialisation and in the rest, and in each part."""
    clock = PartClock()
    with timed_parts(clock):
        run_in_one_thread(folder, rounds, clock)
    whole = float(np.median(_steady(clock.wall)))
    steady = clock.rounds[_WARM_UP:]
    parts = {part: float(np.median([seconds[part] for seconds in steady])) for part in PARTS}
    serialisation = sum(parts[part] for part in SERIALISATION)
    return {
        "training": parts["training"],
        "serialisation": serialisation,
        "rest": max(whole - parts["training"] - serialisation, 0.0),
        "whole": whole,
        "parts": parts,
    }


def _steady(closed_at: Sequence[float]) -> NDArray[np.float64]:
    """Lengths of the rounds after the warm-up, from the times at which rounds closed."""
    return np.diff(np.array(closed_at))[_WARM_UP - 1 :]


def _same_work(ours: Finished, other: Finished, name: str) -> None:
    """Compares the trained weights.

    Raises:
        RuntimeError: they differ by more than rounding.
    """
    worst = max(
        float(np.abs(np.subtract(ours.arrays[key], other.arrays[key], dtype=np.float64)).max()) for key in ours.arrays
    )
    if not worst <= _LARGEST_DIFFERENCE:
        raise RuntimeError(f"{name} ended with other weights than our run: they differ by up to {worst:g}")


def _table(document: dict[str, object]) -> str:
    rivals, split = document["rivals"], document["split_seconds"]
    if not isinstance(rivals, dict) or not isinstance(split, dict):
        raise TypeError("not a document of this benchmark")
    lines = [f"{'':15}{'ms a round':>12}{'fastest tenth':>15}{'CPU ms':>9}{'accuracy':>10}"]
    for name, rival in rivals.items():
        processor = rival.get("processor_seconds_per_round")
        told = "" if processor is None else f"{processor * 1e3:.2f}"
        lines.append(
            f"{name.replace('_', ' '):15}{rival['seconds_per_round'] * 1e3:12.2f}{rival['fastest_tenth'] * 1e3:15.2f}"
            f"{told:>9}{rival['accuracy']:10.3f}"
        )
    for part, seconds in {key: split[key] for key in ("training", "serialisation", "rest")}.items():
        lines.append(f"ours one thread, {part}: {seconds * 1e3:.2f} ms")
    lines += [f"  {part}: {seconds * 1e3:.2f} ms" for part, seconds in split["parts"].items()]
    for suffix, name in (("", "ours"), ("_one_thread", "ours one thread")):
        ratios = [document[f"ratio_{rival}{tenth}{suffix}"] for rival in ("flower", "loop") for tenth in ("", _TENTH)]
        lines.append(f"Flower / {name}: {ratios[0]:.1f}, of fastest tenths {ratios[1]:.1f}")
        lines.append(f"{name} / bare loop: {ratios[2]:.2f}, of fastest tenths {ratios[3]:.2f}")
    lines.append(f"ours one thread / bare loop, of CPU time: {document['ratio_loop_processor_one_thread']:.2f}")
    lines.append(f"{document['cores']} cores, load {document['load']:.1f}, {document['versions']}")
    return "\n".join(lines)


def _quietly(work: Callable[[], dict[str, object]]) -> dict[str, object]:
    """Keeps what Flower and Ray print off the standard output, which is the benchmark's own."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(sys.stderr):
        return work()


def main() -> None:
    """Reads the command line, measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a few rounds: whether it works, not how fast it is")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    memory = Path("/dev/shm")  # noqa: S108  only as a place in memory for a fresh folder
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        document = _quietly(lambda: measure(_SHORT if chosen.short else _FULL, Path(folder)))
    print(json.dumps(document, indent=1) if chosen.json else _table(document))


if __name__ == "__main__":
    main()
