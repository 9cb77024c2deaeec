"""One process under supervision: its life, carried out."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Callable, Collection
from pathlib import Path

from fedloop_core.errors import FedloopError
from fedloop_core.printable import printable
from fedloop_core.processes.child import Child
from fedloop_core.processes.handing import hand_over
from fedloop_core.processes.launch import CANNOT_START
from fedloop_core.processes.life import Life
from fedloop_core.processes.logs import ProcessLog
from fedloop_core.processes.policy import RestartPolicy
from fedloop_core.processes.requests import FileMarks
from fedloop_core.processes.spec import ProcessSpec
from fedloop_core.processes.status import ProcessState, ProcessStatus

__all__ = ["Managed", "Tell"]

_SENTENCE_BYTES = 500

Tell = Callable[[str], None]


class Managed:
    """Carries out what ``Life`` says. ``start_seconds``: how long others wait until it is ready."""

    def __init__(
        self, spec: ProcessSpec, folder: Path, policy: RestartPolicy, tell: Tell, *, start_seconds: float
    ) -> None:
        self.spec = spec
        self.life = Life()
        self.log = ProcessLog(folder / "logs" / f"{spec.name}.log")
        self.child: Child | None = None
        self.new_output: list[Child] = []  # whose output nobody listens to yet
        self.ends = 0  # how often it has ended, by itself or as it was told
        self._folder = folder
        self._policy = policy
        self._tell = tell
        self._start_seconds = start_seconds
        self._marks = FileMarks(())
        self._rest_until: float | None = None
        self._rest_told = False
        self._ready_at: float | None = None  # when its probe first said so
        self._since = int(time.time())

    def status(self) -> ProcessStatus:
        """For others."""
        return ProcessStatus(
            name=self.spec.name,
            pid=self.child.pid if self.child else None,
            started_ticks=self.child.started_ticks if self.child else None,
            user=self.spec.user,
            state=self.life.state,
            restarts=max(self.life.starts - 1, 0),
            since_unix=self._since,
            last_exit=self.life.last_exit,
            log=str(self.log.path),
        )

    def start(self, now: float) -> None:
        """Starts it, when it is time; a start that fails is a death."""
        if not self.life.may_start(now):
            return
        if self._rests():
            self._tell_rest()
            return
        self._rest_told = False
        self._marks = FileMarks.of(self.spec.restart_when)
        self._become(self.life.start(now))
        self._ready_at = None
        known = self.spec.while_refused
        self.log.look_for(known.sign if known else None)
        try:
            hand_over(self.spec)
            self.child = Child(self.spec, self._folder)
        except (FedloopError, OSError) as error:
            self.log.say(f"cannot start: {error}")
            self._ended(now, CANNOT_START)
            return
        self.new_output.append(self.child)
        self.log.say(f"started as process {self.child.pid}")

    def watch(self, now: float) -> None:
        """Notices its end, its readiness, and when it was given time enough."""
        if self.child is None:
            return
        status = self.child.exit_status()
        if status is not None:
            if self._group_has_ended(self.child, now):
                self.child.reap()
                while content := self.child.read():  # its last words
                    self.log.feed(content)
                self._ended(now, status)
            return
        if self.life.state is ProcessState.STOPPING and now >= self.life.kill_at:
            self.child.send(signal.SIGKILL)
        elif self.life.state is ProcessState.STARTING:
            if self._is_ready(now):
                self._become(self.life.become_ready())
                self._tell(f"{self.spec.name} runs (process {self.child.pid})")
            elif not self.life.opened and now - self.life.started >= self._start_seconds:
                self._become(self.life.open_anyway())
                self._tell(f"{self.spec.name} is not ready after {self._start_seconds:g} s; see {self.log.path}")

    def _is_ready(self, now: float) -> bool:
        """Its probe has said so, and it has lived on for as long as it must."""
        if self._ready_at is None and (self.spec.ready is None or self.spec.ready.ready()):
            self._ready_at = now
        return self._ready_at is not None and now - self._ready_at >= self.spec.steady_seconds

    def stop(self, now: float, *, why: str, again: bool = False) -> None:
        """SIGTERM to its group, once; a process that waits for its next start ends at once."""
        before = self.life
        self._become(self.life.stop(now, self.spec.stop_seconds, again=again))
        if self.child is not None and before.state is not ProcessState.STOPPING:
            self.log.say(f"stops: {why}")
            self.child.send(signal.SIGTERM)

    def hurry(self, now: float) -> None:
        """No more waiting for an end by itself."""
        self._become(self.life.hurry(now))

    def restart_if_changed(self, now: float) -> None:
        """Restarts it when one of its files is another than at its start."""
        if not self.spec.restart_when or self.life.state not in (ProcessState.STARTING, ProcessState.RUNNING):
            return
        if FileMarks.of(self.spec.restart_when) != self._marks:
            self._tell(f"{self.spec.name} restarts: a file that it reads has changed")
            self.stop(now, why="a file that it reads has changed", again=True)

    def fall_with(self, ended: Collection[str], now: float) -> None:
        """Restarts it when one has ended with whom it falls."""
        others = [name for name in self.spec.falls_with if name in ended]
        if others and self.life.state in (ProcessState.STARTING, ProcessState.RUNNING):
            self._tell(f"{self.spec.name} restarts: {others[0]} has ended, and what it had begun with it")
            self.stop(now, why=f"{others[0]} has ended", again=True)

    def rest_if_told(self, now: float) -> None:
        """Stops it while the file is there that says so; it starts again when the file is gone."""
        if self.life.state in (ProcessState.STARTING, ProcessState.RUNNING) and self._rests():
            self._tell_rest()
            self.stop(now, why=f"{self.spec.rests_while} is there", again=True)

    def _tell_rest(self) -> None:
        """Once a rest: what the file says, which may be another user's."""
        if self._rest_told or self.spec.rests_while is None:
            return
        self._rest_told = True
        why = _sentence(self.spec.rests_while)
        self._tell(f"{self.spec.name} rests{f': {why}' if why else f' while {self.spec.rests_while} is there'}")

    def _rests(self) -> bool:
        return self.spec.rests_while is not None and self.spec.rests_while.exists()

    def _group_has_ended(self, child: Child, now: float) -> bool:
        """What a process has started ends with it, by itself when it can: an app reports to Flower that it stops."""
        if not child.others():
            return True
        if self.life.state is ProcessState.STOPPING:
            return now >= self.life.kill_at
        if self._rest_until is None:
            child.send(signal.SIGTERM)
            self._rest_until = now + self.spec.stop_seconds
        return now >= self._rest_until

    def _ended(self, now: float, status: int) -> None:
        alive = now - self.life.started
        expected = self.life.state is ProcessState.STOPPING
        self.child = None
        self.ends += 1
        self._rest_until = None
        self._become(self.life.end(now, status, self._policy))
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        self.log.say(f"{how} after {alive:.1f} s")
        if expected:
            return
        wait = self._policy.wait(self.life.deaths)
        if self._tells_known(alive, wait):
            return
        if self.life.deaths == 1:
            self._tell(f"{self.spec.name} {how} after {alive:.1f} s; it is started again in {wait:g} s")
        if self._policy.tells(self.life.deaths):
            self._tell(
                f"{self.spec.name} keeps dying ({self.life.deaths} times in a row, it {how}); why is in {self.log.path}; "
                f"the next try is in {wait:g} s"
            )

    def _tells_known(self, alive: float, wait: float) -> bool:
        """Whether it died of what is known; told at once, and then as seldom as a process that keeps dying."""
        known = self.spec.while_refused
        self.log.flush()
        if known is None or not self.log.seen or alive > known.within_seconds:
            return False
        if self.life.deaths == 1 or self._policy.tells(self.life.deaths):
            self._tell(f"{self.spec.name} does not run yet: {known.sentence}; the next try is in {wait:g} s")
        return True

    def _become(self, life: Life) -> None:
        if life.state is not self.life.state:
            self._since = int(time.time())
        self.life = life


def _sentence(path: Path) -> str:
    """The first words of a plain file, in one line; empty when it has none, or is no plain file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as opened:
            plain = stat.S_ISREG(os.fstat(descriptor).st_mode)
            text = opened.read(_SENTENCE_BYTES).decode("utf-8", errors="replace") if plain else ""
    except OSError:
        return ""
    return printable(" ".join(text.split()))
