"""Seconds per round of a deployed federation in which training costs nothing: ours, and a stock Flower app.

    python benchmarks/round_overhead.py [--short] [--json]

Two sites each, on this machine, over loopback:

- stock: an app as Flower's documentation writes it (``stock_flower/``: torch in the ClientApp, train and evaluate), on
  Flower's SuperLink and SuperNodes as they start by default. No TLS, no node authentication, no journal.
- ours: ``fedloop server up`` and ``fedloop site up`` from empty folders, with TLS, node authentication, process isolation, signed
  envelopes and answers, ledger, outbox, journal and checkpoint of every round. One step of SGD on four rows, and an
  evaluation beside it in the same reply.

A round lasts from the close of the one before to its own close. Medians are over the steady rounds, from the third on; the
first two warm up. ``ratio_stock`` is our median over the stock app's: at most 0.30, aim 0.20. Both run one after the other, never at once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from deployment import SiteSetup, deployed
from stock import stock_rounds

__all__ = ["main"]

LIMIT, AIM = 0.30, 0.20
_WARM_UP = 2
_SITES = ("north", "south")

_TASK = """\
format = 1
name = "nothing"

features = [
  { kind = "numeric", name = "a", range = [0, 1] },
  { kind = "numeric", name = "b", range = [0, 1] },
]

[label]
kind = "classes"
name = "c"
classes = ["no", "yes"]

[model]
kind = "logistic"

[training]
algorithm = "fedavg"
local_steps = 1
batch_size = 4

[privacy]
epsilon = inf

[rounds]
count = ROUNDS
evaluate_every = 1

[gates.data]
minimum_rows = 1
"""

_SETTINGS = """\
[data]
file = "rows.csv"

[budget]
training = { epsilon = inf, delta = 1e-6 }
evaluation = { epsilon = inf, delta = 1e-6 }
"""


@dataclass(frozen=True)
class Rounds:
    """Seconds of the steady rounds: how many, their median, the fastest and the slowest."""

    rounds: int
    median: float
    fastest: float
    slowest: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Rounds:
        """Of all rounds, the first ones included, which are left out."""
        steady = seconds[_WARM_UP:]
        return cls(len(steady), statistics.median(steady), min(steady), max(steady))


def our_rounds(folder: Path, rounds: int) -> tuple[float, ...]:
    """Seconds between the closes of our rounds.

    Raises:
        RuntimeError: the run did not end well.
    """
    (folder / "task.toml").write_text(_TASK.replace("ROUNDS", str(rounds + 1)))
    rows = "a,b,c\n" + "".join(f"0.{n % 10},0.{n % 7},{('no', 'yes')[n % 2]}\n" for n in range(20))
    for site in _SITES:
        (folder / f"{site}.csv").write_text(rows)
    setups = [SiteSetup(site, _SETTINGS.replace("rows.csv", str(folder / f"{site}.csv"))) for site in _SITES]
    with deployed(folder, setups) as deployment:
        run = deployment.start_run(str(folder / "task.toml"), "--no-export", "--seed", "1")
        end = deployment.wait_for_end(run, 60.0 + 30.0 * rounds)
        if end != "run-finished":
            raise RuntimeError(f"our run ended with {end}: {deployment.journal(run)[-1]}")
        closes = [float(event["unix"]) for event in deployment.events(run, "round-closed")]
    return tuple(after - before for before, after in itertools.pairwise(closes))


def main() -> int:
    """Entry point; returns 1 when the ratio is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="one steady round of each: says that it works, no more")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args()
    rounds = _WARM_UP + 1 if chosen.short else _WARM_UP + 10
    with tempfile.TemporaryDirectory(prefix="fedloop-rounds-") as name:
        stock_folder, our_folder = Path(name, "stock"), Path(name, "ours")
        stock_folder.mkdir()
        our_folder.mkdir()
        stock = Rounds.of(stock_rounds(stock_folder, sites=len(_SITES), rounds=rounds))
        ours = Rounds.of(our_rounds(our_folder, rounds))
    ratio = ours.median / stock.median
    load = os.getloadavg()[0]
    if chosen.json:
        machine = {"processors": os.cpu_count(), "python": platform.python_version(), "load": load}
        packages = {package: version(package) for package in ("fedloop", "flwr", "torch")}
        told = {"ours": asdict(ours), "stock": asdict(stock), "ratio_stock": ratio, "limit": LIMIT, "aim": AIM}
        print(json.dumps(told | {"machine": machine, "packages": packages, "short": chosen.short}, indent=1))
    else:
        for name, found in (("stock Flower app", stock), ("fedloop", ours)):
            print(
                f"{name:17} {found.median:6.2f} s a round ({found.fastest:.2f} to {found.slowest:.2f}, {found.rounds})"
            )
        print(f"ratio_stock {ratio:.3f}: limit {LIMIT:g}, aim {AIM:g}; load {load:.1f}")
    return 0 if chosen.short or ratio <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
