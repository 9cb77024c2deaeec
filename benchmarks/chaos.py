"""Kills what carries a run, and compares with a run that nobody disturbed.

Two parts. In one process: coordinator and sites of a rehearsal die together at random moments and start again
(``chaos_in_process``). Deployed: each process of a real coordinator and of a real site is killed in each phase of a run
(``chaos_cases``, ``chaos_deployed``).

Usage: ``python benchmarks/chaos.py [--short] [--json] [--case NAME …] [--list] [--schedules N]``. With ``--case`` only
those; the names ``in-process`` and ``deployed`` are the two parts. The status is 1 when something did not hold.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import asdict

from chaos_cases import CASES, SHORT
from chaos_deployed import Outcome, chaos
from chaos_in_process import Verdict, schedules
from chaos_moves import MOVES

__all__ = ["main"]

_IN_PROCESS, _DEPLOYED = "in-process", "deployed"


def _chosen() -> argparse.Namespace:
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help=f"one schedule of each kind, and {', '.join(SHORT)}")
    parser.add_argument("--case", action="append", default=[], choices=[_IN_PROCESS, _DEPLOYED, *names, *MOVES])
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    parser.add_argument("--schedules", type=int, default=20, help="in one process, of each kind")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args()
    if chosen.list:
        print("\n".join([_IN_PROCESS, *names, *MOVES]))
        sys.exit()
    return chosen


def main() -> int:
    """Entry point; returns 1 when something did not hold."""
    chosen = _chosen()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what runs ends then too

    def tell(line: str) -> None:
        print(line, file=sys.stderr if chosen.json else sys.stdout, flush=True)

    verdicts: list[Verdict] = []
    outcomes: list[Outcome] = []
    if not chosen.case or _IN_PROCESS in chosen.case:
        verdicts = schedules(1 if chosen.short else chosen.schedules, tell)
    every = not chosen.case or _DEPLOYED in chosen.case
    names = set(SHORT) if every and chosen.short else None if every else set(chosen.case)
    cases = [case for case in CASES if names is None or case.name in names]
    moves = [name for name in MOVES if names is None or name in names]
    if cases or moves:
        outcomes = chaos(cases, moves, tell)
    if chosen.json:
        print(json.dumps({"verdicts": [asdict(v) for v in verdicts], "outcomes": [asdict(o) for o in outcomes]}))
    return 1 if any([*(v.wrong for v in verdicts), *(o.wrong for o in outcomes)]) else 0


if __name__ == "__main__":
    sys.exit(main())
