"""Rollouts: a version goes to the fleet in waves, and back when devices refuse it."""

from fedloop_server.rollout.controller import RolloutController
from fedloop_server.rollout.machine import Step, advance, plan
from fedloop_server.rollout.state import (
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
    Standing,
    Stop,
    Tick,
    Wave,
)
from fedloop_server.rollout.waves import next_group, wave_groups

__all__ = [
    "Abort",
    "Action",
    "AssignGroup",
    "Complete",
    "DeviceEnrolled",
    "DeviceReported",
    "Event",
    "Outcome",
    "Phase",
    "RolloutController",
    "RolloutState",
    "Standing",
    "Step",
    "Stop",
    "Tick",
    "Wave",
    "advance",
    "next_group",
    "plan",
    "wave_groups",
]
