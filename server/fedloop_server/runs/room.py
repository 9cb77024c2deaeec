"""What a drive does when the coordinator's disk is full: it keeps what it has in memory and waits until there is room."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from fedloop_core.errors import DiskFull, FedloopError, RunCancelled
from fedloop_server.runs.surroundings import StopWish

__all__ = ["Room", "WaitsForRoom", "with_room"]

_LOG = logging.getLogger(__name__)
_SECONDS = 3.0

Room = Callable[[DiskFull], None]
"""Is told of a full disk and returns when another try is worth it, or raises."""

T = TypeVar("T")


def with_room(write: Callable[[], T], room: Room | None) -> T:
    """Writes, again and again while the disk is full.

    Raises:
        DiskFull: it is, and nobody waits.
        FedloopError: what ``write`` or ``room`` raise.
    """
    while True:
        try:
            return write()
        except DiskFull as error:
            if room is None:
                raise
            room(error)


class WaitsForRoom:
    """Waits a little at a time, says so once, and ends when a person wants the run to stop."""

    def __init__(self, stop: StopWish | None, sleep: Callable[[float], None] = time.sleep) -> None:
        self._stop = stop
        self._sleep = sleep
        self._said = ""

    def __call__(self, error: DiskFull) -> None:
        """Waits a few seconds.

        Raises:
            RunCancelled: a person wants the run to stop.
        """
        if str(error) != self._said:
            _LOG.warning("%s The run waits for room.", error)
            self._said = str(error)
        self._sleep(_SECONDS)
        if self._stop is not None:
            wished = False
            with suppress(FedloopError):  # the database is on that disk too
                wished = self._stop.wished()
            if wished:
                raise RunCancelled("the run was stopped by a person.", hint="Resume it when it may go on.")
