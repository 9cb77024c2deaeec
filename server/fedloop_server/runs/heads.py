"""The newest heads of the sites' ledgers: a site that falls behind what it showed before has lost charges.

A hash chain cannot tell that its end was cut off, as when a snapshot of the site's disk is restored; whoever saw a later head
can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from fedloop_core.errors import LedgerRolledBack

__all__ = ["HeadsOfRun", "LedgerHead", "LedgerHeads", "MemoryHeads", "check_head"]


@dataclass(frozen=True)
class LedgerHead:
    """Number and digest of the newest entry of a site's ledger."""

    sequence: int
    digest: bytes


class LedgerHeads(Protocol):
    """The high-water marks, kept for longer than any run."""

    def seen(self, site: str) -> LedgerHead | None:
        """The newest head that this site ever showed."""

    def advance(self, heads: Mapping[str, LedgerHead]) -> None:
        """Keeps newer heads, all in one transaction; a head that is behind what another process kept changes nothing."""


class MemoryHeads:
    """Heads that are forgotten with the process: for rehearsals."""

    def __init__(self) -> None:
        self._heads: dict[str, LedgerHead] = {}

    def seen(self, site: str) -> LedgerHead | None:
        """The newest head that this site ever showed."""
        return self._heads.get(site)

    def advance(self, heads: Mapping[str, LedgerHead]) -> None:
        """Keeps newer heads."""
        for site, head in heads.items():
            known = self._heads.get(site)
            if known is None or head.sequence >= known.sequence:
                self._heads[site] = head


class HeadsOfRun:
    """Heads as answers show them; ``keep`` stores them, at each round's close."""

    def __init__(self, kept: LedgerHeads) -> None:
        self._kept = kept
        self._fresh: dict[str, LedgerHead] = {}

    def newest(self, site: str) -> LedgerHead | None:
        """The newest head of a site, kept or not; other runs may keep newer ones at any time."""
        kept, fresh = self._kept.seen(site), self._fresh.get(site)
        if kept is None or fresh is None:
            return fresh or kept
        return max(kept, fresh, key=lambda head: head.sequence)

    def see(self, site: str, asked_with: LedgerHead | None, head: LedgerHead) -> None:
        """Takes in the head of an answer to a question that named ``asked_with`` as the newest one.

        Raises:
            LedgerRolledBack: it is behind that one, or another entry has its number.
        """
        check_head(site, asked_with, head)
        fresh = self._fresh.get(site)
        if fresh is None or head.sequence > fresh.sequence:
            self._fresh[site] = head

    def keep(self) -> None:
        """Stores what is new."""
        if self._fresh:
            self._kept.advance(dict(self._fresh))
            self._fresh.clear()


def check_head(site: str, newest: LedgerHead | None, head: LedgerHead) -> None:
    """Compares a head with the newest one that was seen before it.

    Raises:
        LedgerRolledBack: it is behind, or another entry has its number.
    """
    if newest is None or head.sequence > newest.sequence or head == newest:
        return
    what = (
        f"is at entry {head.sequence}; it was at {newest.sequence} before"
        if head.sequence < newest.sequence
        else f"has another entry {head.sequence} than before"
    )
    raise LedgerRolledBack(
        f"the ledger of site {site} {what}.",
        hint="A snapshot was restored there, or a second copy of the site is in use: stop one, and restore the ledger.",
    )
