"""Noise on counts: the right distribution from both sources."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chisquare

from fedloop_clients.privacy.mechanisms import noised_counts
from fedloop_core.noise import NoiseSource, SeededNoise, SystemNoise


@pytest.mark.parametrize("noise", [SystemNoise(), SeededNoise(3)], ids=["system", "seeded"])
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_noise_is_discrete_laplace(noise: NoiseSource, scale: float) -> None:
    drawn = np.array(noised_counts([100] * 20_000, scale, noise)) - 100
    reach = math.ceil(scale * 4)
    a = math.exp(-1 / scale)
    weights = (1 - a) / (1 + a) * a ** np.abs(np.arange(-reach, reach + 1))
    observed = np.array([(drawn == x).sum() for x in range(-reach, reach + 1)])
    observed = np.append(observed, len(drawn) - observed.sum())
    expected = np.append(weights, 1 - weights.sum()) * len(drawn)
    assert chisquare(observed, expected).pvalue > 1e-4


def test_a_seeded_source_repeats_and_says_that_it_is_not_private() -> None:
    assert noised_counts([5, 6], 3.0, SeededNoise(1)) == noised_counts([5, 6], 3.0, SeededNoise(1))
    assert not SeededNoise(1).private
    assert SystemNoise().private
