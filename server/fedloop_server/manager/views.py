"""A run as it stands: plan, journal and place in the queue, read without touching any of them."""

from __future__ import annotations

import difflib
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedloop_core.errors import RunError, StorageError, UsageError
from fedloop_server.home import CoordinatorHome
from fedloop_server.manager.journals import JournalReader
from fedloop_server.manager.queue import QueuedRun, RunQueue
from fedloop_server.manager.state import Status
from fedloop_server.runs.events import AttemptStarted, Event, RoundOpened
from fedloop_server.runs.lock import driver_of
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import Phase, RunState

__all__ = ["LITTLE_ROOM", "BrokenRun", "RunView", "find_view", "load_view", "load_views", "run_names", "the_run"]

LITTLE_ROOM = 16 << 20
"""Bytes below which the databases of coordinator and Flower may fail."""
_MOST_NAMED = 8
_ENDS = {Phase.FINISHED: Status.FINISHED, Phase.FAILED: Status.FAILED, Phase.STOPPED: Status.STOPPED}
_BEFORE_REOPENING = {Status.SCHEDULED, Status.QUEUED, Status.STARTING}


@dataclass(frozen=True)
class RunView:
    """One run. ``queued`` is None for runs that no queue started; ``problem`` says what of the run cannot be read.

    ``free_bytes``: room on the disk of its folder.
    """

    plan: RunPlan
    state: RunState
    events: tuple[Event, ...]
    queued: QueuedRun | None
    driver: int | None
    folder: Path
    problem: str = ""
    free_bytes: int | None = None

    @property
    def cramped(self) -> bool:
        """Whether so little room is left that a run waits for more."""
        return self.free_bytes is not None and self.free_bytes < LITTLE_ROOM

    @property
    def status(self) -> str:
        """A status of the queue, or ``open`` for a run that nobody drives and no queue takes further.

        The journal leads; but one that ended as stopped or failed may be about to be opened again.
        """
        ended, job = _ENDS.get(self.state.phase), None if self.queued is None else self.queued.job
        if ended is Status.FINISHED or (ended is not None and (job is None or job.status not in _BEFORE_REOPENING)):
            return ended.value
        if job is not None:
            return job.status.value
        return Status.RUNNING.value if self.driver is not None else "open"

    @property
    def ended(self) -> bool:
        """Whether nothing more happens by itself."""
        resumed = self.queued is not None and self.queued.wish.resumes
        return not resumed and self.status in {end.value for end in _ENDS.values()}

    @property
    def started_unix(self) -> float | None:
        """When the first attempt began."""
        return next((event.unix for event in self.events if isinstance(event, AttemptStarted)), None)

    @property
    def ended_unix(self) -> float | None:
        """When the run ended."""
        if not self.ended:
            return None
        if self.state.ended and self.events:
            return getattr(self.events[-1], "unix", None)
        return None if self.queued is None else self.queued.job.ended_unix

    def opened_unix(self, number: int) -> float | None:
        """When a round was opened for the last time."""
        found = [event.unix for event in self.events if isinstance(event, RoundOpened) and event.round == number]
        return found[-1] if found else None


@dataclass(frozen=True)
class BrokenRun:
    """A run whose plan cannot be read, and why; ``state`` is what its journal says, as far as that can be read."""

    run_id: str
    state: RunState
    queued: QueuedRun | None
    folder: Path
    problem: str

    @property
    def status(self) -> str:
        """As that of a run whose plan can be read."""
        ended = _ENDS.get(self.state.phase)
        if ended is None and self.queued is not None:
            return self.queued.job.status.value
        return "open" if ended is None else ended.value


def run_names(home: CoordinatorHome, queue: RunQueue) -> tuple[str, ...]:
    """Every run: those in the queue by submission, then those that only have a folder."""
    queued = [entry.job.run_id for entry in queue.list()]
    found = sorted(path.parent.name for path in (home.folder / "runs").glob("*/plan.json"))
    folders = [name for name in found if not name.startswith(".")]  # one that is being removed
    return tuple(dict.fromkeys((*queued, *folders)))


def the_run(given: str, names: tuple[str, ...]) -> str:
    """The run of that name, or the only one whose name begins so.

    Raises:
        UsageError: no run, or several, begin so.
    """
    if given in names:
        return given
    found = [name for name in names if given and name.startswith(given)]
    if len(found) == 1:
        return found[0]
    if found:
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        raise UsageError(
            f"{given!r} may be {', '.join(found[:_MOST_NAMED])}{more}.", hint="Write more of the name.", run=given
        )
    close = difflib.get_close_matches(given, names, n=1)
    guess = f"Did you mean {close[0]}? " if close else ""
    raise UsageError(f"there is no run {given!r}.", hint=f"{guess}`fedloop run list` names them all.", run=given)


def load_view(home: CoordinatorHome, queue: RunQueue, run_id: str) -> RunView:
    """One run as it stands; what of its journal can be read, when not all can.

    Raises:
        RunError: its plan is not there.
        StorageError: its plan cannot be read.
    """
    return _view(home, run_id, queue.find(run_id))


def find_view(home: CoordinatorHome, queue: RunQueue, run_id: str) -> RunView | BrokenRun:
    """Like ``load_view``, also of a run whose plan cannot be read."""
    return _found(home, run_id, queue.find(run_id))


def load_views(home: CoordinatorHome, queue: RunQueue) -> tuple[RunView | BrokenRun, ...]:
    """All runs, in the order of ``run_names``."""
    queued = {entry.job.run_id: entry for entry in queue.list()}
    return tuple(_found(home, name, queued.get(name)) for name in run_names(home, queue))


def _found(home: CoordinatorHome, run_id: str, queued: QueuedRun | None) -> RunView | BrokenRun:
    try:
        return _view(home, run_id, queued)
    except RunError:
        problem = f"its folder {home.run_folder(run_id)} holds no plan."
    except StorageError as error:
        problem = str(error)
    reader = JournalReader(home.run_folder(run_id))
    with suppress(StorageError):  # what can be read of it counts
        reader.news()
    return BrokenRun(run_id, reader.state, queued, home.run_folder(run_id), problem)


def _view(home: CoordinatorHome, run_id: str, queued: QueuedRun | None) -> RunView:
    plan, folder = home.plan(run_id), home.run_folder(run_id)
    reader, problem = JournalReader(folder), ""
    events: tuple[Event, ...] = ()
    driver: int | None = None
    try:
        driver = driver_of(folder)
        events = reader.news()
    except StorageError as error:
        problem = str(error)
    free = shutil.disk_usage(folder).free
    return RunView(plan, reader.state, events, queued, driver, folder, problem, free)
