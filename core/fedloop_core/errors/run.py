"""Runs, and replies that must not be aggregated."""

from __future__ import annotations

from fedloop_core.errors.root import FedloopError

__all__ = [
    "AttemptBehind",
    "DeviceLost",
    "QualityGateFailed",
    "QuorumNotReached",
    "RunBusy",
    "RunCancelled",
    "RunError",
    "TooFewUpdates",
    "UpdateError",
    "UpdateRefused",
]


class RunError(FedloopError):
    """A run cannot start or go on."""

    code = "FL-RUN-000"
    exit_status = 7


class QuorumNotReached(RunError):
    """Fewer sites answered within the deadline than the task asks for; names those left out and why."""

    code = "FL-RUN-001"


class TooFewUpdates(QuorumNotReached):
    """Fewer updates came, or weigh less, than the task's rule needs to withstand as many faulty sites as it names."""

    code = "FL-RUN-007"


class QualityGateFailed(RunError):
    """The quality gate refuses the version."""

    code = "FL-RUN-002"


class UpdateError(FedloopError):
    """A reply that must not be aggregated."""

    code = "FL-UPD-000"
    exit_status = 7


class UpdateRefused(UpdateError):
    """The update gate: keys, order, shapes, dtypes, finite values, norm, weight. ``reason`` says which."""

    code = "FL-UPD-001"
    wire_fields = frozenset({"reason"})


class RunCancelled(RunError):
    """The run was stopped by a person, and this side stopped with it."""

    code = "FL-RUN-003"


class RunBusy(RunError):
    """Another process drives this run."""

    code = "FL-RUN-004"


class AttemptBehind(RunError):
    """A site has seen a later ``attempt`` of the run than this one: the coordinator was put back from a copy."""

    code = "FL-RUN-006"


class DeviceLost(RunError):
    """No device is left to train on: full, lost or silent, as ``reason`` says. Nothing was released."""

    code = "FL-RUN-005"
    wire_fields = frozenset({"reason"})
