"""What may be believed of an error that somebody told over the wire: its code, if there is one, and its class's fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedloop_core.errors.root import FedloopError, WireError
from fedloop_core.printable import printable

__all__ = ["UNKNOWN_CODE", "class_of", "heard"]

UNKNOWN_CODE = "unknown"
"""Stands for every code that no error class of this release has."""

_LONGEST_VALUE = 100  # characters


def class_of(code: str) -> type[FedloopError] | None:
    """The error class with this code, if this release has one."""
    return next((kind for kind in _kinds(FedloopError) if kind.code == code), None)


def heard(code: str, fields: Mapping[str, str]) -> WireError:
    """An error as it was told: nothing of it is the sender's to choose but short values of fields that its class allows.

    Args:
        code: as it came; ``UNKNOWN_CODE`` takes the place of one that no class has, and then no field is kept.
        fields: as they came. Values are cut to 100 characters, all of them printable.
    """
    kind = class_of(code)
    if kind is None:
        return WireError(UNKNOWN_CODE, {})
    allowed = (name for name in sorted(kind.wire_fields) if name in fields)
    return WireError(code, {name: printable(fields[name], _LONGEST_VALUE) for name in allowed})


def _kinds(kind: type[FedloopError]) -> Iterator[type[FedloopError]]:
    yield kind
    for further in kind.__subclasses__():
        yield from _kinds(further)
