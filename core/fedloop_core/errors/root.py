"""The root of all errors, and what of an error may leave the place where it happened."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

__all__ = ["FedloopError", "Field", "WireError"]

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
