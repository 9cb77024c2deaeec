"""The edge agent and its hub."""

from __future__ import annotations

from fedloop_core.errors.root import FedloopError

__all__ = [
    "ArtifactRefused",
    "DeviceError",
    "GoldenMismatch",
    "HubBusy",
    "HubRefused",
    "HubUnreachable",
    "InputRefused",
    "NoActiveModel",
    "OutputRefused",
    "PredictionUnknown",
    "RuntimeUnavailable",
    "SketchRefused",
]


class DeviceError(FedloopError):
    """The edge agent."""

    code = "FL-EDGE-000"
    exit_status = 10


class RuntimeUnavailable(DeviceError):
    """No runtime for this kind of artifact is installed, or it cannot load it."""

    code = "FL-EDGE-001"
    wire_fields = frozenset({"runtime"})


class ArtifactRefused(DeviceError):
    """Digest, length or description of an artifact do not fit."""

    code = "FL-EDGE-002"
    wire_fields = frozenset({"reason"})


class GoldenMismatch(DeviceError):
    """The golden vectors give other answers on this device: incompatible here, the previous version stays."""

    code = "FL-EDGE-003"
    wire_fields = frozenset({"deviation", "tolerance"})


class InputRefused(DeviceError):
    """An input that does not fit the schema: shape, type, not finite, out of range, unknown category."""

    code = "FL-EDGE-004"
    wire_fields = frozenset({"column"})


class NoActiveModel(DeviceError):
    """The device has no verified model to answer with."""

    code = "FL-EDGE-005"


class SketchRefused(DeviceError):
    """A sketch over another profile, or with counts that no rows can give."""

    code = "FL-EDGE-010"
    wire_fields = frozenset({"reason"})


class HubUnreachable(DeviceError):
    """The hub cannot be reached, or broke off: the same call may work later."""

    code = "FL-EDGE-006"


class HubRefused(DeviceError):
    """The hub refuses this device or this message; ``refusal`` is the hub's code."""

    code = "FL-EDGE-007"
    wire_fields = frozenset({"refusal"})


class OutputRefused(DeviceError):
    """The model's own answer is not finite: nothing is predicted."""

    code = "FL-EDGE-008"


class PredictionUnknown(DeviceError):
    """A label for a prediction that this device did not make, no longer keeps, or has a label for."""

    code = "FL-EDGE-009"


class HubBusy(DeviceError):
    """All of the hub's streams are taken: the same call may work later."""

    code = "FL-EDGE-011"
