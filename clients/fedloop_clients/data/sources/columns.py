"""Columns of sources that have types: those whose cells a person could have typed, or arrays of numbers."""

from __future__ import annotations

import pyarrow as pa

from fedloop_core.errors import SourceInvalid

__all__ = ["check_types", "plain"]


def check_types(where: str, fields: list[pa.Field]) -> None:
    """Goes on only when each column can be understood.

    Raises:
        SourceInvalid: names a column whose cells are tables, bytes or spans of time.
    """
    for field in fields:
        if not _is_understood(field.type):
            raise SourceInvalid(
                f"{where}: column {field.name!r} holds {field.type}, which is neither text, number, date, truth value nor array of numbers.",
                hint="Convert it where it comes from.",
                column=field.name,
            )


def plain(column: pa.Array) -> pa.Array:
    """The column without an extension type's dress."""
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def _is_understood(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _is_understood(kind.storage_type)
    if pa.types.is_dictionary(kind) or _is_list(kind):
        return _is_understood(kind.value_type)
    tests = (
        *(pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
        *(pa.types.is_string, pa.types.is_large_string, pa.types.is_date, pa.types.is_timestamp),
    )
    return any(test(kind) for test in tests)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
