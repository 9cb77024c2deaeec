"""What can be wrong with a cell or a row."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

__all__ = ["ColumnFaults", "Fault"]


class Fault(StrEnum):
    """Why a row cannot be used."""

    BROKEN = "broken row"
    MISSING = "missing"
    NOT_A_NUMBER = "not a number"
    NOT_FINITE = "not finite"
    NOT_A_DATE = "not a date"
    UNKNOWN_VALUE = "unknown value"
    UNKNOWN_LABEL = "unknown label"
    WRONG_SIZE = "wrong size"
    NOT_AN_ARRAY = "not an array of numbers"
    NO_UNIT = "no unit"


@dataclass(frozen=True)
class ColumnFaults:
    """Rows of a batch whose cell in one column has this fault: bool ``[rows]``."""

    column: str
    fault: Fault
    rows: NDArray[np.bool_]
