"""What a simulation is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedloop_core.errors import UsageError
from fedloop_core.privacy.audit import AuditResult
from fedloop_simulations.attacks import AttackOrder
from fedloop_simulations.drift import DriftKind

__all__ = ["SimulationSettings"]

_SEEDS = 2**31  # what every library that is seeded takes, with room for one more a run


@dataclass(frozen=True)
class SimulationSettings:
    """One simulation. ``budget`` is the epsilon that a site's rows may spend for life; None: enough for the runs planned.

    ``label_share`` of the answers get their outcome, ``label_delay`` ticks later; ``before_share`` of each site's stream
    comes before the world changes. ``attack``: some sites lie. ``audit``: what an audit of the task has found, to be told.

    Raises:
        UsageError: a number makes no sense.
    """

    out: Path
    devices: int = 6
    seed: int | None = None
    drift: DriftKind = "covariate"
    budget: float | None = None
    label_share: float = 0.8
    label_delay: int = 1
    before_share: float = 0.25
    attack: AttackOrder | None = None
    audit: AuditResult | None = None

    def __post_init__(self) -> None:
        """Refuses what cannot be simulated."""
        if self.devices < 1:
            raise UsageError(f"there must be at least 1 device, not {self.devices}.")
        if self.budget is not None and not self.budget > 0:
            raise UsageError(f"the budget for life must be above 0, not {self.budget:g}.")
        if self.seed is not None and not 0 <= self.seed < _SEEDS:
            raise UsageError(f"a seed is a whole number from 0 to {_SEEDS - 1}, not {self.seed}.")
