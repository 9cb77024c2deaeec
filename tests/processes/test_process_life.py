"""When a dead process is started again: the policy and the life of a process, for all histories."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedloop_core.processes.life import Life
from fedloop_core.processes.policy import RestartPolicy
from fedloop_core.processes.status import ProcessState

POLICY = RestartPolicy()
EVENTS = st.lists(
    st.tuples(st.sampled_from(["tick", "ready", "die", "stop", "again", "hurry"]), st.floats(0, 100)), max_size=60
)


def test_waits_double_up_to_half_a_minute() -> None:
    assert [POLICY.wait(deaths) for deaths in range(1, 10)] == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


@given(st.integers(1, 10**9))
def test_no_history_makes_a_wait_longer_than_the_longest_or_shorter_than_the_first(deaths: int) -> None:
    assert POLICY.first <= POLICY.wait(deaths) <= POLICY.longest


@given(st.integers(0, 10**6), st.floats(0, 1e6))
def test_a_minute_alive_forgets_all_deaths(before: int, alive: float) -> None:
    assert POLICY.deaths(before, alive) == (1 if alive >= 60 else before + 1)


def test_a_person_hears_of_a_crash_loop_ever_more_rarely() -> None:
    assert [deaths for deaths in range(1, 200) if POLICY.tells(deaths)] == [5, 10, 20, 40, 80, 160]


@given(EVENTS)
def test_every_history_keeps_a_process_within_its_life(events: list[tuple[str, float]]) -> None:
    life, now = Life(), 0.0
    for event, seconds in events:
        now += seconds
        before = life
        if event == "tick" and life.may_start(now):
            life = life.start(now)
        elif event == "ready" and life.state is ProcessState.STARTING:
            life = life.become_ready()
        elif event == "die" and life.alive:
            life = life.end(now, -9, POLICY)
        elif event in ("stop", "again"):
            life = life.stop(now, 10.0, again=event == "again")
        elif event == "hurry":
            life = life.hurry(now)
        assert life.starts - before.starts == (1 if event == "tick" and before.may_start(now) else 0)
        assert life.start_at <= now + POLICY.longest
        assert before.opened <= life.opened
        if before.state is ProcessState.STOPPING and event == "die":
            assert life.state is (ProcessState.WAITING if before.again else ProcessState.STOPPED)
            assert life.deaths == 0
        elif event == "die" and before.alive:
            assert life.state is ProcessState.WAITING
            assert life.start_at > now


def test_a_stop_for_good_is_not_undone_by_a_wish_to_restart() -> None:
    life = Life().start(0.0).stop(1.0, 10.0)
    assert life.stop(2.0, 10.0, again=True).end(3.0, 0, POLICY).state is ProcessState.STOPPED


def test_a_restart_that_is_under_way_becomes_a_stop() -> None:
    life = Life().start(0.0).stop(1.0, 10.0, again=True).stop(2.0, 10.0)
    assert life.end(3.0, 0, POLICY).state is ProcessState.STOPPED
