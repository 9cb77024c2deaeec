"""What a forked child does: it takes over the caller's arguments, environment, folder and files, and runs the command."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from fedloop_core.strict import Strict

__all__ = ["Call", "become"]

_FIRST_OTHER = 3  # descriptors after standard input, output and error
_COMMAND = "flwr-clientapp"


class Call(Strict):
    """One call of the command, as its caller describes it."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str


def become(call: Call, files: list[int], entry: Callable[[], object]) -> NoReturn:
    """Runs ``entry`` as the command and ends the process; nothing of the parent runs any more in it."""
    status = 1
    try:
        _let_go()
        for place, file in enumerate(files):
            os.dup2(file, place)
        os.closerange(_FIRST_OTHER, os.sysconf("SC_OPEN_MAX"))
        os.chdir(call.folder)
        os.environ.clear()
        os.environ.update(call.environment)
        sys.argv = [_COMMAND, *call.arguments]
        status = _run(entry)
    except BaseException:  # the process ends here, and the caller reads why  # noqa: BLE001
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def _let_go() -> None:
    """The parent's signals are not the child's."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _run(entry: Callable[[], object]) -> int:
    try:
        entry()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)  # noqa: T201  what an interpreter does
        return 1
    return 0
