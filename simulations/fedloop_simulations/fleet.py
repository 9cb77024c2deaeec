"""Devices of a simulation: real agents with real connections, fed with their site's stream."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedloop_core.dataset import Dataset
from fedloop_core.errors import DeviceError, UsageError
from fedloop_core.schema import ClassLabel, Label, RegressionLabel, SurvivalLabel
from fedloop_core.task import Task
from fedloop_edge.agent.agent import AgentConfig, EdgeAgent, SyncOutcome
from fedloop_edge.agent.runtimes.selection import available_runtimes, preferred_kinds
from fedloop_edge.hub import issue_token
from fedloop_server.rollout import next_group
from fedloop_simulations.site import SimulatedSite

__all__ = ["Answered", "Fleet", "SimulatedDevice"]


@dataclass(frozen=True)
class Answered:
    """One answer of a device to one row of the stream: the class's place or the number, and the row's outcome."""

    tick: int
    version: int
    predicted: float
    outcome: NDArray[np.generic]


@dataclass(frozen=True)
class _DueOutcome:
    tick: int
    prediction_id: str
    label: str
    unit: str


@dataclass
class SimulatedDevice:
    """An agent and the rows that it will see, ``rows_per_tick`` at a time.

    ``told`` says of which rows the outcome comes back, ``units_told`` whether with the patient or customer that it is about.
    """

    name: str
    site: SimulatedSite
    group: str
    agent: EdgeAgent
    rows_per_tick: int
    rows: Dataset
    told: NDArray[np.bool_]
    units_told: bool
    seen: int = 0
    answers: list[Answered] = field(default_factory=list)
    _due: deque[_DueOutcome] = field(default_factory=deque)

    def predict(self, tick: int, label: Label, delay: int) -> None:
        """Answers the next rows one by one."""
        for place in range(self.seen, min(self.seen + self.rows_per_tick, len(self.rows))):
            row = self.rows.take([place])
            (answer,) = self.agent.predict(row.inputs)
            predicted = float(answer.index) if isinstance(label, ClassLabel) else float(answer.label)
            self.answers.append(Answered(tick, answer.version, predicted, row.labels[0]))
            self.seen = place + 1
            outcome = _spelled(label, row.labels[0])
            if self.told[place] and outcome is not None:
                self._due.append(_DueOutcome(tick + delay, answer.id, outcome, row.units[0] if self.units_told else ""))

    def tell_outcomes(self, tick: int) -> None:
        """Gives the agent the outcomes that have become known."""
        while self._due and self._due[0].tick <= tick:
            due = self._due.popleft()
            self.agent.give_label(due.prediction_id, due.label, due.unit)


class Fleet:
    """All devices: spread over the sites in turn, runtimes in turn, enrolled at their sites' hubs.

    Raises:
        UsageError: no installed runtime takes one of the task's artifacts.
    """

    def __init__(self, task: Task, sites: Sequence[SimulatedSite], count: int, folder: Path) -> None:
        self._label = task.label
        runtimes = _usable_runtimes(task)
        shares = {site.name: len(range(at, count, len(sites))) for at, site in enumerate(sites)}
        groups: dict[str, int] = {}
        self.devices: list[SimulatedDevice] = []
        for number in range(count):
            site, at_site = sites[number % len(sites)], 1 + number // len(sites)
            group = next_group(task.rollout, groups)
            groups[group] = groups.get(group, 0) + 1
            rows_per_tick = -(-task.feedback.sketch_rows // shares[site.name])
            agent = EdgeAgent(
                AgentConfig(
                    folder=folder / f"{site.name}-{at_site}",
                    task=task.name,
                    enrollment_address=site.addresses.enrollment,
                    fleet_address=site.addresses.fleet,
                    certificate_authority=site.hub.certificate_authority,
                    runtime=runtimes[number % len(runtimes)],
                    sketch_rows=rows_per_tick,
                )
            )
            agent.enroll(issue_token(site.devices, group=group, site=site.name, now_unix=int(time.time())))
            self.devices.append(
                SimulatedDevice(
                    name=f"{site.name}/device-{at_site}",
                    site=site,
                    group=group,
                    agent=agent,
                    rows_per_tick=rows_per_tick,
                    rows=site.rows.train.take([]),
                    told=np.zeros(0, dtype=np.bool_),
                    units_told=task.privacy.unit_column is not None,
                )
            )

    def rows_per_tick(self, site: str) -> int:
        """Rows that the devices of a site see in one tick together."""
        return sum(device.rows_per_tick for device in self.at(site))

    def at(self, site: str) -> tuple[SimulatedDevice, ...]:
        """The devices of a site."""
        return tuple(device for device in self.devices if device.site.name == site)

    def members(self) -> Mapping[str, tuple[str, ...]]:
        """Device ids by rollout group."""
        names = sorted({device.group for device in self.devices})
        return {name: tuple(d.agent.device_id for d in self.devices if d.group == name) for name in names}

    def give_stream(self, site: str, rows: Dataset, told_share: float, seed: Sequence[int]) -> None:
        """Deals a site's stream to its devices in turn; outcomes come back for a random share of the rows."""
        devices = self.at(site)
        told = np.random.default_rng(list(seed)).random(len(rows)) < told_share
        for number, device in enumerate(devices):
            places = np.arange(number, len(rows), len(devices))
            device.rows, device.told = rows.take(places), told[places]

    def sync(self) -> Iterator[tuple[SimulatedDevice, SyncOutcome]]:
        """Brings every device to its assigned version and sends its reports."""
        for device in self.devices:
            outcome = device.agent.sync()
            self.flush(device)
            yield device, outcome

    def tick(self, tick: int, delay: int) -> None:
        """One tick: outcomes that have become known, answers to the next rows, and everything sent to the hubs."""
        for device in self.devices:
            device.tell_outcomes(tick)
            device.predict(tick, self._label, delay)
            self.flush(device)

    def finished(self) -> bool:
        """Whether every row was seen."""
        return all(device.seen == len(device.rows) for device in self.devices)

    def flush(self, device: SimulatedDevice) -> None:
        """Sends what waits; on loopback anything that stays is a fault worth stopping for.

        Raises:
            DeviceError: the hub did not take it.
        """
        outcome = device.agent.flush()
        if outcome.code:
            raise DeviceError(
                f"device {device.name} cannot deliver to the hub of {device.site.name}: {outcome.code}.",
                hint=f"{outcome.pending} items wait.",
            )

    def close(self) -> None:
        """Closes all agents."""
        for device in self.devices:
            device.agent.close()


def _spelled(label: Label, outcome: np.generic) -> str | None:
    """An outcome as a device is told it; none where devices cannot be told: a survival outcome is no single value."""
    match label:
        case ClassLabel(classes=classes):
            return classes[int(outcome)]
        case RegressionLabel():
            return f"{float(outcome):.9g}"
        case SurvivalLabel():
            return None


def _usable_runtimes(task: Task) -> tuple[str, ...]:
    usable = tuple(
        name for name in available_runtimes() if any(kind in task.export.targets for kind in preferred_kinds(name))
    )
    if not usable:
        raise UsageError(
            f"no installed runtime takes an artifact of task {task.name!r} ({', '.join(task.export.targets)}).",
            hint="Install fedloop[edge] for ONNX or fedloop[edge-litert] for TFLite.",
        )
    return usable
