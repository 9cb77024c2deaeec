"""One started program: its process group, its output, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from fedloop_core.processes import launch
from fedloop_core.processes.environment import complete
from fedloop_core.processes.procfs import facts, group_members
from fedloop_core.processes.spec import ProcessSpec
from fedloop_core.processes.users import account, as_root

__all__ = ["Child"]

_AT_ONCE = 64 * 1024


class Child:
    """Starts the program of a spec as the leader of a session of its own; call it from the main thread.

    It dies when that thread's process does (``PR_SET_PDEATHSIG``).

    Raises:
        OSError: it cannot be started.
        NotSetUp: its user is not there.
    """

    def __init__(self, spec: ProcessSpec, folder: Path) -> None:
        who = account(spec.user) if spec.user is not None and as_root() else None
        numbers = (str(who.uid), str(who.gid), ",".join(map(str, who.groups))) if who else ("-", "-", "")
        launcher = (
            sys.executable,
            "-I",
            "-S",
            str(launch.__file__),
            str(os.getpid()),
            str(int(spec.confined)),
            *numbers,
        )
        self._process = subprocess.Popen(  # noqa: S603 - no shell, and a program that the spec names
            (*launcher, str(spec.working_folder), *spec.command),
            env=complete(spec.environment, home=spec.working_folder, folder=folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.pid = self._process.pid
        found = facts(self.pid)
        self.started_ticks = found.started_ticks if found else None
        if self._process.stdout is None:
            raise OSError("no pipe")
        self.output = self._process.stdout.fileno()
        os.set_blocking(self.output, False)

    def exit_status(self) -> int | None:
        """Of a leader that has ended and is not reaped yet, so that its group's number stays ours; None: it lives."""
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def others(self) -> bool:
        """Whether processes of its group live that are not the leader."""
        return any(member.pid != self.pid for member in group_members(self.pid))

    def send(self, number: signal.Signals) -> None:
        """To the whole group."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return

    def reap(self) -> None:
        """Forgets a leader that has ended, after killing what is left of its group."""
        self.send(signal.SIGKILL)
        self._process.wait()

    def read(self) -> bytes | None:
        """Output that is there; empty: nothing now; None: there will be no more, or our end is closed."""
        if self._process.stdout is None or self._process.stdout.closed:
            return None
        try:
            return os.read(self.output, _AT_ONCE) or None
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Closes our end of its output."""
        if self._process.stdout is not None:
            self._process.stdout.close()
