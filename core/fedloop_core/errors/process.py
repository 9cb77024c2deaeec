"""Processes and their supervisor."""

from __future__ import annotations

from fedloop_core.errors.root import FedloopError

__all__ = ["AlreadyRunning", "ProcessError", "ProcessFailed"]


class ProcessError(FedloopError):
    """A process of a coordinator or a site."""

    code = "FL-PROC-000"
    exit_status = 13


class ProcessFailed(ProcessError):
    """A process does not start, or dies again and again; names its log."""

    code = "FL-PROC-001"


class AlreadyRunning(ProcessError):
    """Another supervisor has this folder."""

    code = "FL-PROC-002"
