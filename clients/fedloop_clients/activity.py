"""What a site is doing, as it may be told: kind of work, run, round and step. Any thread may look."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum

__all__ = ["Activity", "ActivityBoard", "ActivityKind"]


class ActivityKind(Enum):
    """Kinds of what a site does."""

    IDLE = "idle"
    TRAINING = "training"
    EVALUATING = "evaluating"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Activity:
    """What a site does now: ``step`` of ``steps`` in this round of the run; ``code`` says why it is stopped."""

    kind: ActivityKind = ActivityKind.IDLE
    run_id: str = ""
    round: int = 0
    step: int = 0
    steps: int = 0
    code: str = ""
    leaving: bool = False


_IDLE = Activity()


class ActivityBoard:
    """Where the working thread writes what it does."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._activity = _IDLE
        self._stopped = ""
        self._revision = 0

    @property
    def now(self) -> Activity:
        """What is done now; stopped when the coordinator takes the site no longer."""
        with self._changed:
            if self._stopped:
                return replace(self._activity, kind=ActivityKind.STOPPED, code=self._stopped)
            return self._activity

    @property
    def revision(self) -> int:
        """Rises when a piece of work begins or ends, and with ``touch``; not with every step."""
        with self._changed:
            return self._revision

    @contextmanager
    def working(self, activity: Activity) -> Iterator[None]:
        """Shows a piece of work while its body runs."""
        self._show(activity)
        try:
            yield
        finally:
            self._show(_IDLE)

    def step(self, step: int, steps: int) -> None:
        """Shows how far the piece of work is."""
        with self._changed:
            self._activity = replace(self._activity, step=step, steps=steps)

    def stop(self, code: str) -> None:
        """The coordinator takes the site no longer, for the reason of this code, until ``resume``."""
        with self._changed:
            self._stopped = code

    def resume(self) -> None:
        """The coordinator takes the site."""
        with self._changed:
            self._stopped = ""

    def touch(self) -> None:
        """Wakes whoever waits, since something else than the work has changed."""
        with self._changed:
            self._revision += 1
            self._changed.notify_all()

    def wait(self, known: int, seconds: float) -> int:
        """Returns the revision once it is another than ``known``, at the latest after ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: self._revision != known, timeout=seconds)
            return self._revision

    def _show(self, activity: Activity) -> None:
        with self._changed:
            self._activity = activity
            self._revision += 1
            self._changed.notify_all()
