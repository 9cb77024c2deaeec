"""Runs a program whose process is to end when its main thread does: ``python -m fedloop_core.processes.whole PROGRAM …``.

When the connection of a SuperNode of flwr 1.42 fails for good, its main thread ends with an exception, and another thread keeps
the process alive: nobody sees that it asks for work no more, and no supervisor starts it again.
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib.metadata import entry_points

__all__ = ["main", "whole"]


def whole(program: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs an installed program so."""
    return (sys.executable, "-m", __name__, program, *arguments)


def main(program: str, arguments: list[str]) -> None:
    """Runs it in this process, which ends with it; does not return."""
    status = 1
    try:
        (found,) = entry_points(group="console_scripts", name=program)
        sys.argv = [program, *arguments]
        status = _status(found.load()())
    except SystemExit as end:
        status = _status(end.code)
    except BaseException:  # noqa: BLE001 - a process boundary: it is printed, and the process ends
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _status(code: object) -> int:
    """As Python's own exit has it: a number is the status, nothing is success, anything else is printed and is failure."""
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)  # noqa: T201 - to the log
    return 1


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
