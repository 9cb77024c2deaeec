"""Processes of a coordinator or a site under one supervisor: specs, restarts, logs, health, users."""

from __future__ import annotations

from fedloop_core.processes.environment import flower_environment
from fedloop_core.processes.living import now_in
from fedloop_core.processes.policy import RestartPolicy
from fedloop_core.processes.requests import request_restart
from fedloop_core.processes.spec import (
    FileThere,
    HandedFile,
    KnownDeath,
    PortOpen,
    ProcessSpec,
    ReadyProbe,
    SocketAnswers,
)
from fedloop_core.processes.status import ProcessState, ProcessStatus, SupervisorStatus, read_status
from fedloop_core.processes.supervisor import Supervisor

__all__ = [
    "FileThere",
    "HandedFile",
    "KnownDeath",
    "PortOpen",
    "ProcessSpec",
    "ProcessState",
    "ProcessStatus",
    "ReadyProbe",
    "RestartPolicy",
    "SocketAnswers",
    "Supervisor",
    "SupervisorStatus",
    "flower_environment",
    "now_in",
    "read_status",
    "request_restart",
]
