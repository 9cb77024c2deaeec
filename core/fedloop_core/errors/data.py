"""Rows, columns, labels, files of data."""

from __future__ import annotations

from fedloop_core.errors.root import FedloopError

__all__ = [
    "ColumnMissing",
    "ColumnValueInvalid",
    "DataError",
    "DataGateFailed",
    "FileMissing",
    "LabelUnknown",
    "SourceInvalid",
    "TooFewRows",
]


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


class SourceInvalid(DataError):
    """A source is not written as it is declared to be, or how it is written cannot be told for sure."""

    code = "FL-DATA-007"
    wire_fields = frozenset({"column"})
