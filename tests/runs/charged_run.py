"""A run that hides whole sites, as a process of its own: ``python charged_run.py FOLDER RUN POINT``; it ends itself with SIGKILL at a point."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session
from tests.runs.scripted_sites import driver, honest, task

from fedloop_core.task import Task
from fedloop_core.task.aggregation import Mean
from fedloop_core.task.central import CentralPrivacy
from fedloop_server.home import CoordinatorHome
from fedloop_server.runs.events import RoundClosed, RoundOpened, WholeSitesCharged
from fedloop_server.runs.journal import RunJournal
from fedloop_server.whole_sites.budget import SiteBudget

POINTS: dict[str, Callable[[Any], bool]] = {  # of an event, or of what is about to be written to the database
    "before the charge is on the disk": lambda told: told == "commit",
    "after the charge, before the journal": lambda told: isinstance(told, WholeSitesCharged),
    "before anybody is asked": lambda told: isinstance(told, RoundOpened) and told.round == 1,
    "before the first noised model is sent": lambda told: isinstance(told, RoundOpened) and told.round == 2,
    "before the last round closes": lambda told: isinstance(told, RoundClosed) and told.round == 4,
    "never": lambda told: False,
}
SITES = 40
BUDGET = SiteBudget(epsilon=10.0, delta=1e-5)


def hidden(epsilon: float = 8.0) -> Task:
    return task(Mean()).model_copy(update={"central_privacy": CentralPrivacy(epsilon=epsilon, clipping_norm=0.5)})


def arm(point: str) -> None:
    due = POINTS[point]
    commit, record = Session.commit, RunJournal.record

    def dying_commit(self: Session) -> None:
        if any(type(row).__tablename__ == "whole_site_charges" for row in self.new) and due("commit"):
            self.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        commit(self)

    def dying_record(self: RunJournal, event: Any) -> Any:
        if due(event):
            os.kill(os.getpid(), signal.SIGKILL)
        return record(self, event)

    Session.commit = dying_commit  # type: ignore[method-assign]
    RunJournal.record = dying_record  # type: ignore[method-assign]


def main() -> None:
    folder, run_id, point = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    book = CoordinatorHome(folder).whole_sites(BUDGET)
    arm(point)
    driver(folder / run_id, hidden(), honest(SITES), run_id=run_id, book=book).train()


if __name__ == "__main__":
    main()
