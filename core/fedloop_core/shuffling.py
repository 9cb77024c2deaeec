"""The order of rows in training without privacy: from the run's seed alone, so that a run can be repeated to the bit.

The coordinator sends one seed a round, and each site makes its own of it. Private runs draw their batches from the site's noise
source, which no coordinator knows.
"""

from __future__ import annotations

from fedloop_core.noise import SeededNoise

__all__ = ["seed_of_round", "seed_of_site"]


def seed_of_round(run_seed: int, round_number: int) -> int:
    """What the coordinator sends for a round: never 0, which stands for no seed."""
    return SeededNoise(run_seed, "order of rows").seed_for(f"round {round_number}") or 1


def seed_of_site(seed_of_round: int, site: str) -> int:
    """The seed by which one site shuffles its rows in that round."""
    return SeededNoise(seed_of_round, site).seed_for("training")
