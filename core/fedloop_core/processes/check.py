"""``python -m fedloop_core.processes.check --home H``: do all processes of a home run? For containers and monitors.

Exit status 0: they do. 1: they do not, and one line says which.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedloop_core.processes.living import supervisor_lives
from fedloop_core.processes.status import ProcessState, read_status

__all__ = ["main", "problem_of"]


def problem_of(home: Path) -> str | None:
    """What is wrong with the processes of a home; None: nothing."""
    status = read_status(home)
    if status is None or not supervisor_lives(status):
        return f"nothing runs in {home}"
    ill = [process for process in status.processes if process.state is not ProcessState.RUNNING]
    if ill or not status.processes:
        return ", ".join(f"{process.name} is {process.state}" for process in ill) or "no process was started"
    return None


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fedloop_core.processes.check", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="the folder of a coordinator or a site")
    problem = problem_of(parser.parse_args(arguments).home)
    print("all processes run" if problem is None else problem)  # noqa: T201 - what it is for
    return 0 if problem is None else 1


if __name__ == "__main__":
    sys.exit(main())
