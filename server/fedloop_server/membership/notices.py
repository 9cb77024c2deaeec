"""Sealed envelopes that cannot wait for the next question, kept for each site until the site has acted on them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError
from sqlalchemy import delete, select

from fedloop_core.errors import EnvelopeRefused, UsageError
from fedloop_proto.coordination.v1.coordination_pb2 import Envelope, Instruction
from fedloop_server.database import Database
from fedloop_server.membership import mapping
from fedloop_server.membership.tables import MemberRow, NoticeRow

__all__ = ["Notice", "Notices"]

_KEPT = 500  # for a site that stays away; the oldest go first, but never those about authorities
_HIGHEST = 1 << 40  # a site may claim anything


@dataclass(frozen=True)
class Notice:
    """An envelope with its number at its site, from 1."""

    number: int
    envelope: bytes


class Notices:
    """Notices in the coordinator's database. ``clock`` gives Unix seconds."""

    def __init__(self, database: Database, clock: Callable[[], int] = lambda: int(time.time())) -> None:
        self._database = database
        self._clock = clock

    def post(self, site: str, envelope: bytes, *, bundle: str = "") -> int:
        """Keeps an envelope for a site and tells its open stream; gives its number.

        Args:
            site: its name.
            envelope: sealed for this site (``fedloop_core.keys.seal``).
            bundle: names the authorities, when the envelope brings some.

        Raises:
            EnvelopeRefused: the envelope is for another site, or says no time at which it expires.
            UsageError: no such site.
        """
        expires_unix = _expiry(site, envelope)
        with self._database.writing() as session:
            row = session.get(MemberRow, site)
            if row is None:
                raise UsageError(f"there is no site {site}.")
            now_unix = self._clock()
            session.execute(delete(NoticeRow).where(NoticeRow.site == site, NoticeRow.expires_unix < now_unix))
            kept = select(NoticeRow).where(NoticeRow.site == site, NoticeRow.bundle == "").order_by(NoticeRow.number)
            for old in session.scalars(kept).all()[: -_KEPT + 1]:
                session.delete(old)
            row.notices_posted += 1
            session.add(
                NoticeRow(
                    site=site,
                    number=row.notices_posted,
                    envelope=envelope,
                    bundle=bundle,
                    posted_unix=now_unix,
                    expires_unix=expires_unix,
                )
            )
            mapping.raise_revision(session)
            return row.notices_posted

    def pending(self, site: str, above: int = 0) -> tuple[Notice, ...]:
        """Notices with a higher number, in order, that have not expired."""
        query = (
            select(NoticeRow)
            .where(NoticeRow.site == site, NoticeRow.number > above, NoticeRow.expires_unix >= self._clock())
            .order_by(NoticeRow.number)
        )
        with self._database.reading() as session:
            return tuple(Notice(row.number, row.envelope) for row in session.scalars(query))

    def waits_for(self, site: str, bundle: str) -> bool:
        """Whether a notice that brings these authorities is kept for the site and has not expired."""
        query = select(NoticeRow).where(
            NoticeRow.site == site, NoticeRow.bundle == bundle, NoticeRow.expires_unix >= self._clock()
        )
        with self._database.reading() as session:
            return session.scalars(query).first() is not None

    def acknowledge(self, site: str, number: int) -> None:
        """The site has acted on all notices up to this number, or refused them for good; which of both nobody knows.

        A number above all that were posted comes from a time that this database has lost: later notices get higher ones.
        """
        done = select(NoticeRow).where(NoticeRow.site == site, NoticeRow.number <= number).order_by(NoticeRow.number)
        with self._database.reading() as session:
            row = session.get(MemberRow, site)
            if row is None or (number <= row.notices_posted and session.scalars(done).first() is None):
                return
        with self._database.writing() as session:
            row = session.get(MemberRow, site)
            if row is None:
                return
            for notice in session.scalars(done).all():
                session.delete(notice)
            row.notices_posted = max(row.notices_posted, min(number, _HIGHEST))


def _expiry(site: str, envelope: bytes) -> int:
    try:
        instruction = Instruction.FromString(Envelope.FromString(envelope).instruction)
    except DecodeError as error:
        raise EnvelopeRefused("a notice is not an envelope.", reason="format") from error
    if instruction.site != site or instruction.expires_unix <= 0:
        raise EnvelopeRefused(f"a notice is not for site {site}, or never expires.", reason="site")
    return instruction.expires_unix
