"""One run of the federation on this machine: the coordinator's ServerApp over a grid in this process or over workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid

from fedloop_clients.app import SITE_KEY, relay
from fedloop_clients.endpoint import SiteEndpoint
from fedloop_core.federation.bundle import HOME_KEY, RUN_KEY
from fedloop_server.app import server_app
from fedloop_server.home import CoordinatorHome
from fedloop_server.runs.events import Event
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import RunState
from fedloop_server.runs.surroundings import FixedDirectory, SiteKey, Surroundings
from fedloop_server.whole_sites.budget import SiteBudget
from fedloop_simulations.grid import RUN_ID, InProcessGrid, Node
from fedloop_simulations.keys import rehearsal_key
from fedloop_simulations.site_worker import SiteFactory
from fedloop_simulations.worker_grid import WorkerGrid

__all__ = ["rehearsal_directory", "run_in_process", "run_with_workers"]

_FIRST_NODE = 1000
Observer = Callable[[RunState, Event], None]


def run_in_process(
    home: CoordinatorHome,
    plan: RunPlan,
    endpoints: Mapping[str, SiteEndpoint],
    observe: Observer,
    whole_sites: SiteBudget | None = None,
) -> RunState:
    """Stores the plan, or finds it stored, and drives the run to its end; a run that was begun goes on.

    ``whole_sites``: the budget for those; None: that of the folder's settings.
    """
    names = _numbered(endpoints)
    grid = InProcessGrid({node: Node(relay(endpoints[name]), {SITE_KEY: name}) for node, name in names.items()})
    return _run(grid, home, plan, names, observe, whole_sites)


def run_with_workers(
    home: CoordinatorHome,
    plan: RunPlan,
    factory: SiteFactory,
    names: Iterable[str],
    workers: int,
    observe: Observer,
) -> RunState:
    """Like ``run_in_process``, with sites that ``factory`` makes in worker processes (see ``WorkerGrid``).

    Raises:
        RunError: a worker could not make its sites.
    """
    numbered = _numbered(names)
    with WorkerGrid(numbered, factory, workers) as grid:
        return _run(grid, home, plan, numbered, observe)


def rehearsal_directory(nodes: Mapping[int, str]) -> FixedDirectory:
    """Sites of this machine by node id, with the keys of rehearsals."""
    return FixedDirectory({node: SiteKey(name, rehearsal_key(name).verifying) for node, name in nodes.items()})


def _numbered(names: Iterable[str]) -> dict[int, str]:
    return dict(enumerate(sorted(names), _FIRST_NODE))


def _run(
    grid: Grid,
    home: CoordinatorHome,
    plan: RunPlan,
    names: Mapping[int, str],
    observe: Observer,
    whole_sites: SiteBudget | None = None,
) -> RunState:
    home.store_plan(plan)
    context = Context(
        run_id=RUN_ID,
        node_id=0,
        node_config={},
        state=RecordDict(),
        run_config={HOME_KEY: str(home.folder), RUN_KEY: plan.run_id},
    )
    surroundings = Surroundings(rehearsal_directory(names), whole_site_budget=whole_sites)
    server_app(observe, surroundings)(grid, context)
    return home.journal(plan.run_id).state
