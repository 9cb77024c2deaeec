"""The life of one supervised process as a pure state machine: events in, the next state out; times are given."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedloop_core.processes.policy import RestartPolicy
from fedloop_core.processes.status import ProcessState

__all__ = ["Life"]


@dataclass(frozen=True)
class Life:
    """Where a process is. Times are seconds of one monotonic clock.

    Attributes:
        state: as others see it.
        start_at: a waiting process starts no earlier.
        started: of the present or last incarnation.
        opened: it was ready once, or had its time to become so: those after it may start.
        deaths: in a row, by ``RestartPolicy``.
        starts: all of them.
        last_exit: status of the last incarnation; negative for a signal.
        kill_at: a stopping process is killed then.
        again: a stopping process is to be started again.
    """

    state: ProcessState = ProcessState.WAITING
    start_at: float = 0.0
    started: float = 0.0
    opened: bool = False
    deaths: int = 0
    starts: int = 0
    last_exit: int | None = None
    kill_at: float = 0.0
    again: bool = False

    @property
    def alive(self) -> bool:
        """Whether there is a process."""
        return self.state in (ProcessState.STARTING, ProcessState.RUNNING, ProcessState.STOPPING)

    def may_start(self, now: float) -> bool:
        """Whether it waits and has waited long enough."""
        return self.state is ProcessState.WAITING and now >= self.start_at

    def start(self, now: float) -> Life:
        """It was started."""
        return replace(self, state=ProcessState.STARTING, started=now, starts=self.starts + 1, again=False)

    def become_ready(self) -> Life:
        """Its probe said so."""
        return replace(self, state=ProcessState.RUNNING, opened=True)

    def open_anyway(self) -> Life:
        """It takes too long to become ready: the others start without it."""
        return replace(self, opened=True)

    def stop(self, now: float, seconds: float, *, again: bool = False) -> Life:
        """It is told to end within so many seconds; one that does not run has ended already."""
        if self.state is ProcessState.STOPPING:
            return replace(self, again=self.again and again)
        if not self.alive:
            return replace(self, state=ProcessState.WAITING if again else ProcessState.STOPPED, start_at=now)
        return replace(self, state=ProcessState.STOPPING, kill_at=now + seconds, again=again)

    def hurry(self, now: float) -> Life:
        """Whoever stops it waits no longer."""
        return replace(self, kill_at=min(self.kill_at, now))

    def end(self, now: float, status: int, policy: RestartPolicy) -> Life:
        """It has ended: as it was told, or by itself, which is a death."""
        if self.state is ProcessState.STOPPING:
            state = ProcessState.WAITING if self.again else ProcessState.STOPPED
            return replace(self, state=state, start_at=now, last_exit=status, deaths=0)
        deaths = policy.deaths(self.deaths, now - self.started)
        return replace(
            self, state=ProcessState.WAITING, start_at=now + policy.wait(deaths), last_exit=status, deaths=deaths
        )
