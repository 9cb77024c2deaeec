"""Our rival: the ServerApp's ``drive`` over worker processes or in one thread, with relay and site daemon.

They run as ``fedloop simulate`` runs them, with ledger and outbox in memory and a journal that does not wait for the disk:
choices of a rehearsal. Noise is seeded, so that every rival shuffles the same rows in the same order and must end with the
same weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedloop_clients.app import SITE_KEY, relay
from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.data.site_data import SiteData
from fedloop_clients.outbox import Outbox
from fedloop_clients.policy import Budget, SiteConfig
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core.arrays import NamedArrays
from fedloop_core.keys import VerifyingKey
from fedloop_core.noise import SeededNoise
from fedloop_core.shuffling import seed_of_round, seed_of_site
from fedloop_server.app import drive
from fedloop_server.home import CoordinatorHome
from fedloop_server.runs.events import Event, RoundClosed, RoundOpened
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import RunState
from fedloop_server.runs.surroundings import Surroundings
from fedloop_simulations.federation import rehearsal_directory
from fedloop_simulations.grid import InProcessGrid, Node
from fedloop_simulations.keys import rehearsal_key
from fedloop_simulations.worker_grid import WorkerGrid
from workload import SEED, SITES, digits_task, site_name, site_rows

__all__ = [
    "RUN_ID",
    "WORKERS",
    "Finished",
    "RoundClock",
    "finished",
    "make_plan",
    "run_in_one_thread",
    "run_ours",
    "site_daemon",
    "site_seed",
]

RUN_ID = "run-1"
WORKERS = 2  # as many as Flower gets actors
_NO_ROW = ()
_PARTITIONS = {site_name(at): at for at in range(SITES)}
Observer = Callable[[RunState, Event], None]


class RoundClock:
    """Observes a run and notes wall and processor time (of this process) at the close of each round."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.processor: list[float] = []
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, _state: RunState, event: Event) -> None:
        """Takes the time of one event."""
        match event:
            case RoundOpened(asked=asked):
                self.asked.append(asked)
            case RoundClosed():
                self.wall.append(time.perf_counter())
                self.processor.append(time.process_time())
            case _:
                pass


@dataclass(frozen=True)
class Finished:
    """What a run left: its clock, the sites of each round, and the trained arrays."""

    clock: RoundClock
    arrays: NamedArrays


def make_plan(home: CoordinatorHome, rounds: int) -> RunPlan:
    """The run, stored: nothing is exported, and nothing waits for the disk."""
    plan = RunPlan(
        run_id=RUN_ID,
        task=digits_task(rounds),
        seed=SEED,
        private=False,
        expected_sites=SITES,
        export=False,
        durable=False,
    )
    home.store_plan(plan)
    return plan


def site_daemon(partition: int, key: VerifyingKey, folder: Path | None) -> SiteDaemon:
    """A site; without a folder its ledger and outbox live in memory."""
    name, rows = site_name(partition), site_rows(partition)
    ledger: Path | str = ":memory:" if folder is None else folder / name / "ledger.db"
    outbox: Path | str = ":memory:" if folder is None else folder / name / "outbox.db"
    unlimited = Budget(epsilon=math.inf)
    return SiteDaemon(
        SiteConfig(site=name, training_budget=unlimited, evaluation_budget=unlimited),
        SiteData(rows, rows.take(_NO_ROW), secret=bytes(16)),
        Ledger(ledger, _clock),
        Outbox(outbox),
        SeededNoise(SEED, f"site {name}"),
        key,
        _clock,
        signing_key=rehearsal_key(name),
    )


def site_seed(site: str, round_number: int) -> int:
    """The seed by which a site shuffles its rows in a round."""
    return seed_of_site(seed_of_round(SEED, round_number), site)


@dataclass(frozen=True)
class SiteMaker:
    """Makes the sites of a worker process, with ledger and outbox in its memory."""

    coordinator_key: bytes

    def __call__(self, name: str) -> SiteDaemon:
        """The site of this name."""
        return site_daemon(_PARTITIONS[name], VerifyingKey(self.coordinator_key), None)


def run_ours(folder: Path, rounds: int) -> Finished:
    """One run over worker processes."""
    home = CoordinatorHome(folder)
    make_plan(home, rounds)
    clock = RoundClock()
    names = {at: name for name, at in _PARTITIONS.items()}
    with WorkerGrid(names, SiteMaker(home.envelope_key.verifying.raw), WORKERS) as grid:
        state = drive(grid, home, RUN_ID, Surroundings(rehearsal_directory(names)), clock)
    return finished(home, state, clock)


def run_in_one_thread(folder: Path, rounds: int, observe: Observer | None = None) -> Finished:
    """One run in this thread."""
    home = CoordinatorHome(folder)
    make_plan(home, rounds)
    maker = SiteMaker(home.envelope_key.verifying.raw)
    nodes = {at: Node(relay(maker(name)), {SITE_KEY: name}) for name, at in _PARTITIONS.items()}
    clock = RoundClock()
    around = Surroundings(rehearsal_directory({at: name for name, at in _PARTITIONS.items()}))
    state = drive(InProcessGrid(nodes), home, RUN_ID, around, observe or clock)
    return finished(home, state, clock)


def finished(home: CoordinatorHome, state: RunState, clock: RoundClock) -> Finished:
    """Checks that the run went well.

    Raises:
        RuntimeError: it failed, or a site was left out: its times would not be those of the whole work.
    """
    if state.failure is not None or state.left_out:
        raise RuntimeError(f"the run failed: {state.failure}, left out {state.left_out[:3]}")
    return Finished(clock, home.trained_arrays(RUN_ID))


def _clock() -> int:
    return int(time.time())
