"""How many rows of a batch go through a device at once: fitted to its memory, and to what it then says."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PROBE_ROWS", "BatchFit", "fitted_size"]

PROBE_ROWS = 16
"""Rows of the trial whose memory is measured."""


def fitted_size(bound: int, probe_rows: int, probe_bytes: int, free_bytes: int, share: float) -> int:
    """Rows at once, from the memory that a trial took: the bound, or the largest power of two that fits, at least 1.

    All of the trial's memory is taken to grow with its rows, so what is fitted is rather too small. Powers of two, since
    free memory is never twice the same, and the order in which float32 sums are added should be.

    Args:
        bound: the task's ``physical_batch_size``.
        probe_rows: rows of the trial.
        probe_bytes: what it took at most.
        free_bytes: what is free.
        share: of the free memory that may be used.
    """
    if probe_bytes <= 0:
        return bound
    rows = int(free_bytes * share * probe_rows / probe_bytes)
    if rows >= bound:
        return bound
    return 1 << max(rows.bit_length() - 1, 0)


@dataclass(frozen=True)
class BatchFit:
    """``size`` rows at once."""

    size: int

    def halved(self) -> BatchFit | None:
        """What to try when these are too many; nothing below one row."""
        return BatchFit(self.size // 2) if self.size > 1 else None
