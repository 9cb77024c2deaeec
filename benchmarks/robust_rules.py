"""What each rule of aggregation costs: seconds to gate and fold replies and to move the model, against the mean.

    python benchmarks/robust_rules.py [--replies 20] [--parameters 1000000] [--json]

On one thread, in one process; the best of five for each. Robust rules hold every reply of a round until it closes, so they take
``replies`` times the model's memory where the mean takes twice the model's.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # before numpy

import argparse
import json
import time

import numpy as np

from fedloop_core.arrays import NamedArrays
from fedloop_core.task.aggregation import Bulyan, GeometricMedian, Krum, Median, MultiKrum, TrimmedMean
from fedloop_core.task.document import FederatedAveraging
from fedloop_core.update_gate import check_update
from fedloop_server.aggregation.algorithms import Algorithm, Averaging, Robust

_TRIES = 5
_MAXIMUM_NORM = 1e4
_TRAINING = FederatedAveraging(algorithm="fedavg")
_RULES = (
    GeometricMedian(rule="geometric-median"),
    TrimmedMean(rule="trimmed-mean"),
    Median(rule="median"),
    Krum(rule="krum"),
    MultiKrum(rule="multi-krum"),
    Bulyan(rule="bulyan"),
)


def seconds(algorithm: Algorithm, model: NamedArrays, replies: list[NamedArrays]) -> float:
    """The best of a few rounds."""
    found = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        fold = algorithm.begin(model, len(replies))
        for reply in replies:
            fold.add(reply, norm=check_update(reply, fold.spec, maximum_norm=_MAXIMUM_NORM))
        fold.move(model)
        found.append(time.perf_counter() - began)
    return min(found)


def main() -> None:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--replies", type=int, default=20)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    generator = np.random.default_rng(0)
    model: NamedArrays = {"w": np.zeros(asked.parameters, np.float32)}
    replies: list[NamedArrays] = [
        {"w": generator.normal(size=asked.parameters).astype(np.float32)} for _ in range(asked.replies)
    ]
    found = {"mean": seconds(Averaging(_TRAINING, _MAXIMUM_NORM), model, replies)}
    found |= {rule.rule: seconds(Robust(_TRAINING, rule), model, replies) for rule in _RULES}
    if asked.json:
        print(json.dumps({"replies": asked.replies, "parameters": asked.parameters, "seconds": found}))
        return
    print(f"{asked.replies} replies of {asked.parameters:,} parameters")
    for rule, took in found.items():
        print(f"{rule:18} {took:8.3f} s {took / found['mean']:6.1f} x the mean")


if __name__ == "__main__":
    main()
