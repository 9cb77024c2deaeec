"""The ledger: what it admits. What survives in its file, see test_ledger_file.py."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloop_clients.privacy.ledger import Ledger
from fedloop_core.errors import BudgetExhausted, BudgetFixed, UsageError
from fedloop_core.privacy.charges import Charge, GaussianCharge, NonPrivateCharge, PureCharge, SampledGaussianCharge

RUN = SampledGaussianCharge(noise_multiplier=1.1, sampling_rate=0.01, steps=1000)
STEP = SampledGaussianCharge(noise_multiplier=1.1, sampling_rate=0.01, steps=10)
BUDGET = (8.0, 1e-5)


def steps(count: int) -> SampledGaussianCharge:
    return RUN.model_copy(update={"steps": count})


@pytest.fixture(params=["memory", "file"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    path = ":memory:" if request.param == "memory" else tmp_path / "ledger.sqlite"
    made = Ledger(path, lambda: 1_800_000_000)
    made.open_block("original", *BUDGET)
    return made


def test_eighteen_runs_fit_and_the_nineteenth_is_refused(ledger: Ledger) -> None:
    for run in range(18):
        ledger.settle(ledger.reserve(RUN, ("original",), f"run-{run}", "training"), RUN)
    with pytest.raises(
        BudgetExhausted, match=r"'original' has spent epsilon 7\.\d+ of 8 for life; training asks for 3"
    ) as refused:
        ledger.reserve(RUN, ("original",), "run-18", "training")
    assert "costs these rows nothing only where it trains on other rows" in refused.value.hint
    spend = ledger.spend("original")
    assert 7.87283 <= spend.epsilon <= 8
    assert (spend.budget, spend.unlimited) == (8.0, False)
    assert 0 < ledger.runs_left("original", RUN) < 1


def test_an_empty_block_has_spent_nothing(ledger: Ledger) -> None:
    assert ledger.spend("original").epsilon == 0
    assert ledger.charges("original") == ()


def test_opening_again_changes_nothing_and_never_the_budget(ledger: Ledger) -> None:
    before = ledger.head()
    ledger.open_block("original", *BUDGET)
    assert ledger.head() == before
    with pytest.raises(BudgetFixed, match="for life"):
        ledger.open_block("original", 9.0, 1e-5)


def test_a_reservation_stands_in_full_until_it_is_settled(ledger: Ledger) -> None:
    reservation = ledger.reserve(RUN, ("original",), "run", "training")
    whole = ledger.spend("original").epsilon
    ledger.settle(reservation, steps(400))
    assert 0 < ledger.spend("original").epsilon < whole
    assert ledger.charges("original", "run") == (steps(400),)
    assert ledger.charges("original", "another") == ()


def test_a_reservation_of_which_nothing_was_executed_costs_nothing(ledger: Ledger) -> None:
    ledger.settle(ledger.reserve(RUN, ("original",), "run", "training"), steps(0))
    assert ledger.spend("original").epsilon == 0


BAD_SETTLEMENTS: dict[str, Charge] = {
    "more steps": steps(1001),
    "more noise than there was": RUN.model_copy(update={"noise_multiplier": 2.0}),
    "another rate": RUN.model_copy(update={"sampling_rate": 0.001}),
    "another mechanism": GaussianCharge(noise_multiplier=100.0),
}


@pytest.mark.parametrize("executed", BAD_SETTLEMENTS.values(), ids=BAD_SETTLEMENTS.keys())
def test_a_settlement_outside_the_reservation_leaves_it_standing(ledger: Ledger, executed: Charge) -> None:
    reservation = ledger.reserve(RUN, ("original",), "run", "training")
    before = ledger.spend("original")
    with pytest.raises(UsageError, match="does not cover"):
        ledger.settle(reservation, executed)
    assert ledger.spend("original") == before


ASK = (RUN, ("original",), "run", "round 3")


def test_work_that_broke_off_begins_anew_under_its_reservation(ledger: Ledger) -> None:
    assert ledger.resume(*ASK) is None
    reservation = ledger.reserve(*ASK)
    assert ledger.resume(*ASK) is None  # it may be going on
    ledger.broke_off(reservation)
    others: list[tuple[Charge, tuple[str, ...], str, str]] = [
        (RUN, ("original",), "run", "round 4"),
        (RUN, ("original",), "other", "round 3"),
        (steps(999), ("original",), "run", "round 3"),
    ]
    assert [ledger.resume(*other) for other in others] == [None, None, None]
    spent = ledger.spend("original")
    for _ in range(3):
        assert ledger.resume(*ASK) == reservation
        ledger.broke_off(reservation)
    assert ledger.resume(*ASK) is None  # that work breaks off is seen outside: not for ever
    assert ledger.spend("original") == spent
    ledger.settle(reservation, RUN)
    assert (ledger.charges("original"), ledger.spend("original")) == ((RUN,), spent)
    ledger.verify()


def test_what_was_settled_carries_nothing_more(ledger: Ledger) -> None:
    reservation = ledger.reserve(*ASK)
    ledger.settle(reservation, RUN)
    ledger.broke_off(reservation)
    assert ledger.resume(*ASK) is None


def test_a_reservation_is_settled_once(ledger: Ledger) -> None:
    reservation = ledger.reserve(RUN, ("original",), "run", "training")
    ledger.settle(reservation, RUN)
    with pytest.raises(UsageError, match="settled already"):
        ledger.settle(reservation, steps(0))


def test_several_blocks_are_charged_together_or_not_at_all(ledger: Ledger) -> None:
    ledger.open_block("feedback-1", 2.0, 1e-5)
    ledger.reserve(RUN, ("feedback-1",), "run", "training")
    head = ledger.head()
    with pytest.raises(BudgetExhausted, match="feedback-1"):
        ledger.reserve(RUN, ("original", "feedback-1"), "run", "training")
    assert ledger.head() == head
    assert ledger.spend("original").epsilon == 0


def test_an_unknown_block_is_refused(ledger: Ledger) -> None:
    with pytest.raises(UsageError, match="no block 'elsewhere'"):
        ledger.reserve(RUN, ("elsewhere",), "run", "training")


def test_exact_releases_need_a_block_without_budget(ledger: Ledger) -> None:
    with pytest.raises(BudgetExhausted, match="exact release"):
        ledger.reserve(NonPrivateCharge(), ("original",), "run", "training")
    ledger.open_block("free", math.inf, 1e-5)
    assert ledger.spend("free").epsilon == 0
    ledger.reserve(RUN, ("free",), "run", "training")
    assert ledger.spend("free").epsilon == pytest.approx(1.71177, rel=1e-3)
    ledger.reserve(NonPrivateCharge(), ("free",), "run", "training")
    assert ledger.spend("free").epsilon == math.inf
    assert ledger.spend("free").unlimited
    assert ledger.runs_left("free", RUN) == math.inf


CHARGES = st.sampled_from(
    [STEP, steps(200), RUN, GaussianCharge(noise_multiplier=8.0), PureCharge(epsilon=0.2), PureCharge(epsilon=1.5)]
)


@settings(deadline=None, max_examples=25)
@given(charges=st.lists(CHARGES, max_size=30))
def test_spend_only_rises_and_never_passes_the_budget(charges: list[Charge]) -> None:
    ledger = Ledger(":memory:", lambda: 0)
    ledger.open_block("b", *BUDGET)
    before = 0.0
    for charge in charges:
        try:
            ledger.reserve(charge, ("b",), "run", "purpose")
        except BudgetExhausted:
            assert ledger.spend("b").epsilon == before
        spent = ledger.spend("b").epsilon
        assert before <= spent <= BUDGET[0] * (1 + 1e-9)
        before = spent
    assert ledger.verify().head == ledger.head()
    assert ledger.spend("b").epsilon == pytest.approx(before, rel=1e-9)


def test_splitting_a_run_changes_nothing(ledger: Ledger) -> None:
    ledger.open_block("whole", *BUDGET)
    ledger.reserve(RUN, ("whole",), "run", "training")
    ledger.reserve(steps(400), ("original",), "run", "training")
    ledger.reserve(steps(600), ("original",), "run", "training")
    assert ledger.spend("original").epsilon == pytest.approx(ledger.spend("whole").epsilon, rel=1e-9)
