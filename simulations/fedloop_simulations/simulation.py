"""The whole loop on one machine, from the first round to version 2 on the devices.

Time is counted in ticks: in each, every device sees a window of rows. Before the world changes come some ticks; from then
on the rows are shifted. The coordinator's loop decides when the next run starts; the rows seen after its version went live
tell what it won back.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from fedloop_clients.endpoint import SiteEndpoint
from fedloop_clients.monitoring.monitor import DriftKind
from fedloop_clients.privacy.affording import affords_run
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.errors import BudgetExhausted, QualityGateFailed, RunError
from fedloop_core.schema import SurvivalLabel
from fedloop_core.task import Task
from fedloop_core.task.document import ExportTarget, FederatedAveraging
from fedloop_edge.agent.agent import SyncResult
from fedloop_server.loop import (
    AskHuman,
    Clock,
    LabelCount,
    LedgerHeadroom,
    LoopState,
    Refuse,
    RunEnded,
    SiteSilent,
    SiteVerdict,
    StartRun,
    Wait,
    step,
)
from fedloop_server.loop.events import Event as LoopEvent
from fedloop_server.rollout import Phase
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import RunState
from fedloop_server.whole_sites.budget import SiteBudget
from fedloop_simulations.attacks import Assault
from fedloop_simulations.attacks.effect import BackdoorRate, backdoor_rate
from fedloop_simulations.attacks.kinds import ALittle, Backdoor
from fedloop_simulations.attacks.little import LittleLie
from fedloop_simulations.attacks.lying import LyingSite, multiplied
from fedloop_simulations.coordinator import Coordinator
from fedloop_simulations.data import World
from fedloop_simulations.drift import apply, drift_of_kind
from fedloop_simulations.fleet import Fleet
from fedloop_simulations.progress import Progress
from fedloop_simulations.scoring import measured_outputs, metric_of
from fedloop_simulations.settings import SimulationSettings
from fedloop_simulations.site import SimulatedSite, SiteParts
from fedloop_simulations.story import DriftPoint, RunTold, Story, VersionPoint

__all__ = ["Simulation"]

_MOST_ROLLOUT_STEPS = 20
_BUDGET_IN_RUNS = 2.5  # the first run and one more, through a filter at one order, which holds less than both added up

_TOLD: Mapping[DriftKind, Literal["covariate", "prediction", "quality"]] = {
    DriftKind.COVARIATE: "covariate",
    DriftKind.PREDICTION: "prediction",
    DriftKind.QUALITY: "quality",
}


class Simulation:
    """One simulation over a world; ``run`` once, then read ``story``, ``sites``, ``fleet`` and ``coordinator``."""

    def __init__(self, settings: SimulationSettings, world: World, progress: Progress, seed: int | None = None) -> None:
        self.settings = settings
        self.task = world.task
        self.world = world
        self.story = Story()
        self._progress = progress
        self._seed = secrets.randbits(31) if seed is None else seed
        self.budget = self._budget()
        named = [rows.name for rows in world.sites]
        self.assault: Assault | None = None if settings.attack is None else settings.attack.by(named, world.task)
        with self.story.stage("set-up"):
            self.coordinator = Coordinator(settings.out / "coordinator", self.task, self._whole_site_budget())
            self.sites = [self._site(at) for at in range(len(world.sites))]
        self.fleet: Fleet | None = None
        self._rows_told: dict[str, int] = {}
        self._silent: list[SiteSilent] = []

    def run(self) -> None:
        """Runs the loop to the end of the stream.

        Raises:
            RunError: the first run gave no version.
            QualityGateFailed: its gate holds the first version back.
        """
        state = self._train(self.task, warm_from=None)
        if state.version is None:
            self._tell("the model is scaled by each site's own rows and cannot be released to devices")
            return
        if not self._released(state):
            if self.assault is not None:
                return  # that the gate holds it back is what a rehearsal of an attack is for
            raise QualityGateFailed(
                f"the quality gate holds version {state.version}: {_reasons(state)}.",
                hint="Train longer, with more rows or more epsilon, or look at gates.quality in the task.",
            )
        with self.story.stage("roll-out"):
            self.fleet = Fleet(self.task, self._members(state), self.settings.devices, self.settings.out / "devices")
            self._roll_out(self.fleet, state.version)
        if isinstance(self.task.label, SurvivalLabel):
            self._tell("devices answer with log hazards; outcomes of a survival label do not come back from them")
        self._deal_stream(self.fleet)
        self._watch(self.fleet, state.version, self._rows_told)
        loop = LoopState.start(self.task, tuple(site.name for site in self._members(state)), state.version)
        while not self.fleet.finished():
            loop = self._tick(self.fleet, loop)

    def close(self) -> None:
        """Stops hubs and closes files."""
        if self.fleet is not None:
            self.fleet.close()
        for site in self.sites:
            site.close()
        self.coordinator.close()

    # Runs.

    def _train(self, task: Task, warm_from: int | None) -> RunState:
        """Drives one run to its end.

        Raises:
            RunError: it failed.
        """
        number = len(self.story.runs) + 1
        plan = RunPlan(
            run_id=f"{'run' if self.assault is None else 'under-attack'}-{number}",
            task=task,
            seed=self._seed + number,
            private=self.settings.seed is None,
            expected_sites=len(self.sites),
            warm_from=warm_from,
            export=task.preprocessing.scaling != "per-site",
        )
        self._progress.run_begins(plan)
        with self.story.stage(f"run {number}"):
            endpoints = {site.name: self._endpoint(site) for site in self.sites}
            state = self.coordinator.run(plan, endpoints, self._progress.run_event)
        self._progress.run_ends()
        if state.failure is not None:
            raise RunError(f"{plan.run_id} failed ({state.failure.code}): {state.failure.reason}")
        self._rows_told = {member.site: member.rows for member in state.members}
        self.story.runs.append(RunTold(plan.run_id, state, self._held_out(plan, state), self._backdoor(plan)))
        return state

    def _released(self, state: RunState) -> bool:
        gate = state.gate
        if gate is None or not gate.released:
            self._tell(f"version {state.version} is held by the quality gate")
            return False
        undecided = sum(": undecidable" in reason for reason in gate.reasons)
        said = (
            f"; {undecided} of {len(gate.reasons)} bounds are undecidable, which the task lets pass"
            if undecided
            else ""
        )
        self._tell(f"version {state.version} passes the quality gate{said}")
        return True

    def _held_out(self, plan: RunPlan, state: RunState) -> dict[str, float]:
        """The task's measure at each site on all rows that training never saw; only a rehearsal may look at them all.

        A run that starts warm has seen rows of the stream as feedback: nothing is told of it here.
        """
        task = plan.task
        if plan.warm_from is not None or not isinstance(task.training, FederatedAveraging):
            return {}
        trainer = LocalTrainer(task)
        arrays = self.coordinator.home.trained_arrays(plan.run_id)
        found: dict[str, float] = {}
        members = {member.site for member in state.members}
        for rows, stream in zip(self.world.sites, self.world.stream, strict=True):
            unseen = rows.evaluation.concatenate(stream.rows)
            if rows.name in members and len(unseen):
                outputs = trainer.outputs(arrays, unseen, rows.train)
                metric = metric_of(task.label, measured_outputs(task.label, outputs, unseen.labels))
                if metric is not None:
                    found[rows.name] = metric.value
        return found

    # Attacks.

    def _endpoint(self, site: SimulatedSite) -> SiteEndpoint:
        """The site, or one that lies."""
        if self.assault is None or site.name not in self.assault.sites:
            return site.daemon
        attack = self.assault.attack
        if isinstance(attack, ALittle):
            place = self.assault.sites.index(site.name)
            return LyingSite(site.name, site.daemon, LittleLie(attack, self.task, site.rows.train, self._seed + place))
        return LyingSite(site.name, site.daemon, multiplied(attack.factor))

    def _backdoor(self, plan: RunPlan) -> BackdoorRate | None:
        """How well a backdoor opens, where one was planted."""
        if self.assault is None or not isinstance(self.assault.attack, Backdoor):
            return None
        arrays = self.coordinator.home.trained_arrays(plan.run_id)
        unseen = [
            (rows.evaluation.concatenate(stream.rows), rows.train)
            for rows, stream in zip(self.world.sites, self.world.stream, strict=True)
        ]
        return backdoor_rate(LocalTrainer(plan.task), arrays, plan.task.feature_schema, unseen)

    # Releases.

    def _roll_out(self, fleet: Fleet, version: int) -> None:
        """Publishes a version and takes it through its waves.

        Raises:
            RunError: the rollout does not end, or devices refuse the version.
        """
        self.coordinator.publish(version)
        self.coordinator.begin_rollout(version, fleet.members())
        for _ in range(_MOST_ROLLOUT_STEPS):
            for device, outcome in fleet.sync():
                served = device.agent.serving_version
                if outcome.result is SyncResult.SWITCHED and served is not None:
                    self.story.versions.append(VersionPoint(self.story.tick, device.name, served))
                    self._progress.device_switched(device.name, served)
            phase = self.coordinator.advance_rollout()
            if phase is Phase.COMPLETE:
                self._tell(f"version {version} serves on all devices")
                return
            if phase is Phase.ABORTED:
                raise RunError(f"the rollout of version {version} was aborted: {self.coordinator.rollout_reason()}")
        raise RunError(f"the rollout of version {version} did not end.", hint="Look at the devices' reports.")

    def _watch(self, fleet: Fleet, version: int, rows_told: Mapping[str, int]) -> None:
        """Every site watches the version; one whose budget is gone does without, by name."""
        kind = self._watched_kind()
        artifact = self.coordinator.artifact(version, kind)
        self._silent = []
        for site in self.sites:
            if not fleet.at(site.name):
                continue
            rows, known = fleet.rows_per_tick(site.name), rows_told.get(site.name, 1)
            try:
                left_out = site.begin_watch(version, artifact, rows, reference_rows=known)
            except BudgetExhausted as error:
                self._tell(f"{site.name} cannot pay for verdicts about version {version}: {error.message}")
                self._silent.append(SiteSilent(site=site.name, version=version, about="drift"))
                continue
            if left_out:
                self._tell(
                    f"{site.name} tells drift under version {version} by rows that come back with a label, without those of "
                    f"units in {', '.join(left_out)}, which cannot pay for it"
                )

    def _watched_kind(self) -> ExportTarget:
        preferred: tuple[ExportTarget, ...] = ("onnx-int8", "onnx-fp32")
        return next((kind for kind in preferred if kind in self.task.export.targets), self.task.export.targets[0])

    # The stream.

    def _deal_stream(self, fleet: Fleet) -> None:
        """Deals each site's stream to its devices: first rows as they are, then rows of the changed world."""
        drift = drift_of_kind(self.settings.drift)
        schema = self.task.feature_schema
        streams = {stream.name: stream.rows for stream in self.world.stream}
        ticks = min(
            (len(streams[site.name]) // fleet.rows_per_tick(site.name) for site in self.sites if fleet.at(site.name)),
            default=0,
        )
        before = max(1, round(self.settings.before_share * ticks))
        self.story.injected_at = None if self.settings.drift == "none" else before + 1
        for number, site in enumerate(self.sites):
            if not fleet.at(site.name):
                continue
            rows = streams[site.name]
            quiet = min(before * fleet.rows_per_tick(site.name), len(rows))
            calm = rows.take(np.arange(quiet))
            changed = apply(drift, rows.take(np.arange(quiet, len(rows))), schema, self._seed)
            dealt = calm.concatenate(changed)
            fleet.give_stream(site.name, dealt, self.settings.label_share, (self._seed, number))
        self._progress.stream_begins(sum(len(device.rows) for device in fleet.devices))

    def _tick(self, fleet: Fleet, loop: LoopState) -> LoopState:
        """One tick of the devices, then what sites and coordinator make of it."""
        self.story.tick += 1
        tick = self.story.tick
        if tick == self.story.injected_at:
            self._tell("the world changes")
        with self.story.stage("stream"):
            fleet.tick(tick, self.settings.label_delay)
            verdicts: list[LoopEvent] = [Clock(now=tick), *self._silent, *self._verdicts(fleet)]
        self._progress.stream_event(sum(device.seen for device in fleet.devices))
        loop = self._decide(fleet, loop, verdicts)
        # Labels cost privacy to count, so nobody is asked before drift is told.
        return self._decide(fleet, loop, self._labels(loop)) if loop.wants_labels else loop

    def _verdicts(self, fleet: Fleet) -> Iterable[SiteVerdict]:
        """Judges every site's open window and tells its verdict."""
        for site in self.sites:
            window = site.close_window(max(fleet.rows_per_tick(site.name), 1))
            if window is None:
                continue
            finding, verdict = window.finding, window.verdict
            point = DriftPoint(
                tick=self.story.tick,
                site=site.name,
                version=finding.version,
                window=finding.window,
                score=finding.distance / window.threshold if self.task.privacy.private else finding.score,
                drifted=verdict.drifted,
            )
            self.story.drift.append(point)
            if verdict.drifted:
                self.story.detected = self.story.detected or point
                self._tell_once(f"{site.name} tells drift under version {verdict.version}")
            yield SiteVerdict(
                site=site.name,
                version=verdict.version,
                window=verdict.window,
                drifted=verdict.drifted,
                drift=None if verdict.kind is None else _TOLD[verdict.kind],
            )

    def _labels(self, loop: LoopState) -> Iterable[LabelCount | SiteSilent]:
        """What the loop's sites tell of labelled examples that came back since drift was told."""
        for site in (site for site in self.sites if site.name in loop.sites):
            site.count_labels_from_now()
            try:
                told = site.tell_label_count(loop.version, self.story.tick)
            except BudgetExhausted as error:
                self._tell_once(f"{site.name} cannot pay for telling how many labels came back: {error.message}")
                yield SiteSilent(site=site.name, version=loop.version, about="labels")
                continue
            if told is not None:
                yield LabelCount(site=site.name, count=told)

    def _decide(self, fleet: Fleet, loop: LoopState, events: Iterable[LoopEvent]) -> LoopState:
        """Feeds the loop; starts the run that it calls for."""
        pending = list(events)
        while pending:
            loop, decision = step(loop, pending.pop(0))
            match decision:
                case Wait(ask_ledgers=asked) if asked:
                    pending.extend(self._headroom(name) for name in asked)
                case StartRun():
                    self._tell(f"retraining starts by itself: {decision.reason}")
                    pending = [RunEnded(version=self._retrain(fleet, loop, decision))]
                case Refuse(reason=reason) | AskHuman(reason=reason):
                    self._tell_once(reason)
                case Wait():
                    pass
        self.story.decisions = [f"tick {e.at}: {e.decision.reason}" for e in loop.history]
        return loop

    def _retrain(self, fleet: Fleet, loop: LoopState, decision: StartRun) -> int | None:
        """Takes the feedback in, trains warm, and rolls the version out if its gate lets it; None if not."""
        for site in self.sites:
            try:
                added = site.admit_feedback()
            except BudgetExhausted as error:
                self._tell(f"{site.name} leaves its feedback waiting: {error.message}")
                continue
            self._progress.note(
                f"{site.name} takes in {added.training_rows} labelled rows to train on "
                f"and {added.evaluation_rows} to evaluate on"
            )
        state = self._train(self._retraining_task(), warm_from=decision.warm_from)
        if state.version is None or not self._released(state):
            return None
        self.story.tick += 1
        with self.story.stage("roll-out"):
            self._roll_out(fleet, state.version)
        self.story.retrained_at = self.story.tick
        self._watch(fleet, state.version, loop.labels)
        return state.version

    def _headroom(self, name: str) -> LedgerHeadroom:
        """Whether a site's ledger would admit the next run, by the number of rows that it told for the last one, and the coordinator."""
        site, task = next(site for site in self.sites if site.name == name), self._retraining_task()
        affordable = affords_run(task, site.data, site.ledger, units=self._rows_told.get(name))
        return LedgerHeadroom(site=name, affordable=affordable, hidden=self.coordinator.hides(name, task))

    def _retraining_task(self) -> Task:
        rounds = self.task.retraining.rounds or self.task.rounds.count
        return self.task.model_copy(update={"rounds": self.task.rounds.model_copy(update={"count": rounds})})

    # Small things.

    def _site(self, at: int) -> SimulatedSite:
        rows = self.world.sites[at]
        if self.assault is not None and rows.name in self.assault.sites:
            poisoned = self.assault.attack.poisoned(rows.train, self.task.feature_schema, self._seed + at)
            rows = replace(rows, train=poisoned)
        parts = SiteParts(
            folder=self.settings.out / "sites" / rows.name,
            task=self.task,
            sites=tuple(site.name for site in self.world.sites),
            stream_rows=len(self.world.stream[at].rows),
            seed=self.settings.seed,
            lifetime_epsilon=self.budget,
            coordinator_key=self.coordinator.home.envelope_key.verifying,
            source=self.coordinator.releases,
            observe=self.coordinator.status,
        )
        return SimulatedSite(rows, parts)

    def _members(self, state: RunState) -> list[SimulatedSite]:
        """Sites that took part: the others have no model of theirs to watch, and their devices are not simulated."""
        names = {member.site for member in state.members}
        return [site for site in self.sites if site.name in names]

    def _budget(self) -> float:
        if not self.task.privacy.private:
            return math.inf
        if self.settings.budget is not None:
            return self.settings.budget
        verdicts = 1 + self.task.retraining.maximum_runs
        return _BUDGET_IN_RUNS * self.task.privacy.epsilon + verdicts * self.task.retraining.verdict_epsilon

    def _whole_site_budget(self) -> SiteBudget:
        """Enough to hide whole sites in as many runs as the sites' own budgets are for."""
        central = self.task.central_privacy
        return (
            SiteBudget()
            if central is None
            else SiteBudget(epsilon=_BUDGET_IN_RUNS * central.epsilon, delta=central.delta)
        )

    def _tell(self, text: str) -> None:
        self.story.tell(text)
        self._progress.note(text)

    def _tell_once(self, text: str) -> None:
        if all(told != text for _, told in self.story.events):
            self._tell(text)


def _reasons(state: RunState) -> str:
    return "; ".join(state.gate.reasons) if state.gate is not None else "no decision"
