"""A site of a simulation: the real daemon, ledger, hub and watch over the rows that the simulator gives it."""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.data.site_data import EVALUATION, ORIGINAL, FeedbackAdded, SiteData
from fedloop_clients.evaluation import newest_rows
from fedloop_clients.feedback.charging import (
    charge_late_verdicts,
    charge_verdicts,
    find_payers,
    released_label_count,
)
from fedloop_clients.feedback.store import FeedbackStore
from fedloop_clients.feedback.watch import KnownUnits, SiteWatch, StatusObserver, WatchedWindow, reference_of
from fedloop_clients.monitoring.monitor import MonitorPlan
from fedloop_clients.monitoring.verdict import VerdictPlan
from fedloop_clients.outbox import Outbox
from fedloop_clients.policy import Budget, SiteConfig, SitePolicy
from fedloop_clients.privacy.ledger import Ledger, Spend
from fedloop_core.artifact import ArtifactDescription
from fedloop_core.keys import VerifyingKey
from fedloop_core.noise import NoiseSource, SeededNoise, SystemNoise
from fedloop_core.privacy.charges import NonPrivateCharge, PureCharge
from fedloop_core.profile import Profile
from fedloop_core.task import Task
from fedloop_core.task.aggregation import Mean
from fedloop_core.task.document import CustomModel
from fedloop_edge.agent.runtimes import load_runtime
from fedloop_edge.hub import DeviceRegistry, Hub, HubAddresses, HubConfig, ReleaseSource
from fedloop_server.release import PublishedArtifact
from fedloop_simulations.data.world import SiteRows
from fedloop_simulations.keys import rehearsal_consortium, rehearsal_key

__all__ = ["SimulatedSite", "SiteParts"]

_DAY_SECONDS = 86_400


def _clock() -> int:
    return int(time.time())


@dataclass(frozen=True)
class SiteParts:
    """What the simulator decides for a site.

    ``sites`` are the names of all. ``lifetime_epsilon`` is infinite for a task without privacy; ``stream_rows`` is how many of its source's rows its
    devices will see.
    """

    folder: Path
    task: Task
    sites: tuple[str, ...]
    stream_rows: int
    seed: int | None
    lifetime_epsilon: float
    coordinator_key: VerifyingKey
    source: ReleaseSource
    observe: StatusObserver


class SimulatedSite:
    """One site: ``daemon`` answers the coordinator, ``hub`` serves the devices, ``watch`` looks at what they send."""

    def __init__(self, rows: SiteRows, parts: SiteParts) -> None:
        self.name = rows.name
        self.rows = rows
        self._task = parts.task
        self._sites = len(parts.sites)
        self._noise = _noise(parts.seed, rows.name)
        schema = parts.task.feature_schema
        self.data = SiteData(
            rows.train,
            rows.evaluation,
            secret=_secret(parts.seed, rows.name),
            skipped=rows.skipped,
            read=len(rows.train) + len(rows.evaluation) + parts.stream_rows,
        )
        key = rehearsal_key(rows.name)
        self.ledger = Ledger(parts.folder / "ledger.db", _clock, site=rows.name, key=key)
        self._outbox = Outbox(parts.folder / "outbox.db")
        budget = Budget(epsilon=parts.lifetime_epsilon, delta=parts.task.privacy.delta)
        self._config = SiteConfig(
            site=rows.name, policy=_policy(parts.task), training_budget=budget, evaluation_budget=budget
        )
        consortium = rehearsal_consortium(parts.sites)
        self.daemon = SiteDaemon(
            self._config,
            self.data,
            self.ledger,
            self._outbox,
            self._noise,
            parts.coordinator_key,
            _clock,
            signing_key=key,
            consortium=lambda: consortium,
        )
        self._store = FeedbackStore(parts.folder / "feedback.db", schema)
        self.watch = SiteWatch(parts.task, self._store, self._noise.derive("watch"), parts.observe)
        self.devices = DeviceRegistry(parts.folder / "hub" / "devices.db")
        config = HubConfig(folder=parts.folder / "hub", site=rows.name, schemas={parts.task.name: schema})
        self.hub = Hub(config, parts.source, self.watch, self.devices)
        self.addresses: HubAddresses = self.hub.start()
        self.feedback_rows = 0
        self._counted_from: int | None = None

    def begin_watch(
        self, version: int, artifact: PublishedArtifact, window_rows: int, reference_rows: int
    ) -> tuple[str, ...]:
        """Pays for the verdicts about a version, takes its reference from the newest rows that can pay, and watches it.

        A version that was trained on feedback lives in the world that the feedback came from: older rows would make that
        world look like a drift. Of a unit at most as many rows count as the task says.

        Args:
            version: the version that devices are about to serve.
            artifact: one of its files, for its profile and its predictions.
            window_rows: rows of a window.
            reference_rows: rows that the coordinator knows the reference to have, noised where that is private: noise and
                thresholds follow from this number and not from the exact one.

        Returns:
            Blocks that cannot pay, of whose units no row is looked at.

        Raises:
            BudgetExhausted: no block can pay; the version is then not watched here.
        """
        self.watch.rest()
        self._counted_from = None
        description = ArtifactDescription.from_bytes(artifact.description)
        profile = Profile.from_bytes(artifact.profile)
        runtime = load_runtime(description, artifact.model)
        most = self._task.feedback.rows_per_unit
        charge = self._verdict_charge
        payers = find_payers(self.ledger, self.data, charge, self._task)
        training, evaluation = (
            newest_rows(rows, most) for rows in (payers.reference.training, payers.reference.evaluation)
        )
        rows = training.concatenate(evaluation)
        reference = reference_of(profile, runtime, rows, evaluation)
        known = reference_rows if self._task.privacy.private else len(rows)
        plan = MonitorPlan.for_task(
            self._task, sites=self._sites, window_rows=window_rows, reference_rows=max(known, 1)
        )
        units = 1 if self._task.privacy.unit_column is None else most
        verdicts = VerdictPlan.for_profile(plan, profile, self._verdict_epsilon, units)
        charge_verdicts(self.ledger, self.data, self._config, charge, payers, task=self._task.name, version=version)
        known_units = None
        if payers.left_out:
            known_units = KnownUnits(lambda unit: self.data.home_block(unit) not in payers.left_out, most)
        self.watch.begin(version, reference, plan, verdicts, known_units)
        return payers.left_out

    def close_window(self, least_rows: int) -> WatchedWindow | None:
        """Judges the open window once it has so many rows."""
        return self.watch.close_window(least_rows=least_rows)

    def count_labels_from_now(self) -> None:
        """From now on labelled examples are new; nothing when they are counted already."""
        if self._counted_from is None:
            self._counted_from = self._store.newest_place()

    def tell_label_count(self, version: int, tick: int) -> int | None:
        """How many units have labelled examples that are new, as the coordinator may know it; None before it counts.

        In a private run it is told and paid for also where there are none: that there are none is told with it.

        Raises:
            BudgetExhausted: their blocks cannot pay.
        """
        if self._counted_from is None:
            return None
        retraining, private = self._task.retraining, self._task.privacy.private
        units = self._store.units_waiting(self._counted_from)
        if not (units or private):
            return None
        return released_label_count(
            self.ledger,
            self.data,
            self._config,
            units,
            retraining.label_count_epsilon if private else math.inf,
            self._noise.derive(f"label count {version} {tick}"),
            task=self._task,
            version=version,
        )

    def admit_feedback(self) -> FeedbackAdded:
        """Lets the labelled examples that have come join the site's data, once they have paid for what was told of them.

        Raises:
            BudgetExhausted: the blocks that they would join cannot pay; the examples go on waiting.
        """
        self._store.forget(_clock() - self._task.feedback.retention_days * _DAY_SECONDS)
        versions = set(self._store.versions_waiting())
        if self._task.privacy.unit_column is not None and self.watch.version is not None:
            versions.add(self.watch.version)
        charge_late_verdicts(
            self.ledger,
            self.data,
            self._config,
            self._verdict_charge,
            task=self._task.name,
            versions=versions,
        )
        waiting = self._store.waiting()
        added = self.daemon.add_feedback(waiting.rows, self._task.feedback.evaluation_share)
        self._store.mark_admitted(waiting)
        self.feedback_rows += len(waiting.rows)
        return added

    @property
    def _verdict_charge(self) -> PureCharge | NonPrivateCharge:
        return PureCharge(epsilon=self._verdict_epsilon) if self._task.privacy.private else NonPrivateCharge()

    @property
    def _verdict_epsilon(self) -> float:
        return self._task.retraining.verdict_epsilon if self._task.privacy.private else math.inf

    def spends(self) -> tuple[Spend, Spend] | None:
        """What the oldest training rows and the oldest evaluation rows have spent for life; None without privacy."""
        if not self._task.privacy.private:
            return None
        return self.ledger.spend(ORIGINAL), self.ledger.spend(EVALUATION)

    def close(self) -> None:
        """Stops the hub and closes all files."""
        self.hub.stop()
        self.devices.close()
        self._store.close()
        self._outbox.close()
        self.ledger.close()


def _noise(seed: int | None, site: str) -> NoiseSource:
    return SystemNoise() if seed is None else SeededNoise(seed, f"site {site}")


def _policy(task: Task) -> SitePolicy:
    """Whoever rehearses a task of their own has its model's module on this machine, and means it; and as many sites behind a sum as it says."""
    modules = (task.model.module,) if isinstance(task.model, CustomModel) else ()
    least = task.aggregation.minimum_sites if isinstance(task.aggregation, Mean) else None
    return SitePolicy(model_modules=modules, minimum_sites=least)


def _secret(seed: int | None, site: str) -> bytes:
    if seed is None:
        return secrets.token_bytes(32)
    return hashlib.sha256(f"fedloop rehearsal secret {seed} {site}".encode()).digest()
