"""How the child process tells its parent, in a sentence, why there are no artifacts."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import ValidationError

from fedloop_core.strict import Strict

__all__ = ["Failure", "first_reason"]

_FILE = "failure.json"
_LONGEST = 300


class Failure(Strict):
    """``failure.json``: a sentence and what to do next."""

    message: str
    hint: str

    def write(self, folder: Path) -> None:
        """Leaves the failure for the parent."""
        (folder / _FILE).write_text(self.model_dump_json(), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The failure that the child left, if it left a readable one."""
        try:
            return cls.model_validate_json((folder / _FILE).read_bytes())
        except (OSError, ValidationError):
            return None


def first_reason(error: BaseException) -> str:
    """Type and first line of the error at the root of a chain: converters wrap it in pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:_LONGEST]
