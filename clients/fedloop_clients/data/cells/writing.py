"""How a site writes the cells of a column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Writing"]


@dataclass(frozen=True)
class Writing:
    """How a site writes the cells of a column.

    ``missing``: markers of missing values, capitals or not. ``recode``: text that stands for another. ``decimal`` and
    ``thousands``: marks in numbers that are written as text; no thousands mark is "".
    """

    missing: frozenset[str] = frozenset({""})
    recode: Mapping[str, str] = field(default_factory=dict)
    decimal: str = "."
    thousands: str = ""

    @property
    def markers(self) -> frozenset[str]:
        """The markers in small letters, without blanks around them."""
        return frozenset(marker.strip().lower() for marker in self.missing)
