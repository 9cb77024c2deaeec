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
├── StorageError               exit 11  disk, databases, logs that must not change, backups
├── NetworkError               exit 12  the way between coordinator and site
├── ProcessError               exit 13  processes and their supervisor
└── SettingsError              exit 3   server.toml, site.toml, folders

Each class has a stable code and an exit status. The message says which site, file, column, row, round or device it is
about; the hint says what to do next. There are two renderings: ``str(error)`` for the person on the spot, and
``error.wire()``, which carries only the code and those fields that the class allows to leave the site.
"""

from __future__ import annotations

from fedloop_core.errors.data import (
    ColumnMissing,
    ColumnValueInvalid,
    DataError,
    DataGateFailed,
    FileMissing,
    LabelUnknown,
    SourceInvalid,
    TooFewRows,
)
from fedloop_core.errors.device import (
    ArtifactRefused,
    DeviceError,
    GoldenMismatch,
    HubBusy,
    HubRefused,
    HubUnreachable,
    InputRefused,
    NoActiveModel,
    OutputRefused,
    PredictionUnknown,
    RuntimeUnavailable,
    SketchRefused,
)
from fedloop_core.errors.heard import UNKNOWN_CODE, class_of, heard
from fedloop_core.errors.network import CoordinatorUnreachable, NetworkError, RequestRefused
from fedloop_core.errors.privacy import (
    BudgetExhausted,
    BudgetFixed,
    DataClaimed,
    LedgerRolledBack,
    PrivacyError,
    PrivacyParameterInvalid,
    SecureAggregationRefused,
)
from fedloop_core.errors.process import AlreadyRunning, ProcessError, ProcessFailed
from fedloop_core.errors.release import (
    AssignmentRefused,
    ConversionFailed,
    ExportError,
    MetadataRefused,
    RegistryError,
    ReleaseError,
)
from fedloop_core.errors.root import FedloopError, WireError
from fedloop_core.errors.run import (
    AttemptBehind,
    DeviceLost,
    QualityGateFailed,
    QuorumNotReached,
    RunBusy,
    RunCancelled,
    RunError,
    TooFewUpdates,
    UpdateError,
    UpdateRefused,
)
from fedloop_core.errors.settings import AlreadySetUp, NotSetUp, SettingsError, SettingsInvalid
from fedloop_core.errors.storage import AuditBroken, BackupRefused, ContentDamaged, DiskFull, StorageError
from fedloop_core.errors.task import ModelDiffers, TaskError, TaskInvalid, TaskUnreadable
from fedloop_core.errors.trust import (
    AnswerRefused,
    CertificateRefused,
    ClockSkewed,
    ConsortiumRefused,
    DeviceRefused,
    EnrollmentRefused,
    EnvelopeRefused,
    FeedbackRefused,
    JoinRefused,
    PolicyRefused,
    SiteRevoked,
    TrustError,
    VersionRefused,
)
from fedloop_core.errors.usage import UsageError

__all__ = [
    "UNKNOWN_CODE",
    "AlreadyRunning",
    "AlreadySetUp",
    "AnswerRefused",
    "ArtifactRefused",
    "AssignmentRefused",
    "AttemptBehind",
    "AuditBroken",
    "BackupRefused",
    "BudgetExhausted",
    "BudgetFixed",
    "CertificateRefused",
    "ClockSkewed",
    "ColumnMissing",
    "ColumnValueInvalid",
    "ConsortiumRefused",
    "ContentDamaged",
    "ConversionFailed",
    "CoordinatorUnreachable",
    "DataClaimed",
    "DataError",
    "DataGateFailed",
    "DeviceError",
    "DeviceLost",
    "DeviceRefused",
    "DiskFull",
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
    "JoinRefused",
    "LabelUnknown",
    "LedgerRolledBack",
    "MetadataRefused",
    "ModelDiffers",
    "NetworkError",
    "NoActiveModel",
    "NotSetUp",
    "OutputRefused",
    "PolicyRefused",
    "PredictionUnknown",
    "PrivacyError",
    "PrivacyParameterInvalid",
    "ProcessError",
    "ProcessFailed",
    "QualityGateFailed",
    "QuorumNotReached",
    "RegistryError",
    "ReleaseError",
    "RequestRefused",
    "RunBusy",
    "RunCancelled",
    "RunError",
    "RuntimeUnavailable",
    "SecureAggregationRefused",
    "SettingsError",
    "SettingsInvalid",
    "SiteRevoked",
    "SketchRefused",
    "SourceInvalid",
    "StorageError",
    "TaskError",
    "TaskInvalid",
    "TaskUnreadable",
    "TooFewRows",
    "TooFewUpdates",
    "TrustError",
    "UpdateError",
    "UpdateRefused",
    "UsageError",
    "VersionRefused",
    "WireError",
    "class_of",
    "heard",
]
