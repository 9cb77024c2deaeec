"""Whether quotation marks stand where RFC 4180 has them, over blocks of bytes of any size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Misplaced", "QuotationMarks"]

_QUOTE = ord('"')
_LINE_FEED = ord("\n")


@dataclass(frozen=True)
class Misplaced:
    """A mark that is wrong, on this line from 1."""

    line: int
    why: str


class QuotationMarks:
    """Follows the marks of a text: an opening one begins a cell, a closing one ends it, a doubled one is part of it.

    Args:
        delimiter: between cells, as a byte.
    """

    def __init__(self, delimiter: int) -> None:
        around = np.zeros(256, dtype=np.bool_)
        around[[delimiter, _LINE_FEED, ord("\r"), _QUOTE]] = True
        self._around = around  # what may stand before an opening mark and after a closing one
        self._before = _LINE_FEED  # the last byte of the block before; a text begins as a line does
        self._inside = False
        self._opened = 0  # the line of the last mark that opened a cell
        self._line = 1

    def take(self, block: bytes, first_line: int) -> Misplaced | None:
        """Follows the next block, whose first byte stands on this line; the first wrong mark, or None."""
        self._line = first_line
        if not block:
            return None
        content = np.frombuffer(block, dtype=np.uint8)
        if self._before == _QUOTE and not self._inside and not self._around[content[0]]:
            return Misplaced(first_line, "text follows the quotation mark that closes its cell")
        marks = np.flatnonzero(content == _QUOTE) if b'"' in block else np.empty(0, dtype=np.int64)
        wrong = self._wrong(content, marks) if len(marks) else None
        if wrong is not None:
            return wrong
        self._before = int(content[-1])
        return None

    def end(self) -> Misplaced | None:
        """The text has ended: a cell that is open still is wrong."""
        return Misplaced(self._opened, "a quotation mark opens a cell that nothing closes") if self._inside else None

    def _wrong(self, content: NDArray[np.uint8], marks: NDArray[np.int64]) -> Misplaced | None:
        opens = (np.arange(len(marks)) % 2 == 0) ^ self._inside
        before = np.where(marks > 0, content[np.maximum(marks - 1, 0)], self._before)
        last = len(content) - 1
        after = np.where(marks < last, content[np.minimum(marks + 1, last)], _LINE_FEED)
        bad = np.where(opens, ~self._around[before], ~self._around[after])
        if bad.any():
            at = int(np.argmax(bad))
            why = "stands in the middle of a cell" if opens[at] else "closes a cell, and text follows it"
            return Misplaced(self._line_of(content, int(marks[at])), f"a quotation mark {why}")
        opened = marks[opens]
        if len(opened):
            self._opened = self._line_of(content, int(opened[-1]))
        self._inside = bool(opens[-1])
        return None

    def _line_of(self, content: NDArray[np.uint8], place: int) -> int:
        return self._line + int(np.count_nonzero(content[:place] == _LINE_FEED))
