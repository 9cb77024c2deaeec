"""How a coordinator stands: what `fedloop server status` shows."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from fedloop_core.commands import Told, moment, tell_table
from fedloop_core.processes import ProcessStatus, now_in
from fedloop_core.processes.progress import at_home
from fedloop_server.cli.budget import BudgetDocument, budget_document, budget_line
from fedloop_server.cli.sites import site_json, tell_sites
from fedloop_server.home import CoordinatorHome
from fedloop_server.manager.tables import QueuedRunRow
from fedloop_server.manager.views import LITTLE_ROOM
from fedloop_server.membership import SiteRecord

__all__ = ["Standing", "WaitingRun", "standing_of", "tell_standing"]


@dataclass(frozen=True)
class WaitingRun:
    """A run that is not over."""

    run_id: str
    status: str


@dataclass(frozen=True)
class Standing:
    """Everything at one moment; no processes: `fedloop server up` never ran here."""

    name: str
    folder: Path
    supervised: bool
    processes: tuple[ProcessStatus, ...]
    sites: tuple[SiteRecord, ...]
    runs: tuple[WaitingRun, ...]
    free_bytes: int
    whole_sites: BudgetDocument

    def as_json(self) -> Told:
        """For machines."""
        return {
            "name": self.name,
            "supervised": self.supervised,
            "processes": [process.model_dump(mode="json") for process in self.processes],
            "sites": [site_json(site) for site in self.sites],
            "disk_free_bytes": self.free_bytes,
            "whole_sites": self.whole_sites.model_dump(mode="json"),
            "runs": [{"run": run.run_id, "status": run.status} for run in self.runs],
        }


def standing_of(home: CoordinatorHome) -> Standing:
    """Reads supervisor.json and the database.

    Raises:
        StorageError: the database cannot be read.
    """
    supervised, processes = now_in(home.folder)
    free = shutil.disk_usage(home.folder).free
    members = home.members()
    query = select(QueuedRunRow).where(~QueuedRunRow.settled).order_by(QueuedRunRow.number)
    try:
        sites = members.sites()
        with members.database.reading() as session:
            runs = tuple(WaitingRun(row.run_id, row.status) for row in session.scalars(query))
    finally:
        members.database.close()
    spent = budget_document(home)
    return Standing(home.settings.name, home.folder, supervised, processes, sites, runs, free, spent)


def tell_standing(standing: Standing) -> None:
    """Prints it for people."""
    print(f"Coordinator {standing.name}")
    if standing.free_bytes < LITTLE_ROOM:
        print("No space left on its disk: runs wait until there is, and then go on by themselves.")
    if standing.processes and not standing.supervised:
        print(f"no supervisor runs here: `fedloop server up{at_home(standing.folder)}` starts it")
    if standing.processes:
        tell_table(
            ("PROCESS", "STATE", "PID", "SINCE", "RESTARTS"),
            [
                (p.name, p.state.value, str(p.pid or "-"), moment(p.since_unix), str(p.restarts))
                for p in standing.processes
            ],
        )
    else:
        print("No process has run here yet: `fedloop server up` starts them, which takes some seconds.")
    print()
    tell_sites(standing.sites)
    if budget_line(standing.whole_sites):
        print(budget_line(standing.whole_sites))
    print()
    if standing.runs:
        tell_table(("RUN", "STATUS"), [(run.run_id, run.status) for run in standing.runs])
    else:
        print("No runs are waiting or running.")
