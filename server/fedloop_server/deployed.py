"""The surroundings of a run at a coordinator that is set up: its database, log and front."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedloop_core.errors import NotSetUp
from fedloop_server.home import CoordinatorHome
from fedloop_server.runs.surroundings import Surroundings

__all__ = ["deployed_surroundings"]


@contextmanager
def deployed_surroundings(home: CoordinatorHome, run_id: str) -> Iterator[Surroundings]:
    """What the drive of a run needs of the coordinator, for as long as it lasts.

    Raises:
        NotSetUp: the folder is no coordinator's.
    """
    raise NotSetUp(f"{home.folder} has no members for run {run_id}.", hint="Run `fedloop server init` first.")
    yield  # a generator
