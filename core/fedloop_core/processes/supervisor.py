"""The supervisor: starts processes, each after those that it needs, keeps them alive, and takes all with it when it ends."""

from __future__ import annotations

import logging
import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from fedloop_core.errors import StorageError
from fedloop_core.processes.child import Child
from fedloop_core.processes.health import health_endpoint
from fedloop_core.processes.leftovers import clear_leftovers
from fedloop_core.processes.lock import folder_lock
from fedloop_core.processes.logs import LOG_DAYS, ProcessLog
from fedloop_core.processes.managed import Managed, Tell
from fedloop_core.processes.policy import RestartPolicy
from fedloop_core.processes.procfs import boot_id, facts
from fedloop_core.processes.requests import take_requests
from fedloop_core.processes.spec import ProcessSpec
from fedloop_core.processes.status import ProcessState, SupervisorStatus, write_status

__all__ = ["Supervisor", "check_not_running"]

_LOG = logging.getLogger(__name__)
_TICK_SECONDS = 0.1
_AGAIN_SECONDS = 1.0  # `timeout` and terminals send one wish to end as several signals
_LOOK_SECONDS = 0.5  # between two looks at requests and files
_TIDY_SECONDS = 3600.0
_DAY_SECONDS = 86_400


def check_not_running(folder: Path) -> None:
    """Finds out before folders are prepared; ``run`` finds out for good.

    Raises:
        AlreadyRunning: another supervisor has this folder.
        StorageError: the folder cannot be written.
    """
    with folder_lock(folder):
        return


class Supervisor:
    """Runs the processes of one coordinator or site; nothing is started before ``run``.

    Args:
        folder: holds ``logs/``, ``supervisor.json``, the lock, and requests to restart.
        specs: in the order of their start; they end in the reverse of it. One that waits for nobody starts at once.
        health: loopback address of the health endpoint; None for none; port 0 for a free one (``health_port``).
        policy: when dead processes are started again.
        tell: is given a sentence at each change that a person may want to read.
        when_healthy: called once, when all processes run for the first time.
        start_seconds: how long a process may take to become ready before those after it start without it.
        log_days: how old a line of a log may become.

    Raises:
        ValueError: a process is to start after one that does not stand before it, or to fall with one that is not there.
    """

    def __init__(
        self,
        folder: Path,
        specs: Sequence[ProcessSpec],
        *,
        health: tuple[str, int] | None,
        policy: RestartPolicy | None = None,
        tell: Tell = _LOG.info,
        when_healthy: Callable[[], None] | None = None,
        start_seconds: float = 60.0,
        log_days: int = LOG_DAYS,
    ) -> None:
        self.folder = folder
        self.health_port: int | None = None
        self._specs = tuple(specs)
        for number, spec in enumerate(self._specs):
            if missing := set(spec.after) - {before.name for before in self._specs[:number]}:
                raise ValueError(f"process {spec.name} waits for {', '.join(sorted(missing))}, which is not before it")
            if missing := set(spec.falls_with) - {other.name for other in self._specs}:
                raise ValueError(f"process {spec.name} falls with {', '.join(sorted(missing))}, which is not there")
        self._health = health
        self._policy = policy or RestartPolicy()
        self._tell = tell
        self._when_healthy = when_healthy
        self._start_seconds = start_seconds
        self._log_seconds = log_days * _DAY_SECONDS
        self._next_tidying = 0.0
        self._started_unix = int(time.time())
        own = facts(os.getpid())
        self._started_ticks = own.started_ticks if own else None
        self._stops = 0
        self._first_stop = 0.0
        self._processes: tuple[Managed, ...] = ()
        self._status = self._look()
        self._outputs = selectors.DefaultSelector()
        self._next_look = 0.0
        self._ends: dict[str, int] = {}

    def stop(self) -> None:
        """Ends ``run``: cleanly; when called again a second later, at once. For signal handlers and other threads too."""
        now = time.monotonic()
        if self._stops == 0:
            self._first_stop = now
        if self._stops == 0 or now - self._first_stop >= _AGAIN_SECONDS:
            self._stops += 1

    def run(self) -> None:
        """Supervises until SIGTERM, SIGINT or ``stop``.

        Raises:
            AlreadyRunning: another supervisor has this folder.
            ProcessFailed: the health endpoint's address is taken.
            StorageError: the folder cannot be written.
        """
        with folder_lock(self.folder), health_endpoint(self._health, lambda: self._status) as port, self._signals():
            self.health_port = port
            for name in clear_leftovers(self.folder):
                self._tell(f"{name} was left by a supervisor that was killed; it was ended")
            self._processes = tuple(
                Managed(spec, self.folder, self._policy, self._tell, start_seconds=self._start_seconds)
                for spec in self._specs
            )
            try:
                self._publish(must=True)
                self._loop()
            finally:
                self._abandon()

    def _loop(self) -> None:
        while True:
            self._pump(_TICK_SECONDS)
            now = time.monotonic()
            for process in self._processes:
                process.watch(now)
            if self._stops:
                if self._stopped(now):
                    return
            else:
                self._fall(now)
                self._look_around(now)
                self._start(now)
            self._tidy(now)
            self._publish()

    def _tidy(self, now: float) -> None:
        """Old lines of logs go, an hour after an hour."""
        if now >= self._next_tidying:
            self._next_tidying = now + _TIDY_SECONDS
            for process in self._processes:
                process.log.forget(self._log_seconds, time.time())

    def _start(self, now: float) -> None:
        opened: set[str] = set()
        for process in self._processes:
            if not opened.issuperset(process.spec.after):
                continue
            process.start(now)
            for child in process.new_output:
                self._outputs.register(child.output, selectors.EVENT_READ, (child, process.log))
            process.new_output.clear()
            if process.life.opened:
                opened.add(process.spec.name)

    def _fall(self, now: float) -> None:
        ends = {process.spec.name: process.ends for process in self._processes}
        ended = {name for name, count in ends.items() if count > self._ends.get(name, 0)}
        self._ends = ends
        if ended:
            for process in self._processes:
                process.fall_with(ended, now)

    def _stopped(self, now: float) -> bool:
        """Stops the last of those that are left, and says whether none is."""
        for process in reversed(self._processes):
            if process.life.state is ProcessState.STOPPED:
                continue
            process.stop(now, why="the supervisor ends")
            if self._stops > 1:
                process.hurry(now)
            elif process.life.alive:
                return False
        self._publish()
        return all(process.life.state is ProcessState.STOPPED for process in self._processes)

    def _look_around(self, now: float) -> None:
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        wanted = take_requests(self.folder, (process.spec.name for process in self._processes))
        for process in self._processes:
            if process.spec.name in wanted:
                self._tell(f"{process.spec.name} restarts: somebody asked for it")
                process.stop(now, why="a restart was asked for", again=True)
            process.restart_if_changed(now)
            process.rest_if_told(now)

    def _pump(self, seconds: float) -> None:
        for key, _ in self._outputs.select(seconds):
            child, log = key.data
            self._take(child, log)

    def _take(self, child: Child, log: ProcessLog) -> None:
        content = child.read()
        if content is None:
            self._outputs.unregister(child.output)
            log.flush()
            child.close()
        else:
            log.feed(content)

    def _look(self) -> SupervisorStatus:
        return SupervisorStatus(
            pid=os.getpid(),
            boot_id=boot_id(),
            started_ticks=self._started_ticks,
            started_unix=self._started_unix,
            processes=tuple(process.status() for process in self._processes),
        )

    def _publish(self, *, must: bool = False) -> None:
        status = self._look()
        if status == self._status and not must:
            return
        self._status = status
        if status.healthy and self._when_healthy is not None:
            self._when_healthy()
            self._when_healthy = None
        try:
            write_status(self.folder, status)
        except StorageError as error:
            if must:
                raise
            _LOG.warning("%s", error)  # processes go on without it, and their logs say the same

    def _abandon(self) -> None:
        """However ``run`` ends, no process outlives it and no line that was written is lost."""
        for process in self._processes:
            if process.child is not None:
                process.child.reap()
                process.child = None
        for key in list(self._outputs.get_map().values()):
            child, log = key.data
            while content := child.read():
                log.feed(content)
            child.close()
        self._outputs.close()
        for process in self._processes:
            process.log.close()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - signal's signature
            self.stop()

        before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
