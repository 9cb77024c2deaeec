"""Epsilon against independently known values: two libraries, closed forms, and 40 digits of mpmath."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloop_clients.privacy.calibration import find_noise_multiplier
from fedloop_clients.privacy.loss_distribution import epsilon_by_loss
from fedloop_core.privacy.accounting import epsilon, rdp_at
from fedloop_core.privacy.charges import Charge, GaussianCharge, NonPrivateCharge, PureCharge, SampledGaussianCharge

Mechanisms = list[tuple[float, float, int]]


def sgd(noise: float, rate: float, steps: int) -> SampledGaussianCharge:
    return SampledGaussianCharge(noise_multiplier=noise, sampling_rate=rate, steps=steps)


A = (1.1, 0.01, 1000)
COMPOSED: dict[str, tuple[Mechanisms, float, float, float]] = {  # delta, by Renyi divergence, by loss distribution
    "A": ([A], 1e-5, 1.71177, 1.51537),
    "B": ([(1.1, 256 / 60000, 14062)], 1e-5, 2.596556, 2.381686),
    "C": ([(1.0, 0.01, 1000)], 1e-5, 2.101367, 1.828244),
    "D": ([(1.0, 0.01, 10000)], 1e-5, 6.712757, 6.187745),
    "E": ([(0.8, 0.02, 500)], 1e-5, 5.371863, 4.668013),
    "F": ([(2.0, 0.1, 500)], 1e-5, 6.034562, 5.55547),
    "G": ([(4.0, 0.01, 10000)], 1e-5, 1.03549, 0.946999),
    "H": ([(0.6, 0.001, 10000)], 1e-6, 3.999186, 3.152227),
    "I": ([(1.5, 0.05, 200)], 1e-6, 2.946545, 2.694495),
    "J": ([(5.0, 1.0, 1)], 1e-5, 0.794522, 0.725522),
    "K": ([(10.0, 1.0, 100)], 1e-5, 4.728507, 4.377178),
    "L": ([(1.0, 1.0, 1)], 1e-5, 4.728507, 4.377178),
    "M": ([A, (0.9, 0.02, 300), (2.0, 0.05, 400)], 1e-5, 4.390623, 3.923371),
    "N": ([(1.1, 0.01, 20000)], 1e-5, 8.370306, 7.75558),
    "O": ([(1.3, 0.0064, 1560)], 1e-5, 0.983831, 0.879352),
    "P": ([(0.5, 0.01, 100)], 1e-5, 8.03412, 6.47621),
    "Q": ([A, (10.0, 1.0, 20)], 1e-5, 2.59818, 2.379096),
}


@pytest.mark.parametrize(("mechanisms", "delta", "by_renyi", "by_loss"), COMPOSED.values(), ids=COMPOSED.keys())
def test_epsilon_of_composed_mechanisms(mechanisms: Mechanisms, delta: float, by_renyi: float, by_loss: float) -> None:
    charges = [sgd(*mechanism) for mechanism in mechanisms]
    assert epsilon(charges, delta) == pytest.approx(by_renyi, rel=1e-3)
    assert epsilon_by_loss(charges, delta) == pytest.approx(by_loss, abs=2e-4)


@pytest.mark.parametrize(
    ("noise", "delta", "exact"),
    [
        (1.0, 1e-5, 4.3771781),
        (5.0, 1e-5, 0.72552175),
        (2.0, 1e-6, 2.25408465),
        (0.5, 1e-5, 9.99725615),
        (10.0, 1e-6, 0.39685738),
    ],
)
def test_a_gaussian_release_in_closed_form(noise: float, delta: float, exact: float) -> None:
    charge = GaussianCharge(noise_multiplier=noise)
    assert epsilon_by_loss([charge], delta) == pytest.approx(exact, abs=1e-7)
    assert exact <= epsilon([charge], delta) <= exact * 1.12
    halves = GaussianCharge(noise_multiplier=noise * math.sqrt(2))
    assert epsilon_by_loss([halves, halves], delta) == pytest.approx(exact, abs=1e-7)


@pytest.mark.parametrize(
    ("rate", "noise", "order", "expected"),
    [
        (0.01, 1.1, 1.5, 9.554528572e-05),
        (0.01, 1.1, 2.5, 0.0001620774094),
        (0.01, 1.1, 8.0, 0.0005840703355),
        (0.01, 0.5, 2.5, 0.01477127821),
        (0.01, 0.5, 8.0, 10.73694836),
        (0.02, 0.8, 5.7, 0.06303334116),
        (0.02, 0.8, 8.0, 1.780124346),
    ],
)
def test_divergence_of_one_step(rate: float, noise: float, order: float, expected: float) -> None:
    """The library's fractional orders are upper bounds (a quarter too high at the lowest), whole ones exact."""
    slack = 1e-6 if order.is_integer() else 0.2
    assert expected * (1 - 1e-6) <= rdp_at(sgd(noise, rate, 1), order) <= expected * (1 + slack)


@pytest.mark.parametrize(
    ("target", "delta", "rate", "steps", "by_renyi", "by_loss"),
    [
        (3.0, 1e-5, 0.0256, 781, 1.3287, 1.25334),
        (1.0, 1e-5, 0.01, 1000, 1.5132, 1.41463),
        (8.0, 1e-6, 0.01, 10000, 0.9618, 0.92858),
    ],
)
def test_noise_for_a_target(
    target: float, delta: float, rate: float, steps: int, by_renyi: float, by_loss: float
) -> None:
    noise = find_noise_multiplier(target, delta, rate, steps)
    assert noise == pytest.approx(by_renyi, rel=1e-3)
    assert target * 0.999 <= epsilon([sgd(noise, rate, steps)], delta) <= target
    assert epsilon_by_loss([sgd(by_loss, rate, steps)], delta) == pytest.approx(target, abs=2e-4)


@pytest.mark.parametrize(("at_random", "expected"), [(0.5, 1.098612), (0.2, 2.197225)])
def test_a_pure_charge_is_randomised_response_of_two_answers(at_random: float, expected: float) -> None:
    charge = PureCharge(epsilon=expected)
    assert charge.answer_at_random == pytest.approx(at_random, abs=1e-6)
    assert epsilon_by_loss([charge], 0.0) == pytest.approx(expected, abs=1e-6)


def test_ten_laplace_counts_of_one_half() -> None:
    """Continuous Laplace noise would be 4.99898; discrete noise on a count is dearer, and never above 5."""
    assert 4.99898 <= epsilon_by_loss([PureCharge(epsilon=0.5, count=10)], 1e-6) <= 5.0


def test_nothing_costs_nothing_and_an_exact_release_everything() -> None:
    nothing: list[list[Charge]] = [[], [sgd(1.1, 0.01, 0)], [PureCharge(epsilon=1.0, count=0)]]
    for charges in nothing:
        assert epsilon_by_loss(charges, 1e-5) == 0
        assert epsilon(charges, 1e-5) == 0
    assert math.isinf(epsilon_by_loss([sgd(1.1, 0.01, 10), NonPrivateCharge()], 1e-5))


CHARGES = st.sampled_from(
    [
        sgd(1.1, 0.01, 10),
        sgd(0.8, 0.2, 1),
        sgd(50.0, 0.001, 3),
        GaussianCharge(noise_multiplier=8.0),
        GaussianCharge(noise_multiplier=1000.0),
        PureCharge(epsilon=0.2),
        PureCharge(epsilon=1e-4),
    ]
)


@settings(deadline=None, max_examples=5)
@given(charges=st.lists(CHARGES, max_size=6), more=CHARGES)
def test_more_never_costs_less_and_nothing_costs_less_than_nothing(charges: list[Charge], more: Charge) -> None:
    for by in (epsilon, epsilon_by_loss):
        before, after = by(charges, 1e-5), by([*charges, more], 1e-5)
        assert 0 <= before <= after + 1e-9, by.__name__
