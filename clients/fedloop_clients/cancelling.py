"""Runs that were called off: their questions are refused, and work on them ends at the next step."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fedloop_clients.activity import ActivityBoard
from fedloop_clients.outbox import NEVER, Outbox
from fedloop_core.errors import FedloopError, ProcessFailed, RunCancelled

__all__ = ["Cancellations", "WatchedRun"]


class Cancellations:
    """The highest attempt of each run that was called off; any thread may call.

    Args:
        outbox: keeps it, so that a restart does not bring a run back.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._lock = threading.Lock()
        self._attempts: dict[str, int] = {}
        self._ending = False

    def cancel(self, run_id: str, attempt: int) -> bool:
        """Calls an attempt and all before it off; returns whether that was news. It holds even if it cannot be kept.

        Raises:
            StorageError: it cannot be kept over a restart.
        """
        known = self._outbox.cancelled(run_id)
        with self._lock:
            if attempt > self._attempts.get(run_id, NEVER):
                self._attempts[run_id] = attempt
        if attempt > known:
            self._outbox.cancel(run_id, attempt)
        return attempt > known

    def load(self, run_id: str) -> None:
        """Takes in what was kept about a run; ``check`` then needs no disk.

        Raises:
            StorageError: it cannot be read.
        """
        kept = self._outbox.cancelled(run_id)
        with self._lock:
            if kept > self._attempts.get(run_id, NEVER):
                self._attempts[run_id] = kept

    def end_all(self) -> None:
        """Ends all work at its next step, since the process ends."""
        self._ending = True

    def check(self, run_id: str, attempt: int) -> None:
        """Nothing while the attempt may go on.

        Raises:
            RunCancelled: it was called off.
            ProcessFailed: the process ends.
        """
        if self._ending:
            raise ProcessFailed(f"the daemon ends while it works for run {run_id}.", hint="It is asked again later.")
        with self._lock:
            off = self._attempts.get(run_id, NEVER)
        if attempt <= off:
            raise RunCancelled(
                f"attempt {attempt} of run {run_id} was stopped at the coordinator.",
                hint="Nothing is to be done: a resumed run is a new attempt.",
            )


class WatchedRun:
    """A piece of work on one attempt, as the trainer's ``TrainingWatch``: shows each step, and ends when it is called off.

    Work that ends so is charged in full: what the steps taken would have released is not known to be unreleased, since
    whoever called the run off saw how long they took. Its reservation stands, as that of any work that broke off.

    Args:
        run_id: the run.
        attempt: the attempt.
        cancellations: what was called off.
        board: where each step is shown.
        allowed: raises when people at the site have decided against the run meanwhile.
    """

    def __init__(
        self, run_id: str, attempt: int, cancellations: Cancellations, board: ActivityBoard, allowed: Callable[[], None]
    ) -> None:
        self._run_id = run_id
        self._attempt = attempt
        self._cancellations = cancellations
        self._board = board
        self._allowed = allowed
        self._broke_off = False

    @property
    def broke_off(self) -> bool:
        """Whether the work was ended from outside, whatever the rows are."""
        return self._broke_off

    def at_step(self, step: int, steps: int) -> None:
        """Shows the step.

        Raises:
            RunCancelled: the attempt was called off.
            ProcessFailed: the process ends.
            PolicyRefused: a person at the site has declined the run.
            StorageError: what was decided cannot be read.
        """
        self.between_batches()
        self._board.step(step, steps)

    def between_batches(self) -> None:
        """Nothing while the attempt may go on.

        Raises:
            RunCancelled, ProcessFailed, PolicyRefused, StorageError: as ``at_step``.
        """
        try:
            self._cancellations.check(self._run_id, self._attempt)
            self._allowed()
        except FedloopError:
            self._broke_off = True
            raise
