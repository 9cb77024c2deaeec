"""Epsilon and the noise that it asks for: the properties that they must have. Known values: see test_oracles.py."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloop_clients.privacy.calibration import find_gaussian_multiplier, find_noise_multiplier, noise_within
from fedloop_core.errors import PrivacyParameterInvalid
from fedloop_core.privacy.accounting import (
    check_delta,
    conversion,
    epsilon,
    epsilon_at,
    rdp_at,
    registered_order,
)
from fedloop_core.privacy.charges import GaussianCharge, NonPrivateCharge, PureCharge, SampledGaussianCharge


def sgd(noise: float, rate: float, steps: int) -> SampledGaussianCharge:
    return SampledGaussianCharge(noise_multiplier=noise, sampling_rate=rate, steps=steps)


@settings(deadline=None, max_examples=15)
@given(
    target=st.floats(0.3, 12),
    delta=st.sampled_from([1e-3, 1e-5, 1e-7]),
    rate=st.floats(0.005, 1.0),
    steps=st.integers(1, 2000),
    share=st.floats(0.02, 0.5),
)
def test_noise_found_always_keeps_the_target(
    target: float, delta: float, rate: float, steps: int, share: float
) -> None:
    others = (PureCharge(epsilon=share * target), GaussianCharge(noise_multiplier=60 / target))
    noise = find_noise_multiplier(target, delta, rate, steps, others)
    assert epsilon([sgd(noise, rate, steps), *others], delta) <= target


def test_noise_is_found_where_the_likeliest_order_does_not_converge() -> None:
    others = (PureCharge(epsilon=2.75), GaussianCharge(noise_multiplier=60 / 11))
    noise = find_noise_multiplier(11.0, 1e-3, 0.5, 1, others)
    assert 0.1 < noise < 1.0
    assert epsilon([sgd(noise, 0.5, 1), *others], 1e-3) <= 11.0


def test_a_target_that_other_charges_exceed_is_refused() -> None:
    with pytest.raises(PrivacyParameterInvalid, match="no noise keeps"):
        find_noise_multiplier(1.0, 1e-5, 0.1, 10, (GaussianCharge(noise_multiplier=1.0),))


def test_noise_within_an_order_fits_it() -> None:
    noise = noise_within(4.0, 0.5, 0.1, 100)
    assert 0.499 <= rdp_at(sgd(noise, 0.1, 100), 4.0) <= 0.5
    assert math.isinf(noise_within(4.0, 0.5, 0.1, 100, (GaussianCharge(noise_multiplier=1.0),)))


def test_one_gaussian_release_for_a_target() -> None:
    assert epsilon([GaussianCharge(noise_multiplier=find_gaussian_multiplier(0.7, 1e-6))], 1e-6) <= 0.7


def test_nothing_costs_nothing_and_little_is_never_negative() -> None:
    assert epsilon([], 1e-5) == 0
    assert epsilon([sgd(1000.0, 0.001, 1)], 1e-5) == 0


def test_an_exact_release_costs_everything() -> None:
    assert math.isinf(epsilon([PureCharge(epsilon=0.1), NonPrivateCharge()], 1e-5))
    assert math.isinf(rdp_at(NonPrivateCharge(), 4.0))


def test_pure_releases_add_up_or_better() -> None:
    assert epsilon([PureCharge(epsilon=0.3, count=10)], 1e-6) <= 3.0
    assert epsilon([PureCharge(epsilon=1.0)], 1e-5) == 1.0
    assert epsilon([PureCharge(epsilon=0.1, count=400)], 1e-5) < 12


def test_a_pure_release_is_charged_as_randomised_response() -> None:
    """Binary answers with probability of the truth p: the divergence in closed form (Mironov 2017, section VI.A)."""
    order, p = 3.0, math.exp(0.7) / (1 + math.exp(0.7))
    expected = math.log(p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)) / (order - 1)
    assert rdp_at(PureCharge(epsilon=0.7), order) == pytest.approx(expected, rel=1e-12)


def test_a_discrete_laplace_count_has_exactly_the_divergence_charged() -> None:
    order, a = 3.0, math.exp(-0.7)
    weight = (1 - a) / (1 + a)
    total = sum((weight * a ** abs(x)) ** order * (weight * a ** abs(x - 1)) ** (1 - order) for x in range(-200, 201))
    assert rdp_at(PureCharge(epsilon=0.7), order) == pytest.approx(math.log(total) / (order - 1), rel=1e-9)


@settings(deadline=None, max_examples=20)
@given(first=st.integers(1, 600), second=st.integers(1, 400))
def test_splitting_a_run_changes_nothing(first: int, second: int) -> None:
    whole = epsilon([sgd(1.1, 0.01, first + second)], 1e-5)
    assert epsilon([sgd(1.1, 0.01, first), sgd(1.1, 0.01, second)], 1e-5) == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize(("order", "delta"), [(1.5, 1e-5), (4.0, 1e-5), (18.0, 1e-6)])
def test_conversion_is_that_of_the_literature(order: float, delta: float) -> None:
    expected = math.log((order - 1) / order) - (math.log(delta) + math.log(order)) / (order - 1)
    assert conversion(order, delta) == pytest.approx(expected, abs=1e-9)
    assert epsilon_at(order, 2.0, delta) == pytest.approx(2.0 + expected, abs=1e-9)


def test_the_registered_order_follows_the_budget() -> None:
    assert registered_order(8.0, 1e-5) == pytest.approx(4.0, abs=0.2)
    assert registered_order(1.0, 1e-5) > registered_order(8.0, 1e-5)


def test_a_budget_that_holds_nothing_is_refused() -> None:
    with pytest.raises(PrivacyParameterInvalid, match="holds no charge"):
        registered_order(0.001, 1e-9)


@pytest.mark.parametrize(("delta", "units"), [(0.01, 100), (0.1, 100), (1e-5, 0)])
def test_delta_not_below_one_over_the_units_is_refused(delta: float, units: int) -> None:
    with pytest.raises(PrivacyParameterInvalid, match="guards nothing"):
        check_delta(delta, units)
    check_delta(1e-5, 100)
