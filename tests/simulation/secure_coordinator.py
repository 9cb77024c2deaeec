"""A coordinator as a process of its own: ``python secure_coordinator.py HOME POINT SITE=SOCKET ...``; it ends itself with SIGKILL at a point."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedloop_clients.socket_endpoint import SocketEndpoint
from fedloop_server.home import CoordinatorHome
from fedloop_server.runs.journal import RunJournal
from fedloop_server.runs.sums import KeptSums
from fedloop_simulations.federation import run_in_process

ROUND = 2
POINTS: dict[str, tuple[type, str, int]] = {  # a call at which, in the round, it is killed when it is made so often
    "before anything is kept": (KeptSums, "keep", 1),
    "a site has released": (KeptSums, "add", 1),
    "between answers": (KeptSums, "add", 3),
    "before the checkpoint": (RunJournal, "save_checkpoint", 1),
    "never": (KeptSums, "keep", 0),
}


def is_of_the_round(given: Any) -> bool:
    return getattr(given, "round", given) in (ROUND, f"round-{ROUND}")


def arm(point: str) -> None:
    of, name, nth = POINTS[point]
    real: Callable[..., Any] = getattr(of, name)
    seen = 0

    def dying(self: Any, given: Any, *rest: Any) -> Any:
        nonlocal seen
        seen += is_of_the_round(given)
        if is_of_the_round(given) and seen == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, given, *rest)

    setattr(of, name, dying)


def main() -> None:
    folder, point, *sites = sys.argv[1:]
    arm(point)
    home = CoordinatorHome(Path(folder))
    endpoints = {name: SocketEndpoint(Path(path)) for name, _, path in (site.partition("=") for site in sites)}
    state = run_in_process(home, home.plan("run-1"), endpoints, lambda state, event: None)
    sys.exit(0 if state.failure is None else state.failure.reason)


if __name__ == "__main__":
    main()
