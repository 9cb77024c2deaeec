"""The last step before a supervised program: become its user, die with the supervisor, gain no rights; then exec.

Run by path with ``python -I -S``, so it imports nothing of ours and starts in a few milliseconds. It is a program and not
a ``preexec_fn``, which is not safe in a process that has threads.

    launch.py SUPERVISOR_PID CONFINED UID GID GROUPS FOLDER PROGRAM [ARGUMENT…]

CONFINED "1" drops all capabilities, so that even root must obey the rights of files; UID "-" keeps the user; GROUPS are
numbers with commas. Exit status 127: the program could not be started.
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
_PR_CAPBSET_DROP = 24
_LAST_CAPABILITY = "/proc/sys/kernel/cap_last_cap"


def main(arguments: list[str]) -> None:
    """Does not return."""
    supervisor, confined, uid, gid, groups, folder, *command = arguments
    try:
        if confined == "1" and os.geteuid() == 0:
            _drop_capabilities()
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


def _drop_capabilities() -> None:
    """From the bounding set: the program has none after exec, whoever it runs as (capabilities(7))."""
    with open(_LAST_CAPABILITY, encoding="ascii") as file:  # noqa: PTH123 - pathlib takes longer to import than all of this
        last = int(file.read())
    for capability in range(last + 1):
        _prctl(_PR_CAPBSET_DROP, capability)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "prctl")


if __name__ == "__main__":
    main(sys.argv[1:])
