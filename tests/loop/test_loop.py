"""The loop starts a run only for a reason, paid, within what a person signed, and says why each time."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloop_core.errors import UsageError
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task.document import LogisticModel, Privacy, Retraining, Rounds, Task
from fedloop_server.loop import (
    Approval,
    AskHuman,
    Clock,
    Decision,
    Event,
    LabelCount,
    LedgerHeadroom,
    LoopState,
    Refuse,
    RunEnded,
    SiteSilent,
    SiteVerdict,
    StartRun,
    Wait,
    step,
)

SITES = ("north", "east", "south")


def loop(**retraining: object) -> LoopState:
    task = Task(
        format=1,
        name="tumours",
        features=(NumericFeature(kind="numeric", name="size", range=(0.0, 1.0)),),
        label=ClassLabel(kind="classes", name="kind", classes=("benign", "malignant")),
        model=LogisticModel(kind="logistic"),
        privacy=Privacy(epsilon=4.0),
        rounds=Rounds(count=12, quorum=0.6),
        retraining=Retraining.model_validate(retraining),
    )
    return LoopState.start(task, SITES, version=1)


def drift(site: str = "east", version: int = 1, window: int = 1, *, drifted: bool = True) -> SiteVerdict:
    return SiteVerdict(
        site=site, version=version, window=window, drifted=drifted, drift="covariate" if drifted else None
    )


def labels(count: int, site: str = "north") -> LabelCount:
    return LabelCount(site=site, count=count)


def ledgers(*spent: str, unhidden: tuple[str, ...] = ()) -> tuple[LedgerHeadroom, ...]:
    return tuple(LedgerHeadroom(site=site, affordable=site not in spent, hidden=site not in unhidden) for site in SITES)


def play(state: LoopState, *events: Event) -> tuple[LoopState, Decision]:
    decision: Decision = Wait(reason="nothing happened")
    for event in events:
        state, decision = step(state, event)
    return state, decision


CALLED_FOR = (drift(), labels(25), labels(15, "south"))


@pytest.mark.parametrize(
    ("retraining", "events", "expected", "says"),
    [
        pytest.param({}, (drift(drifted=False), labels(500)), Wait, "No site reports drift", id="labels alone"),
        pytest.param({}, (drift(), labels(39)), Wait, "39 of at least 40", id="one label too few"),
        pytest.param({}, CALLED_FOR, Wait, "ledgers of north, east and south are asked", id="ledgers unknown"),
        pytest.param({}, (*CALLED_FOR, *ledgers()), StartRun, "40 labelled examples", id="all holds"),
        pytest.param({}, (*CALLED_FOR, *ledgers("east")), StartRun, "left out for want of", id="quorum pays"),
        pytest.param({}, (*CALLED_FOR, *ledgers("east", "north")), Refuse, "north and east", id="budgets gone"),
        pytest.param(
            {},
            (*CALLED_FOR, *ledgers(unhidden=("east", "north"))),
            Refuse,
            "for whole sites does not admit",
            id="whole sites",
        ),
        pytest.param(
            {}, (*CALLED_FOR, *ledgers(unhidden=("east",))), StartRun, "left out for want of", id="quorum is hidden"
        ),
        pytest.param(
            {},
            (*CALLED_FOR, *ledgers("north", unhidden=("east",))),
            Refuse,
            "of north does not admit another run and",
            id="both",
        ),
        pytest.param({"maximum_runs": 0}, (*CALLED_FOR, *ledgers()), AskHuman, "0 of at most 0", id="no run alone"),
        pytest.param(
            {"approval": "human"}, (*CALLED_FOR, *ledgers()), AskHuman, "asks a person", id="a person approves each"
        ),
        pytest.param(
            {"approval": "human"},
            (*CALLED_FOR, *ledgers(), Approval(by="Ada")),
            StartRun,
            "approved by Ada",
            id="a person approved",
        ),
        pytest.param({"enabled": False}, (*CALLED_FOR, *ledgers()), Wait, "is off", id="off"),
        pytest.param({}, (drift(version=2), labels(50)), Wait, "No site reports", id="verdict about another version"),
    ],
)
def test_decisions(
    retraining: dict[str, object], events: tuple[Event, ...], expected: type[Decision], says: str
) -> None:
    _, decision = play(loop(**retraining), *events)
    assert type(decision) is expected
    assert says in decision.reason


def silent(site: str, about: Literal["drift", "labels"] = "drift", version: int = 1) -> SiteSilent:
    return SiteSilent(site=site, version=version, about=about)


@pytest.mark.parametrize(
    ("events", "expected", "says"),
    [
        ((silent("north"),), Wait, "No site reports drift under version 1; north cannot tell of it"),
        ((silent("north", version=2),), Wait, "No site reports drift under version 1."),
        ((drift(), silent("north", "labels"), labels(20, "south")), Wait, "have come back; north cannot tell how many"),
        ((silent("north"), silent("south"), *CALLED_FOR, *ledgers()), StartRun, "east reports covariate drift"),
        ((drift(), silent("east", "labels"), *CALLED_FOR, *ledgers()), StartRun, "40 labelled examples"),
        ((silent("north", "labels"), drift(), labels(3)), Wait, "3 of at least 40 labelled examples have come back."),
    ],
    ids=["of drift", "another version", "of labels", "others drift", "others label", "it tells again"],
)
def test_a_site_that_cannot_pay_is_named_and_nobody_waits_for_it(
    events: tuple[Event, ...], expected: type[Decision], says: str
) -> None:
    _, decision = play(loop(), *events)
    assert type(decision) is expected
    assert says in decision.reason


def test_a_new_version_is_watched_by_all_who_can_pay_for_it() -> None:
    state, _ = play(loop(), silent("north"), silent("east", "labels"), RunEnded(version=2))
    assert state.silent == state.uncounted == frozenset()


def test_labels_are_asked_for_while_they_would_change_the_decision() -> None:
    wanted = []
    state = loop()
    events: tuple[Event, ...] = (Clock(now=1), drift(), labels(39), labels(1, "south"), *ledgers(*SITES))
    for event in events:
        state, _ = step(state, event)
        wanted.append(state.wants_labels)
    assert wanted == [False, True, True, False, False, False, False]  # at last they are there, and nobody can pay


def test_a_run_is_started_once_warm_with_those_who_can_pay() -> None:
    state, decision = play(loop(rounds=5), *CALLED_FOR, *ledgers("north"))
    assert isinstance(decision, StartRun)
    assert (decision.warm_from, decision.rounds, decision.sites) == (1, 5, ("east", "south"))
    assert decision.reasons[0] == "east reports covariate drift under version 1"
    late: tuple[Event, ...] = (drift("south", window=9), labels(99), *ledgers())
    for event in late:
        state, decision = step(state, event)
        assert decision == Wait(reason="A run is in progress.")


def test_without_a_number_of_its_own_a_run_has_the_tasks_rounds() -> None:
    _, decision = play(loop(), *CALLED_FOR, *ledgers())
    assert isinstance(decision, StartRun)
    assert decision.rounds == 12


def test_a_new_version_starts_with_a_clean_sheet_and_the_next_run_needs_a_person() -> None:
    state, _ = play(loop(), *CALLED_FOR, *ledgers())
    state, decision = step(state, RunEnded(version=2))
    assert decision == Wait(reason="No site reports drift under version 2.")
    assert (state.labels, state.verdicts, state.affordable) == ({}, {}, {})
    state, decision = play(state, drift("south", version=2), labels(40), *ledgers())
    assert isinstance(decision, AskHuman)
    state, decision = step(state, Approval(by="Ada"))
    assert isinstance(decision, StartRun)
    assert state.runs_alone == 0


def test_a_run_that_released_nothing_counts_and_asks_ledgers_anew() -> None:
    state, _ = play(loop(maximum_runs=2), *CALLED_FOR, *ledgers())
    state, decision = step(state, RunEnded(version=None))
    assert isinstance(decision, Wait)
    assert decision.ask_ledgers == SITES
    state, decision = play(state, *ledgers())
    assert isinstance(decision, StartRun)
    _, decision = play(state, RunEnded(version=None), *ledgers())
    assert isinstance(decision, AskHuman)


def test_drift_once_told_is_not_taken_back_and_old_windows_do_not_return() -> None:
    state, _ = play(loop(), drift(window=3), drift(window=4, drifted=False))
    assert state.drifted[0].window == 3
    state, _ = play(loop(), drift(window=5, drifted=False), drift(window=4))
    assert not state.drifted


def test_the_history_keeps_each_change_of_mind_with_its_time_and_cause() -> None:
    state, _ = play(
        loop(),
        Clock(now=5),
        drift(drifted=False),
        Clock(now=9),
        drift(window=2),
        *CALLED_FOR[1:],
        *ledgers(),
        Clock(now=11),
    )
    told = [(entry.at, entry.event, entry.decision.kind) for entry in state.history]
    assert told[:2] == [(5, "it is 5", "wait"), (9, "east reports covariate drift in window 2 of version 1", "wait")]
    assert told[-2:] == [(9, "south's ledger admits another run", "start"), (11, "it is 11", "wait")]


def test_the_loop_goes_on_from_its_written_state() -> None:
    state, _ = play(loop(), *CALLED_FOR, *ledgers()[:2])
    again = LoopState.model_validate_json(state.model_dump_json())
    assert again == state
    assert step(again, ledgers()[2]) == step(state, ledgers()[2])


@pytest.mark.parametrize("event", [drift("west"), labels(3, "west"), LedgerHeadroom(site="west", affordable=True)])
def test_a_site_that_is_not_in_the_loop_is_refused(event: Event) -> None:
    with pytest.raises(UsageError, match="'west' is not in this loop"):
        step(loop(), event)


EVENTS = st.one_of(
    st.builds(
        SiteVerdict,
        site=st.sampled_from(SITES),
        version=st.integers(1, 3),
        window=st.integers(1, 4),
        drifted=st.booleans(),
    ),
    st.builds(LabelCount, site=st.sampled_from(SITES), count=st.integers(0, 40)),
    st.builds(LedgerHeadroom, site=st.sampled_from(SITES), affordable=st.booleans(), hidden=st.booleans()),
    st.builds(Clock, now=st.integers(0, 100)),
    st.builds(RunEnded, version=st.one_of(st.none(), st.integers(2, 3))),
    st.builds(Approval, by=st.just("Ada")),
)


@given(events=st.lists(EVENTS, max_size=60), most=st.integers(0, 3))
def test_whatever_happens_no_run_starts_unpaid_unasked_or_for_nothing(events: list[Event], most: int) -> None:
    state, alone, approved = loop(maximum_runs=most, minimum_labels=30), 0, False
    for event in events:
        before = state
        state, decision = step(state, event)
        if isinstance(event, Approval):
            alone, approved = 0, True
        if isinstance(decision, StartRun):
            alone, approved = alone + (not approved), False
            assert alone <= most
            assert not before.running or isinstance(event, RunEnded)
            assert state.drifted
            assert state.label_total >= 30
            assert len(decision.sites) >= 2
        assert decision.reason.endswith(".")
    assert all(a.decision != b.decision for a, b in zip(state.history, state.history[1:], strict=False))
