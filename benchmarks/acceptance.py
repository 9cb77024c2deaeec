"""Whether the loop notices and repairs what it should, and leaves alone what it should: over seeds, by the command itself.

    python benchmarks/acceptance.py [--short] [--json] [--task NAME] [--jobs N]

Runs ``fedloop simulate`` once for each seed, as a process of its own. Criteria:

- covariate: of the accuracy on the stream that the shift cost (before - under it), version 2 wins back at least half, for
  every seed;
- none: at most 1 of 20 seeds retrains, in a world that does not change.

Exits with 1 when a criterion does not hold. In the short form it runs one seed of each, which says that it works.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1"}  # before imports, and for the processes that are started

import argparse
import json
import math
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from fedloop_simulations.summary import Summary

_LEAST_WON_BACK = 0.5
_MOST_RETRAINED = 1 / 20


@dataclass(frozen=True)
class Shifted:
    """One seed with a covariate shift: the measure of the devices' answers in each phase, and the share won back."""

    seed: int
    before: float
    under: float
    after: float
    won_back: float
    detected_ticks_later: int | None
    seconds: float


@dataclass(frozen=True)
class Unchanged:
    """One seed without any shift."""

    seed: int
    retrained: bool
    seconds: float


def main() -> None:
    """Runs all seeds and tells."""
    arguments = _arguments()
    covariate, none = (1, 1) if arguments.short else (arguments.covariate, arguments.none)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        shifted = list(pool.map(lambda seed: _shifted(arguments.task, seed), range(1, covariate + 1)))
        unchanged = list(pool.map(lambda seed: _unchanged(arguments.task, seed), range(1, none + 1)))
    retrained = sum(run.retrained for run in unchanged)
    least = min((run.won_back for run in shifted), default=1.0)
    holds = least >= _LEAST_WON_BACK and retrained <= math.floor(_MOST_RETRAINED * len(unchanged))
    if arguments.json:
        found = {"covariate": [asdict(run) for run in shifted], "none": [asdict(run) for run in unchanged]}
        print(json.dumps(found | {"least_won_back": least, "retrained": retrained, "holds": holds}))
    else:
        _print(shifted, unchanged)
    sys.exit(0 if holds else 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="one seed of each")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--task", default="breast-cancer", help="a preset that needs no --data")
    parser.add_argument("--covariate", type=int, default=5, help="seeds with a shift")
    parser.add_argument("--none", type=int, default=20, help="seeds without one")
    parser.add_argument("--jobs", type=int, default=1, help="simulations at the same time")
    return parser.parse_args()


def _simulate(task: str, seed: int, drift: str) -> Summary:
    with tempfile.TemporaryDirectory(prefix="fedloop-acceptance-") as folder:
        command = [sys.executable, "-m", "fedloop_core", "simulate", task, "--seed", str(seed), "--drift", drift]
        done = subprocess.run(
            [*command, "--out", str(Path(folder) / "out"), "--json"], capture_output=True, text=True, check=False
        )
    if done.returncode:
        sys.exit(f"seed {seed}, drift {drift}: exit status {done.returncode}\n{done.stderr}")
    return Summary.model_validate_json(done.stdout)


def _shifted(task: str, seed: int) -> Shifted:
    summary = _simulate(task, seed, "covariate")
    stream = summary.stream
    if stream.before is None or stream.under is None:
        sys.exit(f"seed {seed}: the stream of {task} has no rows before or under the shift.")
    before, under = stream.before.value, stream.under.value
    after = under if stream.after is None else stream.after.value  # no new version wins nothing back
    told, injected = summary.drift.detected_at_tick, summary.drift.injected_at_tick
    return Shifted(
        seed=seed,
        before=before,
        under=under,
        after=after,
        won_back=(after - under) / (before - under) if before > under else 1.0,
        detected_ticks_later=None if told is None or injected is None else told - injected,
        seconds=summary.timings.total_seconds,
    )


def _unchanged(task: str, seed: int) -> Unchanged:
    summary = _simulate(task, seed, "none")
    return Unchanged(seed, summary.retrained, summary.timings.total_seconds)


def _print(shifted: list[Shifted], unchanged: list[Unchanged]) -> None:
    print("seed  before  under   after   won back  told after  seconds")
    for run in shifted:
        told = "never" if run.detected_ticks_later is None else f"{run.detected_ticks_later} ticks"
        print(
            f"{run.seed:4}  {run.before:.3f}   {run.under:.3f}   {run.after:.3f}   {run.won_back:8.2f}  {told:>10}  "
            f"{run.seconds:7.1f}"
        )
    seeds = [str(run.seed) for run in unchanged if run.retrained]
    which = f" (seeds {', '.join(seeds)})" if seeds else ""
    print(f"without a shift: {len(seeds)} of {len(unchanged)} seeds retrained{which}")


if __name__ == "__main__":
    main()
