"""The command line and calls."""

from __future__ import annotations

from fedloop_core.errors.root import FedloopError

__all__ = ["UsageError"]


class UsageError(FedloopError):
    """The command line or a call is wrong."""

    code = "FL-USE-001"
    exit_status = 2
