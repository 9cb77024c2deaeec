"""The coordinator of a simulation: runs, releases and rollouts over a folder of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from fedloop_clients.endpoint import SiteEndpoint
from fedloop_core.task import Task
from fedloop_edge.hub import ReceivedStatus
from fedloop_proto.fleet.v1 import fleet_pb2
from fedloop_server.home import CoordinatorHome
from fedloop_server.registry import Stage, VersionRecord
from fedloop_server.release import PublishedArtifact, ReleaseRepository
from fedloop_server.rollout import DeviceReported, Outcome, Phase, RolloutController
from fedloop_server.runs.events import Event
from fedloop_server.runs.paying import charge_of_task
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import RunState
from fedloop_server.whole_sites.budget import SiteBudget
from fedloop_simulations.federation import run_in_process

__all__ = ["Coordinator"]

_OUTCOMES: Mapping[int, Outcome] = {
    fleet_pb2.DEVICE_STATE_SERVING: Outcome.SERVING,
    fleet_pb2.DEVICE_STATE_REFUSED: Outcome.REFUSED,
    fleet_pb2.DEVICE_STATE_ROLLED_BACK: Outcome.ROLLED_BACK,
}


def _clock() -> int:
    return int(time.time())


class Coordinator:
    """Registry, release repository and rollout controller of one task; ``whole_sites`` is the budget for those."""

    def __init__(self, folder: Path, task: Task, whole_sites: SiteBudget) -> None:
        self._whole_sites = whole_sites
        self.home = CoordinatorHome(folder)
        self._task = task
        self.registry = self.home.registry()
        self.releases = ReleaseRepository.create(folder / "releases", self.home.blobs(), _clock)
        self.releases.delegate_task(task.name)
        self._rollouts = RolloutController(folder / "rollouts", self.releases, _clock)

    def run(
        self, plan: RunPlan, endpoints: Mapping[str, SiteEndpoint], observe: Callable[[RunState, Event], None]
    ) -> RunState:
        """Drives one run to its end."""
        return run_in_process(self.home, plan, endpoints, observe, self._whole_sites)

    def hides(self, site: str, task: Task) -> bool:
        """Whether the budget for whole sites admits one more run of the task with this one."""
        charge = charge_of_task(task)
        if charge is None:
            return True
        with closing(self.home.whole_sites(self._whole_sites)) as book:
            return not book.refusals("", (site,), charge)

    def spent_on_whole_sites(self) -> dict[str, float]:
        """Epsilon of each whole site that was charged, over all runs."""
        with closing(self.home.whole_sites(self._whole_sites)) as book:
            return {name: account.spent for name, account in sorted(book.state().accounts.items())}

    def publish(self, version: int) -> None:
        """Signs a version's artifacts into the release; it is then canary."""
        record = self.version(version)
        artifacts = [self.artifact(version, artifact.kind) for artifact in record.artifacts]
        self.releases.publish_version(self._task.name, version, artifacts)
        self.registry.promote(self._task.name, version, Stage.CANARY)

    def begin_rollout(self, version: int, members: Mapping[str, Sequence[str]]) -> None:
        """Opens the first wave; ``members`` are device ids by group."""
        production = self.registry.production(self._task.name)
        previous = None if production is None else production.number
        self._rollouts.start(self._task, version, previous, members)

    def advance_rollout(self) -> Phase:
        """Decides what is due; a version whose rollout is complete is production."""
        self._rollouts.tick(self._task.name)
        state = self._rollouts.state(self._task.name)
        if state is None:
            return Phase.PLANNED
        if state.phase is Phase.COMPLETE and self.version(state.version).stage is Stage.CANARY:
            self.registry.promote(self._task.name, state.version, Stage.PRODUCTION)
        if state.phase is Phase.ABORTED and self.version(state.version).stage is Stage.CANARY:
            self.registry.promote(self._task.name, state.version, Stage.RETIRED, state.reason)
        return state.phase

    def rollout_reason(self) -> str:
        """Why the last rollout ended as it did."""
        state = self._rollouts.state(self._task.name)
        return "" if state is None else state.reason

    def status(self, device_id: str, report: ReceivedStatus) -> None:
        """A device's report, passed on by its hub."""
        outcome = _OUTCOMES.get(report.state)
        if outcome is not None and self._rollouts.state(self._task.name) is not None:
            reported = DeviceReported(device_id, outcome, report.version, report.assignment_counter)
            self._rollouts.handle(self._task.name, reported)

    def version(self, number: int) -> VersionRecord:
        """What the registry knows of a version."""
        return self.registry.version(self._task.name, number)

    def artifact(self, version: int, kind: str) -> PublishedArtifact:
        """An artifact's files."""
        return self.registry.read_artifact(self._task.name, version, kind)

    def close(self) -> None:
        """Closes the registry."""
        self.registry.close()
