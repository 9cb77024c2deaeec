"""One run of the federation in this process: the coordinator's ServerApp over the in-process grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flwr.app import Context, RecordDict

from fedloop_clients.app import SITE_KEY, relay
from fedloop_clients.endpoint import SiteEndpoint
from fedloop_server.app import HOME_KEY, RUN_KEY, server_app
from fedloop_server.home import CoordinatorHome
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import Event, RunState
from fedloop_simulations.grid import InProcessGrid, Node

__all__ = ["run_in_process"]

_FIRST_NODE = 1000


def run_in_process(
    home: CoordinatorHome,
    plan: RunPlan,
    endpoints: Mapping[str, SiteEndpoint],
    observe: Callable[[RunState, Event], None],
) -> RunState:
    """Stores the plan, or finds it stored, and drives the run to its end; a run that was begun goes on."""
    home.store_plan(plan)
    grid = InProcessGrid(
        {
            _FIRST_NODE + number: Node(relay(endpoint), {SITE_KEY: name})
            for number, (name, endpoint) in enumerate(sorted(endpoints.items()))
        }
    )
    context = Context(
        run_id=1,
        node_id=0,
        node_config={},
        state=RecordDict(),
        run_config={HOME_KEY: str(home.folder), RUN_KEY: plan.run_id},
    )
    server_app(observe)(grid, context)
    return home.journal(plan.run_id).state
