"""Every error that fedloop raises on purpose.

FedloopError
├── UsageError                 exit 2   the command line or a call is wrong
├── TaskError                  exit 3   the task file is wrong
├── DataError                  exit 4   rows, columns, labels, files of data
├── PrivacyError               exit 5   parameters or budgets of privacy
├── TrustError                 exit 6   signatures, envelopes, certificates, tokens
├── RunError                   exit 7   a run cannot start or go on
├── UpdateError                exit 7   a reply that must not be aggregated
├── ExportError                exit 8   conversion, quantisation, golden vectors
├── ReleaseError               exit 9   registry, signed metadata, assignments
├── DeviceError                exit 10  the edge agent
└── StorageError               exit 11  disk and databases

Each class has a stable code and an exit status. The message says which site, file, column, row, round or device it is
about; the hint says what to do next. There are two renderings: ``str(error)`` for the person on the spot, and
``error.wire()``, which carries only the code and those fields that the class allows to leave the site.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

__all__ = [
    "ArtifactRefused",
    "AssignmentRefused",
    "BudgetExhausted",
    "CertificateRefused",
    "ColumnMissing",
    "ColumnValueInvalid",
    "ConversionFailed",
    "DataError",
    "DataGateFailed",
    "DeviceError",
    "DeviceRefused",
    "EnrollmentRefused",
    "EnvelopeRefused",
    "ExportError",
    "FedloopError",
    "FeedbackRefused",
    "FileMissing",
    "GoldenMismatch",
    "HubBusy",
    "HubRefused",
    "HubUnreachable",
    "InputRefused",
    "LabelUnknown",
    "MetadataRefused",
    "NoActiveModel",
    "OutputRefused",
    "PolicyRefused",
    "PredictionUnknown",
    "PrivacyError",
    "PrivacyParameterInvalid",
    "QualityGateFailed",
    "QuorumNotReached",
    "RegistryError",
    "ReleaseError",
    "RunError",
    "RuntimeUnavailable",
    "SketchRefused",
    "StorageError",
    "TaskError",
    "TaskInvalid",
    "TaskUnreadable",
    "TooFewRows",
    "TrustError",
    "UpdateError",
    "UpdateRefused",
    "UsageError",
    "WireError",
]

Field = str | int | float


@dataclass(frozen=True)
class WireError:
    """An error as it may leave the place where it happened: a code and allow-listed fields, no text, value or path."""

    code: str
    fields: Mapping[str, str]


class FedloopError(Exception):
    """The root. ``message`` is one sentence; ``hint`` is the next step; ``fields`` are facts for machines.

    Raises:
        TypeError: at class creation, when a subclass has no code of the form ``FL-AREA-000``.
    """

    code: ClassVar[str] = "FL-ANY-000"
    exit_status: ClassVar[int] = 1
    wire_fields: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        """Refuses a subclass without a well-formed code."""
        super().__init_subclass__()
        if not re.fullmatch(r"FL-[A-Z]+-\d{3}", cls.code):
            raise TypeError(f"{cls.__name__}.code must look like FL-AREA-000, not {cls.code!r}")

    def __init__(self, message: str, *, hint: str = "", **fields: Field) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.fields: Mapping[str, Field] = fields

    def __str__(self) -> str:
        tail = f" {self.hint}" if self.hint else ""
        return f"{self.code}: {self.message}{tail}"

    def wire(self) -> WireError:
        """The rendering that may leave the site."""
        return WireError(self.code, {k: str(v) for k, v in self.fields.items() if k in self.wire_fields})


class UsageError(FedloopError):
    """The command line or a call is wrong."""

    code = "FL-USE-001"
    exit_status = 2


class TaskError(FedloopError):
    """The task file is wrong."""

    code = "FL-TASK-000"
    exit_status = 3


class TaskUnreadable(TaskError):
    """The file is missing, not UTF-8, or not TOML."""

    code = "FL-TASK-001"


class TaskInvalid(TaskError):
    """The file is TOML and breaks the schema; ``problems`` lists each mistake with its line."""

    code = "FL-TASK-002"

    def __init__(self, message: str, *, problems: tuple[str, ...] = (), hint: str = "", **fields: Field) -> None:
        super().__init__(message, hint=hint, **fields)
        self.problems = problems


class DataError(FedloopError):
    """Rows, columns, labels, files of data."""

    code = "FL-DATA-000"
    exit_status = 4


class FileMissing(DataError):
    """A data file or folder is not there or cannot be read."""

    code = "FL-DATA-001"


class ColumnMissing(DataError):
    """A column that the schema names is not in the data."""

    code = "FL-DATA-002"
    wire_fields = frozenset({"column"})


class ColumnValueInvalid(DataError):
    """A cell does not fit its feature; names row and column on the spot, the column alone on the wire."""

    code = "FL-DATA-003"
    wire_fields = frozenset({"column"})


class LabelUnknown(DataError):
    """A label that is not one of the schema's classes."""

    code = "FL-DATA-004"


class TooFewRows(DataError):
    """Fewer rows than are needed, none included."""

    code = "FL-DATA-005"


class DataGateFailed(DataError):
    """The data gate refuses the site's data; ``rule`` says which rule."""

    code = "FL-DATA-006"
    wire_fields = frozenset({"rule"})


class PrivacyError(FedloopError):
    """Parameters or budgets of privacy."""

    code = "FL-PRIV-000"
    exit_status = 5


class PrivacyParameterInvalid(PrivacyError):
    """A parameter that gives no guarantee: epsilon not above 0, delta not below 1/n, noise without clipping."""

    code = "FL-PRIV-001"
    wire_fields = frozenset({"parameter"})


class BudgetExhausted(PrivacyError):
    """The ledger refuses a charge: the block's budget for life would be exceeded."""

    code = "FL-PRIV-002"


class TrustError(FedloopError):
    """Signatures, envelopes, certificates, tokens."""

    code = "FL-TRUST-000"
    exit_status = 6


class EnvelopeRefused(TrustError):
    """An instruction that is not signed by the pinned key, is for another site, expired, altered or replayed."""

    code = "FL-TRUST-001"
    wire_fields = frozenset({"reason"})


class EnrollmentRefused(TrustError):
    """An unknown, used or expired token, or a certificate request that is not well-formed."""

    code = "FL-TRUST-002"
    wire_fields = frozenset({"reason"})


class FeedbackRefused(TrustError):
    """Feedback for another site than the one that a device pinned, beyond a limit, or out of order."""

    code = "FL-TRUST-003"


class DeviceRefused(TrustError):
    """A device that is unknown here, revoked, or whose certificate has expired."""

    code = "FL-TRUST-004"


class CertificateRefused(TrustError):
    """A key or certificate that cannot be read, does not fit its partner or has expired."""

    code = "FL-TRUST-005"


class PolicyRefused(TrustError):
    """The site's own policy does not allow what is asked; ``rule`` says which rule. No message can loosen it."""

    code = "FL-TRUST-006"
    wire_fields = frozenset({"rule"})


class RunError(FedloopError):
    """A run cannot start or go on."""

    code = "FL-RUN-000"
    exit_status = 7


class QuorumNotReached(RunError):
    """Fewer sites answered within the deadline than the task asks for; names those left out and why."""

    code = "FL-RUN-001"


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


class ExportError(FedloopError):
    """Conversion, quantisation, golden vectors."""

    code = "FL-EXP-000"
    exit_status = 8


class ConversionFailed(ExportError):
    """The conversion process failed, timed out or wrote something that is not right."""

    code = "FL-EXP-001"


class ReleaseError(FedloopError):
    """Registry, signed metadata, assignments."""

    code = "FL-REL-000"
    exit_status = 9


class RegistryError(ReleaseError):
    """A version, artifact or stage that the registry does not know or does not allow."""

    code = "FL-REL-001"


class MetadataRefused(ReleaseError):
    """Release metadata that does not verify."""

    code = "FL-REL-002"
    wire_fields = frozenset({"reason"})


class AssignmentRefused(ReleaseError):
    """An assignment that is for another group, has a lower counter or names an unlisted version."""

    code = "FL-REL-003"
    wire_fields = frozenset({"reason"})


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


class StorageError(FedloopError):
    """Disk and databases."""

    code = "FL-STORE-001"
    exit_status = 11
