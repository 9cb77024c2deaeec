"""What others than the driver write into a run's journal: stops, failures and reopenings, while nobody drives it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

from fedloop_server.home import CoordinatorHome
from fedloop_server.registry import Registry
from fedloop_server.registry import RunState as RegisteredState
from fedloop_server.runs.events import Event, RunFailed, RunReopened, RunStopped
from fedloop_server.runs.lock import drives
from fedloop_server.runs.state import Phase, RunState

__all__ = ["fail_run", "reopen_run", "settle", "stop_run"]

_ENDS = {
    Phase.FINISHED: RegisteredState.SUCCEEDED,
    Phase.FAILED: RegisteredState.FAILED,
    Phase.STOPPED: RegisteredState.CANCELLED,
}


def stop_run(home: CoordinatorHome, run_id: str, now_unix: Callable[[], float] = time.time) -> RunState:
    """Notes that a person stopped a run that nobody drives any more; one that has ended stays as it is.

    Raises:
        RunBusy: a process drives it, which notes that itself.
        RunError: there is no such run.
    """
    return _end(home, run_id, RunStopped(unix=now_unix()))


def fail_run(
    home: CoordinatorHome, run_id: str, code: str, reason: str, now_unix: Callable[[], float] = time.time
) -> RunState:
    """Notes that a run which nobody drives any more is given up; one that has ended stays as it is.

    Raises:
        RunBusy: a process drives it.
        RunError: there is no such run.
    """
    return _end(home, run_id, RunFailed(code=code, reason=reason, unix=now_unix()))


def reopen_run(home: CoordinatorHome, run_id: str, now_unix: Callable[[], float] = time.time) -> RunState:
    """Lets a run go on that had failed or was stopped; one that is open or has finished stays as it is.

    Raises:
        RunBusy: a process drives it.
        RunError: there is no such run.
    """
    with drives(home.run_folder(run_id)):
        journal = home.journal(run_id)
        if journal.state.phase in {Phase.FAILED, Phase.STOPPED}:
            journal.record(RunReopened(unix=now_unix()))
        return journal.state


def settle(registry: Registry, run_id: str, state: RunState) -> None:
    """Brings the registry's record of a run to what its journal says; the journal leads, and either write may be lost."""
    known = registry.run(run_id).state
    if state.ended:
        if known is RegisteredState.RUNNING:
            reason = state.failure.reason if state.failure is not None else ""
            registry.finish_run(run_id, _ENDS[state.phase], reason)
    elif known is not RegisteredState.RUNNING:
        registry.reopen_run(run_id)


def _end(home: CoordinatorHome, run_id: str, event: Event) -> RunState:
    home.plan(run_id)  # before a folder is made for a run that is none
    with drives(home.run_folder(run_id)):
        journal = home.journal(run_id)
        if not journal.state.ended:
            journal.record(event)
        with closing(home.registry()) as registry:
            if any(run.run_id == run_id for run in registry.runs(home.plan(run_id).task.name)):
                settle(registry, run_id, journal.state)
        return journal.state
