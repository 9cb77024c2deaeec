"""The rival: Flower's own simulation on Ray, of the same ServerApp logic and the same sites.

Two actors, one core each, as our two workers; the loops use one core. Flower hands messages over and out by polls of 0.1 s, so
its rounds last whole tenths of a second whatever the work.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedloop_server.app import drive
from fedloop_server.home import CoordinatorHome
from fedloop_server.runs.state import RunState
from fedloop_server.runs.surroundings import FixedDirectory, Surroundings
from fedloop_simulations.federation import rehearsal_directory
from ours import RUN_ID, Finished, RoundClock, finished, make_plan
from ray_sites import WHO, partition_app, partition_said
from workload import SITES, site_name

__all__ = ["ACTORS", "run_flower"]

ACTORS = 2
_NODES_WITHIN = 120.0  # seconds


def run_flower(folder: Path, rounds: int) -> Finished:
    """One run; the ServerApp drives in a thread of this process, the sites live in Ray's actors."""
    home = CoordinatorHome(folder / "coordinator")
    make_plan(home, rounds)
    clock = RoundClock()
    ended: list[RunState] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:  # noqa: ARG001  Flower calls with both
        ended.append(drive(grid, home, RUN_ID, Surroundings(_directory(grid)), clock))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Flower's and Ray's own, among them that this function is deprecated
        run_simulation(
            server,
            partition_app(str(folder / "sites"), home.envelope_key.verifying.raw),
            SITES,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"num_cpus": ACTORS, "include_dashboard": False},
            },
        )
    return finished(home, ended[0], clock)


def _directory(grid: Grid) -> FixedDirectory:
    """The sites by the nodes that Flower has dealt them; this comes before the first round."""
    deadline = time.monotonic() + _NODES_WITHIN
    while len(nodes := list(grid.get_node_ids())) < SITES and time.monotonic() < deadline:
        time.sleep(0.1)
    replies = grid.send_and_receive([Message(RecordDict(), node, WHO) for node in nodes], timeout=_NODES_WITHIN)
    return rehearsal_directory({reply.metadata.src_node_id: site_name(partition_said(reply)) for reply in replies})
