"""What a drive does when the coordinator's disk is full or its database fails: it keeps what it has in memory and waits.

For room on a disk it waits as long as it takes. For everything else that may pass (a server of the database that is started
again, a lock) it waits a minute; what lasts longer is raised, and the drive leaves the run open for the next attempt. What is
damaged does not get better by waiting, and is raised at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from fedloop_core.errors import AuditBroken, ContentDamaged, DiskFull, FedloopError, RunCancelled, StorageError
from fedloop_server.runs.surroundings import StopWish

__all__ = ["Room", "WaitsForRoom", "with_room"]

_LOG = logging.getLogger(__name__)
_SECONDS = 3.0
_PATIENCE_SECONDS = 60.0
_TRIES = 20  # each of which may take its time too: a database that is locked is waited for at every try

Room = Callable[[StorageError], None]
"""Is told of a full disk or a failing database and returns when another try is worth it, or raises."""

T = TypeVar("T")


def with_room(write: Callable[[], T], room: Room | None) -> T:
    """Writes or looks, again and again: while the disk is full, and for a minute of other failures in a row.

    Args:
        write: may be done twice: what became of a try that failed is not known.
        room: waits; None: nobody does.

    Raises:
        ContentDamaged: what is read is damaged.
        StorageError: the failure lasts, or nobody waits.
        FedloopError: what ``write`` or ``room`` raise.
    """
    failures, since = 0, 0.0
    while True:
        try:
            return write()
        except (AuditBroken, ContentDamaged):
            raise
        except StorageError as error:
            if isinstance(error, DiskFull):
                failures = 0
            else:
                since = since if failures else time.monotonic()
                failures += 1
            if room is None or failures > _TRIES or (failures and time.monotonic() - since > _PATIENCE_SECONDS):
                raise
            room(error)


class WaitsForRoom:
    """Waits a little at a time, says so once, and ends when a person wants the run to stop."""

    def __init__(self, stop: StopWish | None, sleep: Callable[[float], None] = time.sleep) -> None:
        self._stop = stop
        self._sleep = sleep
        self._said = ""

    def __call__(self, error: StorageError) -> None:
        """Waits a few seconds.

        Raises:
            RunCancelled: a person wants the run to stop.
        """
        if str(error) != self._said:
            what = "for room" if isinstance(error, DiskFull) else "until it is over, a minute at most"
            _LOG.warning("%s The run waits %s.", error, what)
            self._said = str(error)
        self._sleep(_SECONDS)
        if self._stop is not None:
            wished = False
            with suppress(FedloopError):  # the database is on that disk too
                wished = self._stop.wished()
            if wished:
                raise RunCancelled("the run was stopped by a person.", hint="Resume it when it may go on.")
