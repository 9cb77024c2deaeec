"""High-water marks of the sites' ledgers, for longer than any run."""

from __future__ import annotations

from collections.abc import Mapping

from fedloop_core.errors import UsageError
from fedloop_server.database import Database
from fedloop_server.membership.tables import MemberRow
from fedloop_server.runs.heads import LedgerHead, check_head

__all__ = ["MemberHeads"]


class MemberHeads:
    """The newest head that each site ever showed; implements ``runs.heads.LedgerHeads``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def seen(self, site: str) -> LedgerHead | None:
        """The newest head that this site ever showed."""
        with self._database.reading() as session:
            row = session.get(MemberRow, site)
            return None if row is None else _head(row)

    def advance(self, heads: Mapping[str, LedgerHead]) -> None:
        """Keeps newer heads, all in one transaction; those that are behind, and of sites unknown here, change nothing."""
        with self._database.writing() as session:
            for site, head in heads.items():
                row = session.get(MemberRow, site)
                known = None if row is None else _head(row)
                if row is not None and (known is None or head.sequence > known.sequence):
                    row.ledger_sequence, row.ledger_digest = head.sequence, head.digest

    def forget(self, site: str) -> LedgerHead | None:
        """Gives up what a site has shown, which its people answer for; its next answer sets the mark anew.

        Returns what was given up, None when there was nothing.

        Raises:
            UsageError: no such site.
        """
        with self._database.writing() as session:
            row = session.get(MemberRow, site)
            if row is None:
                raise UsageError(
                    f"there is no site {site[:80]}.", hint="`fedloop server site list` shows those there are."
                )
            known = _head(row)
            row.ledger_sequence, row.ledger_digest = None, None
            return known

    def check_and_advance(self, site: str, head: LedgerHead) -> None:
        """Keeps one head that must not be behind.

        Raises:
            LedgerRolledBack: it is behind the newest one, or another entry has its number.
            UsageError: no such site.
        """
        with self._database.writing() as session:
            row = session.get(MemberRow, site)
            if row is None:
                raise UsageError(f"there is no site {site}.")
            check_head(site, _head(row), head)
            row.ledger_sequence, row.ledger_digest = head.sequence, head.digest


def _head(row: MemberRow) -> LedgerHead | None:
    if row.ledger_sequence is None or row.ledger_digest is None:
        return None
    return LedgerHead(row.ledger_sequence, row.ledger_digest)
