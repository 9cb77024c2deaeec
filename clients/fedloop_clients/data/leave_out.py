"""Whose rows are passed over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["LeaveOut"]


class LeaveOut(Protocol):
    """Says whose rows are passed over before anything of them is looked at."""

    @property
    def column(self) -> str:
        """The site's name of the column that names the person of a row."""

    @property
    def leaves_out(self) -> Callable[[str], bool]:
        """Whether a person takes no part."""
