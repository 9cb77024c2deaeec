"""What a coordinator deletes by age: runs that made no version, and the weights in the folders of versions that nobody runs.

A version itself stays: its files are in the blob store, its plan and journal say where it comes from. What goes is what a later run
could start warm from, so the newest version of a task keeps it, and so do those in production or on trial.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import closing
from dataclasses import dataclass

from fedloop_core.audit import AuditAction, AuditLog
from fedloop_core.certificates import DAY_SECONDS
from fedloop_core.errors import RunBusy, RunError
from fedloop_server.home import CoordinatorHome
from fedloop_server.manager.queue import RunQueue
from fedloop_server.manager.removal import Removable, planned_removal, remove_run
from fedloop_server.manager.views import RunView, load_views
from fedloop_server.registry import Registry, Stage
from fedloop_server.runs.thinning import thin
from fedloop_server.settings import RetentionSettings

__all__ = ["CoordinatorRetention", "DueRuns", "KeptWeights", "due_weights"]

_LOG = logging.getLogger(__name__)
_ACTOR = "retention"
_SERVED = frozenset({Stage.CANARY, Stage.PRODUCTION})


@dataclass(frozen=True)
class KeptWeights:
    """The weights in the folder of a finished run that made a version.

    ``newest``: of its task. ``wanted``: a run that is not over starts from them.
    """

    run_id: str
    task: str
    version: int
    stage: Stage
    newest: bool
    wanted: bool
    ended_unix: float | None
    bytes: int


@dataclass(frozen=True)
class DueRuns:
    """What is due: runs that are removed, and weights that are deleted."""

    runs: tuple[Removable, ...]
    weights: tuple[KeptWeights, ...]


def due_weights(kept: Iterable[KeptWeights], days: int, now_unix: float) -> tuple[KeptWeights, ...]:
    """Which weights go. Pure."""
    return tuple(
        one
        for one in kept
        if one.bytes
        and not (one.newest or one.wanted or one.stage in _SERVED)
        and one.ended_unix is not None
        and one.ended_unix < now_unix - days * DAY_SECONDS
    )


class CoordinatorRetention:
    """Deletes what is due at one coordinator.

    Args:
        home: its folder.
        queue: its runs.
        audit: where each deletion is noted.
        clock: seconds since 1970.
    """

    def __init__(
        self, home: CoordinatorHome, queue: RunQueue, audit: AuditLog, clock: Callable[[], float] = time.time
    ) -> None:
        self._home = home
        self._queue = queue
        self._audit = audit
        self._clock = clock

    def weights(self) -> tuple[KeptWeights, ...]:
        """The weights that are kept, of every version.

        Raises:
            StorageError: the database cannot be read.
        """
        views = [view for view in load_views(self._home, self._queue) if isinstance(view, RunView)]
        wanted = {
            (view.plan.task.name, view.plan.warm_from)
            for view in views
            if not view.ended and view.plan.warm_from is not None
        }
        with closing(self._home.registry()) as registry:
            newest = {
                task: max((version.number for version in registry.versions(task)), default=0)
                for task in {view.plan.task.name for view in views}
            }
            found = (self._kept(view, registry, wanted, newest) for view in views if view.status == "finished")
            return tuple(one for one in found if one is not None)

    def due(self, limits: RetentionSettings) -> DueRuns:
        """What is to be deleted now, of runs whose plan can be read; nothing is changed.

        Raises:
            StorageError: the database cannot be read.
        """
        now = self._clock()
        views = [view for view in load_views(self._home, self._queue) if isinstance(view, RunView)]
        runs = planned_removal(self._home, views, ended_before=now - limits.run_days * DAY_SECONDS).gone
        return DueRuns(runs, due_weights(self.weights(), limits.weights_days, now))

    def once(self) -> DueRuns:
        """Deletes what is due by server.toml as it is now; returns what went. What is locked goes at the next call.

        Raises:
            SettingsInvalid: server.toml has mistakes; nothing is deleted then.
            StorageError: database, folder or audit log cannot be written.
        """
        limits = self._home.settings.retention
        due = self.due(limits)
        runs = tuple(run for run in due.runs if self._removed(run, limits.run_days))
        weights = tuple(one for one in due.weights if self._thinned(one, limits.weights_days))
        return DueRuns(runs, weights)

    def _removed(self, run: Removable, days: int) -> bool:
        try:
            remove_run(self._home, self._queue, run.run_id)
        except (RunBusy, RunError) as error:
            _LOG.info("%s", error)
            return False
        self._audit.record(_ACTOR, AuditAction.RUN_REMOVED, run.run_id, status=run.status, bytes=run.bytes, days=days)
        return True

    def _thinned(self, one: KeptWeights, days: int) -> bool:
        if thin(self._home.run_folder(one.run_id), frozenset()) == 0:
            return False
        self._audit.record(
            _ACTOR, AuditAction.DATA_DELETED, one.run_id, what="weights", task=one.task, version=one.version, days=days
        )
        return True

    @staticmethod
    def _kept(
        view: RunView, registry: Registry, wanted: AbstractSet[tuple[str, int]], newest: Mapping[str, int]
    ) -> KeptWeights | None:
        made = registry.made_by(view.plan.run_id)
        if made is None:
            return None
        return KeptWeights(
            run_id=view.plan.run_id,
            task=made.task,
            version=made.number,
            stage=made.stage,
            newest=made.number == newest[made.task],
            wanted=(made.task, made.number) in wanted,
            ended_unix=view.ended_unix,
            bytes=sum(path.stat().st_size for path in view.folder.glob("round-*.safetensors")),
        )
