"""Conversion, registry, signed metadata, assignments."""

from __future__ import annotations

from fedloop_core.errors.root import FedloopError

__all__ = ["AssignmentRefused", "ConversionFailed", "ExportError", "MetadataRefused", "RegistryError", "ReleaseError"]


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
