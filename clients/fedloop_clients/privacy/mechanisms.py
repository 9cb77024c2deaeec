"""Noise on whole numbers, ready to be released."""

from __future__ import annotations

from collections.abc import Sequence

import opendp.prelude as dp

from fedloop_core.noise import NoiseSource

__all__ = ["noised_counts"]

dp.enable_features("contrib")


def noised_counts(counts: Sequence[int], scale: float, noise: NoiseSource) -> tuple[int, ...]:
    """Adds discrete Laplace noise to each count (Ghosh, Roughgarden and Sundararajan 2009, arXiv 0811.2841).

    Charged ``sensitivity / scale`` in pure differential privacy, where one unit moves the sum of all counts by at most
    ``sensitivity``. OpenDP draws the noise from the operating system's random source, exactly; it cannot be keyed, so a
    rehearsal's noise comes from its own source.

    Args:
        counts: exact whole numbers.
        scale: of the noise, above 0.
        noise: decides which of the two draws.
    """
    if not noise.private:
        drawn = noise.discrete_laplace(scale, len(counts)).tolist()
        return tuple(count + extra for count, extra in zip(counts, drawn, strict=True))
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    measurement = dp.m.make_geometric(*space, scale=scale)
    return tuple(int(value) for value in measurement([int(count) for count in counts]))
