"""The three things that a device numbers and sends."""

from __future__ import annotations

from enum import Enum

__all__ = ["Stream"]


class Stream(Enum):
    """Each is numbered on its own, from 1."""

    STATUS = "status"
    SKETCH = "sketch"
    LABELLED = "labelled"
