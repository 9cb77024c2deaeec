"""The daemon deletes what it has kept long enough: once when it starts, and each hour."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from fedloop_clients.retention import Deleted

__all__ = ["Retaining"]

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 3600.0


class _Keeper(Protocol):
    def delete_due(self, now_unix: int) -> tuple[Deleted, ...]:
        """Deletes what is due."""


class Retaining:
    """Asks ``keeper`` to delete what is due. ``clock`` gives seconds since 1970."""

    def __init__(self, keeper: _Keeper, clock: Callable[[], float] = time.time) -> None:
        self._keeper = keeper
        self._clock = clock

    def once(self) -> float:
        """Deletes what is due now; returns the seconds until it looks again.

        Raises:
            FedloopError: settings cannot be read, or a store cannot be written; it is tried again.
        """
        for deleted in self._keeper.delete_due(int(self._clock())):
            _LOG.info("%d items of the %s were deleted after %d days", deleted.items, deleted.store, deleted.days)
        return _LOOK_SECONDS
