"""What happened in a simulation, as it happened: the raw material of summary and report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fedloop_server.runs.state import RunState
from fedloop_simulations.attacks.effect import BackdoorRate

__all__ = ["DriftPoint", "RunTold", "Story", "VersionPoint"]


@dataclass(frozen=True)
class DriftPoint:
    """One window at one site: ``score`` against a threshold of 1, and whether the site's verdict told drift."""

    tick: int
    site: str
    version: int
    window: int
    score: float
    drifted: bool


@dataclass(frozen=True)
class VersionPoint:
    """The version that a device serves from this tick on."""

    tick: int
    device: str
    version: int


@dataclass(frozen=True)
class RunTold:
    """A run that has ended; ``held_out`` is the task's measure of its model at each site on all rows that it never saw.

    ``backdoor`` is told where a site had planted one.
    """

    run_id: str
    state: RunState
    held_out: dict[str, float]
    backdoor: BackdoorRate | None = None


@dataclass
class Story:
    """Series and events in order; ``seconds`` of each stage."""

    runs: list[RunTold] = field(default_factory=list)
    drift: list[DriftPoint] = field(default_factory=list)
    versions: list[VersionPoint] = field(default_factory=list)
    events: list[tuple[int, str]] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    tick: int = 0
    injected_at: int | None = None
    detected: DriftPoint | None = None
    retrained_at: int | None = None

    def tell(self, text: str) -> None:
        """Notes an event at the current tick."""
        self.events.append((self.tick, text))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the time that the body takes to a stage."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
