"""The rules of a rollout, as properties over any order of events and as named cases."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloop_core.task.document import Rollout
from fedloop_server.rollout import (
    Abort,
    Action,
    AssignGroup,
    Complete,
    DeviceEnrolled,
    DeviceReported,
    Event,
    Outcome,
    Phase,
    RolloutState,
    Stop,
    Tick,
    advance,
    next_group,
    plan,
    wave_groups,
)

THREE = Rollout(waves=(0.2, 0.5, 1.0), deadline_seconds=100.0)
MEMBERS = {"wave-1": ["a", "b"], "wave-2": ["c", "d", "e"], "wave-3": ["f", "g", "h", "i"]}
DEVICES = [*itertools.chain(*MEMBERS.values()), "stranger"]


def fresh(rollout: Rollout = THREE, previous: int | None = 1, members: dict[str, list[str]] = MEMBERS) -> RolloutState:
    return plan(rollout, "heart", 2, previous, members, {"wave-1": 7, "wave-2": 3})


def play(state: RolloutState, events: Sequence[Event]) -> tuple[RolloutState, list[Action]]:
    actions: list[Action] = []
    for event in events:
        step = advance(state, event)
        state = step.state
        actions += step.actions
    return state, actions


def serving(*devices: str) -> list[Event]:
    return [DeviceReported(device, Outcome.SERVING, 2) for device in devices]


reports = st.builds(
    DeviceReported,
    device=st.sampled_from(DEVICES),
    outcome=st.sampled_from([Outcome.SERVING] * 4 + [Outcome.REFUSED, Outcome.ROLLED_BACK]),
    version=st.sampled_from([2, 2, 2, 1, 3]),
    counter=st.sampled_from([0, 0, 1, 4, 8, 7]),
)
ticks = st.builds(Tick, now=st.integers(0, 400))
enrolments = st.builds(
    DeviceEnrolled, device=st.sampled_from(["x", "y", "a"]), group=st.sampled_from(["wave-1", "wave-2", "else"])
)
events = st.lists(st.one_of(reports, reports, ticks, enrolments), max_size=60)
allowed = st.sampled_from([0.0, 0.25, 0.5, 1.0])


@given(events, allowed)
def test_a_wave_opens_only_when_the_one_before_has_settled(played: list[Event], maximum_refused: float) -> None:
    state = fresh(THREE.model_copy(update={"maximum_refused": maximum_refused}))
    for event in played:
        opened = state.opened
        step = advance(state, event)
        if len(step.state.opened) > len(opened):
            assert isinstance(event, Tick)
            assert len(step.state.opened) == len(opened) + 1
            if opened:
                last = opened[-1]
                assert last.opened_at is not None
                assert not last.unheard or event.now - last.opened_at >= 100
                assert not last.members or last.with_outcome(Outcome.SERVING)
                assert len(last.failed) <= maximum_refused * len(last.members)
        state = step.state


@given(events, allowed)
def test_counters_only_rise_and_every_assignment_has_a_new_one(played: list[Event], maximum_refused: float) -> None:
    state = fresh(THREE.model_copy(update={"maximum_refused": maximum_refused}))
    last = {wave.group: wave.counter for wave in state.waves}
    for event in played:
        step = advance(state, event)
        for action in step.actions:
            if isinstance(action, AssignGroup):
                assert action.counter > last[action.group]
                last[action.group] = action.counter
        state = step.state
        assert {wave.group: wave.counter for wave in state.waves} == last


@given(events)
def test_a_state_survives_its_bytes(played: list[Event]) -> None:
    state, _ = play(fresh(), played)
    assert RolloutState.model_validate_json(state.model_dump_json()) == state


@given(st.lists(reports, max_size=20), st.randoms())
def test_order_and_repetition_of_reports_make_no_difference(heard: list[DeviceReported], random: object) -> None:
    start, _ = play(fresh(), [Tick(0), *serving("a", "b"), Tick(1)])
    shuffled = [*heard, *heard]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert play(start, shuffled)[0] == play(start, heard)[0]


@given(events)
def test_an_end_is_final_and_an_abort_takes_every_moved_group_back(played: list[Event]) -> None:
    state = fresh()
    ended: RolloutState | None = None
    for event in played:
        step = advance(state, event)
        if ended is not None:
            assert (step.state, step.actions) == (ended, ())
        elif step.state.phase is Phase.ABORTED:
            ended = step.state
            back = [action for action in step.actions if isinstance(action, AssignGroup)]
            assert isinstance(step.actions[0], Abort)
            assert [action.group for action in back] == [wave.group for wave in state.opened]
            assert {(action.version, action.rollback_of) for action in back} == {(1, 2)}
        elif step.state.phase is Phase.COMPLETE:
            ended = step.state
        state = step.state


def test_a_rollout_from_beginning_to_end() -> None:
    state, actions = play(
        fresh(),
        [
            Tick(0), *serving("a"), Tick(10), *serving("b"), Tick(20), *serving("c", "d", "e"), Tick(30),
            *serving("f", "g", "h", "i"), Tick(40),
        ],
    )  # fmt: skip
    assert actions == [
        AssignGroup(group="wave-1", version=2, counter=8),
        AssignGroup(group="wave-2", version=2, counter=4),
        AssignGroup(group="wave-3", version=2, counter=1),
        Complete(),
    ]
    assert state.phase is Phase.COMPLETE
    assert state.standing(40).serving == tuple("abcdefghi")


def test_one_refusal_takes_the_moved_groups_back() -> None:
    refused = DeviceReported("d", Outcome.REFUSED, 2, counter=4)
    state, actions = play(fresh(), [Tick(0), *serving("a", "b"), Tick(1), refused, Tick(2), Tick(3)])
    assert actions[2:] == [
        Abort(reason="1 of 3 devices of wave-2 failed (d); 0 is allowed"),
        AssignGroup(group="wave-1", version=1, counter=9, rollback_of=2),
        AssignGroup(group="wave-2", version=1, counter=5, rollback_of=2),
    ]
    assert state.standing(3).failed == ("d",)


def test_a_device_of_an_earlier_wave_that_goes_back_aborts_too() -> None:
    back = DeviceReported("a", Outcome.ROLLED_BACK, 2)
    _, actions = play(fresh(), [Tick(0), *serving("a", "b"), Tick(1), back, Tick(2)])
    assert isinstance(actions[2], Abort)


def test_refusals_within_the_allowed_share_do_not_stop_a_wave() -> None:
    lenient = THREE.model_copy(update={"maximum_refused": 0.5})
    refused = DeviceReported("a", Outcome.REFUSED, 2)
    state, actions = play(fresh(lenient), [Tick(0), refused, *serving("b"), Tick(1)])
    assert [type(action) for action in actions] == [AssignGroup, AssignGroup]
    assert state.standing(1).failed == ("a",)


def test_a_silent_device_is_listed_and_not_waited_for() -> None:
    state, _ = play(fresh(), [Tick(0), *serving("a"), Tick(99)])
    assert state.standing(99).waiting == ("b",)
    state, actions = play(state, [Tick(100)])
    assert actions == [AssignGroup(group="wave-2", version=2, counter=4)]
    assert state.standing(100).silent == ("b",)
    state, _ = play(state, serving("b"))
    assert state.standing(100).silent == ()


def test_a_wave_of_silence_is_no_evidence() -> None:
    state, actions = play(fresh(), [Tick(0), Tick(100), Tick(10_000)])
    assert len(actions) == 1
    assert state.standing(99).held is False
    assert state.standing(100).held is True
    state, actions = play(state, [*serving("a"), Tick(10_001)])
    assert [type(action) for action in actions] == [AssignGroup]


def test_waves_without_devices_settle_at_once() -> None:
    _, actions = play(fresh(members={"wave-3": ["z"]}), [Tick(0), Tick(0), Tick(0), Tick(0), *serving("z"), Tick(1)])
    assert [type(action) for action in actions] == [AssignGroup, AssignGroup, AssignGroup, Complete]


def test_a_device_that_enrols_meanwhile_is_waited_for() -> None:
    state, _ = play(fresh(), [Tick(0), *serving("a", "b"), DeviceEnrolled("new", "wave-1"), Tick(1)])
    assert state.standing(1).waiting == ("new",)
    _, actions = play(state, [DeviceEnrolled("new", "wave-1"), *serving("new"), Tick(2)])
    assert len(actions) == 1


def test_with_nothing_to_go_back_to_an_abort_assigns_nothing() -> None:
    refused = DeviceReported("a", Outcome.REFUSED, 2)
    _, actions = play(fresh(previous=None), [Tick(0), refused, Tick(1)])
    assert [type(action) for action in actions] == [AssignGroup, Abort]


def test_a_person_stops_it() -> None:
    _, actions = play(fresh(), [Tick(0), Stop("not today")])
    assert actions[1:] == [
        Abort(reason="stopped: not today"),
        AssignGroup(group="wave-1", version=1, counter=9, rollback_of=2),
    ]
    assert play(fresh(), [Stop("not today")])[1] == [Abort(reason="stopped: not today")]


@pytest.mark.parametrize(
    ("name", "event", "why"),
    [
        ("another version", DeviceReported("a", Outcome.REFUSED, 1), "version 1, not 2"),
        ("an assignment of before", DeviceReported("a", Outcome.REFUSED, 2, counter=7), "assignment 7, not 8"),
        ("a wave that has not opened", DeviceReported("c", Outcome.REFUSED, 2), "wave-2, which has not opened"),
        ("an unknown device", DeviceReported("stranger", Outcome.REFUSED, 2), "in no wave"),
        ("an unknown group", DeviceEnrolled("new", "elsewhere"), "is no wave"),
    ],
)
def test_what_should_not_come_is_said_and_changes_nothing(name: str, event: Event, why: str) -> None:
    state, _ = play(fresh(), [Tick(0)])
    step = advance(state, event)
    assert (step.state, step.actions) == (state, ())
    assert why in step.ignored


@given(
    st.lists(st.integers(1, 99), unique=True, max_size=4).map(lambda c: (*sorted(x / 100 for x in c), 1.0)),
    st.integers(1, 150),
)
def test_shares_hold_at_every_size_of_the_fleet(shares: tuple[float, ...], size: int) -> None:
    rollout = Rollout(waves=shares)
    counts = dict.fromkeys(wave_groups(rollout), 0)
    for number in range(1, size + 1):
        group = next_group(rollout, counts)
        assert number > 1 or group == "wave-1"
        counts[group] += 1
        for index, share in enumerate(shares):
            moved = sum(list(counts.values())[: index + 1])
            assert abs(moved - share * number) <= index + 1


def test_a_third_then_all() -> None:
    rollout = Rollout()
    counts = dict.fromkeys(wave_groups(rollout), 0)
    groups = []
    for _ in range(6):
        groups.append(next_group(rollout, counts))
        counts[groups[-1]] += 1
    assert groups == ["wave-1", "wave-2", "wave-1", "wave-2", "wave-2", "wave-1"]
