"""The last step before a supervised program: become its user, die with the supervisor, gain no rights; then exec.

Run by path with ``python -I -S``, so it imports nothing of ours and starts in a few milliseconds. It is a program and not
a ``preexec_fn``, which is not safe in a process that has threads.

    launch.py SUPERVISOR_PID UID GID GROUPS FOLDER PROGRAM [ARGUMENT…]

UID "-" keeps the user; GROUPS are numbers with commas. Exit status 127: the program could not be started.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["CANNOT_START", "main"]

CANNOT_START = 127
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_NO_NEW_PRIVS = 38


def main(arguments: list[str]) -> None:
    """Does not return."""
    supervisor, uid, gid, groups, folder, *command = arguments
    try:
        if uid != "-":
            os.setgroups([int(group) for group in groups.split(",") if group])
            os.setgid(int(gid))
            os.setuid(int(uid))
        os.umask(0o077)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # after setuid, which clears it
        if os.getppid() != int(supervisor):  # it died before the line above
            os._exit(CANNOT_START)
        os.chdir(folder)
        os.execve(command[0], command, os.environ)  # noqa: S606 - no shell on purpose
    except OSError as error:
        named = error.filename or command[0]
        print(f"cannot start {command[0]}: {named}: {error.strerror}", file=sys.stderr, flush=True)  # noqa: T201 - the log
        os._exit(CANNOT_START)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "prctl")


if __name__ == "__main__":
    main(sys.argv[1:])
