"""The rules of a rollout. Pure: a state and an event give the next state and what is to be done.

1. Reports only note what a device says; the order of reports and their repetition make no difference.
2. At a tick, at most one thing happens. At most one wave is open.
3. A wave opens when the one before has settled: every device has reported, or the deadline is over (a silent device is
   listed, not waited for), and at least one device serves the version. A wave without devices settles at once.
4. When more than the allowed share of a wave's devices fail, in any wave that has opened, the rollout is aborted: every
   group that has moved is assigned the previous version under a higher counter.
5. After the last wave has settled the rollout is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedloop_core.task.document import Rollout
from fedloop_server.rollout.state import (
    Abort,
    Action,
    AssignGroup,
    Complete,
    DeviceEnrolled,
    DeviceReported,
    Event,
    Member,
    Outcome,
    Phase,
    RolloutState,
    Stop,
    Tick,
    Wave,
)
from fedloop_server.rollout.waves import wave_groups

__all__ = ["Step", "advance", "plan"]


@dataclass(frozen=True)
class Step:
    """What an event led to; ``ignored`` says why it changed nothing, when it should not have come."""

    state: RolloutState
    actions: tuple[Action, ...] = ()
    ignored: str = ""


def plan(
    rollout: Rollout,
    task: str,
    version: int,
    previous: int | None,
    members: Mapping[str, Sequence[str]],
    counters: Mapping[str, int],
) -> RolloutState:
    """A rollout that has not begun.

    Args:
        rollout: waves, deadline and allowed share of refusals.
        task: name of the task.
        version: what is rolled out.
        previous: what groups go back to; None when there is nothing to go back to.
        members: devices by group.
        counters: counter of the last assignment by group; groups without one begin at 0.
    """
    waves = tuple(
        Wave(
            group=group,
            members=tuple(Member(device=device) for device in sorted(set(members.get(group, ())))),
            counter=counters.get(group, 0),
        )
        for group in wave_groups(rollout)
    )
    return RolloutState(
        format=1,
        task=task,
        version=version,
        previous=previous,
        deadline_seconds=rollout.deadline_seconds,
        maximum_refused=rollout.maximum_refused,
        waves=waves,
    )


def advance(state: RolloutState, event: Event) -> Step:
    """The next state and what is to be done, in order."""
    if state.phase in (Phase.COMPLETE, Phase.ABORTED):
        return Step(state, ignored=f"the rollout of version {state.version} is {state.phase}")
    match event:
        case DeviceReported():
            return _reported(state, event)
        case DeviceEnrolled():
            return _enrolled(state, event)
        case Stop(reason):
            return _abort(state, f"stopped: {reason}")
        case Tick(now):
            return _tick(state, now)


def _reported(state: RolloutState, event: DeviceReported) -> Step:
    if event.version != state.version:
        return Step(state, ignored=f"device {event.device} reports version {event.version}, not {state.version}")
    for wave in state.waves:
        for member in wave.members:
            if member.device != event.device:
                continue
            if wave.opened_at is None:
                return Step(state, ignored=f"device {event.device} is in {wave.group}, which has not opened")
            if event.counter not in (0, wave.counter):
                return Step(
                    state, ignored=f"device {event.device} reports assignment {event.counter}, not {wave.counter}"
                )
            heard = member.model_copy(update={"outcome": event.outcome.graver(member.outcome)})
            members = tuple(heard if m is member else m for m in wave.members)
            return Step(_with(state, wave, wave.model_copy(update={"members": members})))
    return Step(state, ignored=f"device {event.device} is in no wave")


def _enrolled(state: RolloutState, event: DeviceEnrolled) -> Step:
    if any(member.device == event.device for wave in state.waves for member in wave.members):
        return Step(state)
    for wave in state.waves:
        if wave.group == event.group:
            members = (*wave.members, Member(device=event.device))
            return Step(_with(state, wave, wave.model_copy(update={"members": members})))
    return Step(state, ignored=f"group {event.group} of device {event.device} is no wave")


def _tick(state: RolloutState, now: int) -> Step:
    for wave in state.opened:
        failed = len(wave.failed)
        if failed and failed > state.maximum_refused * len(wave.members):
            share = f"{failed} of {len(wave.members)} devices of {wave.group}"
            return _abort(state, f"{share} failed ({', '.join(wave.failed)}); {state.maximum_refused:g} is allowed")
    if state.opened and not _settled(state, state.opened[-1], now):
        return Step(state)
    if len(state.opened) == len(state.waves):
        return Step(state.model_copy(update={"phase": Phase.COMPLETE}), (Complete(),))
    following = state.waves[len(state.opened)]
    opened = following.model_copy(update={"counter": following.counter + 1, "opened_at": now})
    action = AssignGroup(group=opened.group, version=state.version, counter=opened.counter)
    return Step(_with(state.model_copy(update={"phase": Phase.OPEN}), following, opened), (action,))


def _settled(state: RolloutState, wave: Wave, now: int) -> bool:
    if not wave.members:
        return True
    return bool(wave.with_outcome(Outcome.SERVING)) and (not wave.unheard or state.overdue(wave, now))


def _abort(state: RolloutState, reason: str) -> Step:
    waves: list[Wave] = []
    actions: list[Action] = [Abort(reason=reason)]
    for wave in state.waves:
        if wave.opened_at is None or state.previous is None:
            waves.append(wave)
            continue
        back = wave.model_copy(update={"counter": wave.counter + 1})
        waves.append(back)
        actions.append(
            AssignGroup(group=wave.group, version=state.previous, counter=back.counter, rollback_of=state.version)
        )
    after = state.model_copy(update={"phase": Phase.ABORTED, "reason": reason, "waves": tuple(waves)})
    return Step(after, tuple(actions))


def _with(state: RolloutState, old: Wave, new: Wave) -> RolloutState:
    return state.model_copy(update={"waves": tuple(new if wave is old else wave for wave in state.waves)})
