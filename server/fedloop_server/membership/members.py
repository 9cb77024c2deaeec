"""The sites of a federation, in the coordinator's database."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from fedloop_core.errors import CertificateRefused, JoinRefused, SiteRevoked, UsageError
from fedloop_core.federation.names import is_site_name
from fedloop_server.database import Database
from fedloop_server.membership import machine, mapping
from fedloop_server.membership.heads import MemberHeads
from fedloop_server.membership.joining import write_join, write_renewal
from fedloop_server.membership.machine import (
    Left,
    Membership,
    Revoked,
    SiteKeys,
    SiteState,
    TokenIssued,
    TokenWithdrawn,
)
from fedloop_server.membership.nodekeys import node_key_id
from fedloop_server.membership.records import Activity, IssuedCertificate, JoinedSite, SiteRecord
from fedloop_server.membership.tables import CertificateRow, KeyRow, MemberRow, NodeRow, RevisionRow, TokenRow
from fedloop_server.runs.heads import LedgerHead

__all__ = ["Members"]

_SHUT_OUT = (SiteState.REVOKED, SiteState.LEFT)


class Members:
    """Sites, their keys, certificates and tokens. Every call is one transaction; threads and processes may share the database.

    All methods raise ``StorageError`` when the database fails. ``clock`` gives Unix seconds.
    """

    def __init__(self, database: Database, clock: Callable[[], int] = lambda: int(time.time())) -> None:
        self.database = database
        self.clock = clock
        self.heads = MemberHeads(database)

    # Reading.

    def sites(self) -> tuple[SiteRecord, ...]:
        """All sites by name, those that are no longer active included."""
        with self.database.reading() as session:
            rows = session.scalars(select(MemberRow).order_by(MemberRow.name))
            return tuple(mapping.site_record(session, row) for row in rows)

    def site(self, name: str) -> SiteRecord:
        """One site.

        Raises:
            UsageError: there is none of this name.
        """
        with self.database.reading() as session:
            return mapping.site_record(session, _known(session, name))

    def find(self, name: str) -> SiteRecord | None:
        """One site, or None."""
        with self.database.reading() as session:
            row = session.get(MemberRow, name)
            return None if row is None else mapping.site_record(session, row)

    def by_node_key(self, node_key: bytes) -> SiteRecord | None:
        """The active site whose Flower node has this key (PEM as in Flower's header)."""
        query = select(MemberRow).where(MemberRow.node_key == node_key, MemberRow.state == SiteState.ACTIVE.value)
        with self.database.reading() as session:
            row = session.scalars(query).one_or_none()
            return None if row is None else mapping.site_record(session, row)

    def by_certificate(self, fingerprint: str) -> SiteRecord:
        """The site that may call under this certificate (hex SHA-256 of its DER).

        Raises:
            CertificateRefused: no site was given the certificate, as far as this database knows: it may have been put back.
            SiteRevoked: the certificate is expired or withdrawn, or the site is not active.
        """
        with self.database.reading() as session:
            certificate = session.get(CertificateRow, fingerprint)
            if certificate is None:
                raise CertificateRefused("a call under a certificate that no site was given.", hint="Renew it.")
            row = _known(session, certificate.site)
            machine.check_active(mapping.load_membership(session, row))
            if certificate.withdrawn or certificate.expires_unix < self.clock():
                raise SiteRevoked(
                    f"site {row.name}: its certificate expired or was replaced when it joined again.",
                    hint="`fedloop site doctor` at the site says more.",
                    site=row.name,
                )
            return mapping.site_record(session, row)

    def institutions(self) -> tuple[bytes, ...]:
        """Authorities (PEM) of active sites that have their own."""
        query = select(MemberRow.authority).where(MemberRow.authority != b"", MemberRow.state == SiteState.ACTIVE.value)
        with self.database.reading() as session:
            return tuple(session.scalars(query))

    def revision(self) -> int:
        """Rises when a site joins, is revoked or leaves, and when a notice is posted."""
        with self.database.reading() as session:
            row = session.get(RevisionRow, 1)
            return 0 if row is None else row.number

    # Inviting and shutting out.

    def add(self, name: str, *, authority: bytes = b"") -> SiteRecord:
        """Adds a site; it is invited once it has a token. ``authority`` is the PEM of the institution's own authority.

        Raises:
            UsageError: the name is taken or no name for a site.
        """
        if not is_site_name(name):
            raise UsageError(
                f"a site cannot be named {name!r}.",
                hint="Use up to 63 small letters, digits and '-', a letter or digit first.",
            )
        with self.database.writing() as session:
            if session.get(MemberRow, name) is not None:
                raise UsageError(
                    f"there is a site {name} already.", hint=f"`fedloop server site renew {name}` gives it a new token."
                )
            row = mapping.new_member(name, authority, self.clock())
            session.add(row)
            session.flush()
            return mapping.site_record(session, row)

    def set_authority(self, name: str, authority: bytes) -> None:
        """Replaces the institution's own authority (PEM; empty for none).

        Raises:
            UsageError: no such site.
        """
        with self.database.writing() as session:
            _known(session, name).authority = authority
            mapping.raise_revision(session)

    def issue_token(self, name: str, digest: bytes, expires_unix: int) -> None:
        """Makes a token known by its digest; an earlier one of this site is worth nothing from then on.

        Raises:
            UsageError: no such site.
        """
        self._apply(name, TokenIssued(digest, expires_unix))

    def withdraw_token(self, name: str) -> bool:
        """Makes the site's token worthless; False when it had none that was not used.

        Raises:
            UsageError: no such site.
        """
        with self.database.reading() as session:
            _known(session, name)
            token = mapping.token_of(session, name)
        self._apply(name, TokenWithdrawn())
        return token is not None and not token.used_by

    def revoke(self, name: str, reason: str) -> SiteRecord:
        """Shuts a site out: its certificates, keys and token are worth nothing from now on.

        Raises:
            UsageError: no such site.
        """
        return self._apply(name, Revoked(), reason=reason)

    def mark_left(self, name: str, reason: str = "the site left") -> SiteRecord:
        """The site takes no further part, by its own word.

        Raises:
            UsageError: no such site.
            SiteRevoked: it is not active.
        """
        return self._apply(name, Left(), reason=reason)

    def _apply(self, name: str, event: machine.Event, *, reason: str = "") -> SiteRecord:
        with self.database.writing() as session:
            row = _known(session, name)
            after = machine.apply(mapping.load_membership(session, row), event)
            row.state, row.reason = after.state.value, reason or row.reason
            mapping.store_token(session, after, self.clock())
            if after.state in _SHUT_OUT:
                session.execute(update(KeyRow).where(KeyRow.site == name).values(spent=True))
                session.execute(update(NodeRow).where(NodeRow.site == name).values(wanted=False))
                session.execute(update(CertificateRow).where(CertificateRow.site == name).values(withdrawn=True))
                mapping.raise_revision(session)
            session.flush()
            return mapping.site_record(session, row)

    # Joining and renewing.

    def invitation(self, digest: bytes) -> Membership:
        """The membership whose token has this digest.

        Raises:
            JoinRefused: there is no such token, or none any more.
        """
        with self.database.reading() as session:
            token = session.get(TokenRow, digest)
            if token is None:
                raise JoinRefused(
                    "the token is not known here.",
                    hint="It was withdrawn or replaced, or is of another coordinator: ask for a new one.",
                    reason="unknown",
                )
            return mapping.load_membership(session, _known(session, token.site))

    def count_try(self, digest: bytes) -> None:
        """Counts a failed try of someone who holds the token."""
        with self.database.writing() as session:
            token = session.get(TokenRow, digest)
            if token is not None:
                token.tries += 1

    def record_join(self, digest: bytes, keys: SiteKeys, make: Callable[[str], JoinedSite], bundle: str) -> SiteRecord:
        """Admits the site that holds the token, or finds that these very keys were admitted by it.

        Args:
            digest: of the token's secret.
            keys: ids of the keys that the site brings.
            make: gives what is stored, by the site's name; called only when the site joins for the first time.
            bundle: names the authorities that the site is told of.

        Raises:
            JoinRefused: as ``machine.check_join``, or the token is gone.
        """
        with self.database.writing() as session:
            return write_join(session, digest, keys, make, bundle, self.clock())

    def record_renewal(self, name: str, certificate: IssuedCertificate, key: str, signed_unix: int) -> SiteRecord:
        """Stores a renewed certificate; earlier ones stay good until they expire, since the answer may be lost.

        Raises:
            SiteRevoked: the site is not active.
            JoinRefused: a renewal signed then or later was answered before, or the key is another site's.
        """
        with self.database.writing() as session:
            return write_renewal(session, name, certificate, key, signed_unix, self.clock())

    def certificate(self, name: str) -> bytes:
        """The site's newest certificate, PEM with its chain; empty before it joined.

        Raises:
            UsageError: no such site.
        """
        with self.database.reading() as session:
            row = _known(session, name)
            found = session.get(CertificateRow, row.fingerprint)
            return b"" if found is None else found.pem

    # What sites say, and what is done for them.

    def record_report(
        self,
        name: str,
        activity: Activity,
        *,
        site_unix: int,
        protocol: int,
        software_version: str,
        trusted_bundle: str = "",
    ) -> None:
        """Stores what a site reported: that it is there, its clock, what it does, and whom it trusts.

        Raises:
            UsageError: no such site.
        """
        now_unix = self.clock()
        with self.database.writing() as session:
            row = _known(session, name)
            row.last_seen_unix, row.clock_skew_seconds = now_unix, site_unix - now_unix
            row.protocol, row.software_version = protocol, software_version
            row.trusted_bundle = trusted_bundle or row.trusted_bundle
            row.activity, row.run_id = activity.kind.value, activity.run_id
            row.round, row.step, row.steps, row.code = activity.round, activity.step, activity.steps, activity.code

    def seen(self, name: str) -> None:
        """The site is there.

        Raises:
            UsageError: no such site.
        """
        with self.database.writing() as session:
            _known(session, name).last_seen_unix = self.clock()

    def nodes_to_register(self) -> tuple[tuple[str, bytes], ...]:
        """Sites with node keys (PEM) that Flower does not know yet."""
        query = select(NodeRow).where(NodeRow.wanted, NodeRow.node_id.is_(None)).order_by(NodeRow.site)
        with self.database.reading() as session:
            return tuple((row.site, row.node_key) for row in session.scalars(query))

    def nodes_to_unregister(self) -> tuple[tuple[str, int, bytes], ...]:
        """Sites with Flower's node id and key of nodes that must go."""
        query = select(NodeRow).where(~NodeRow.wanted, NodeRow.node_id.is_not(None)).order_by(NodeRow.site)
        with self.database.reading() as session:
            return tuple((row.site, int(row.node_id or 0), row.node_key) for row in session.scalars(query))

    def registered_nodes(self) -> tuple[tuple[str, int, bytes], ...]:
        """Sites with Flower's node id and key of nodes that Flower should have."""
        query = select(NodeRow).where(NodeRow.node_id.is_not(None)).order_by(NodeRow.site)
        with self.database.reading() as session:
            return tuple((row.site, int(row.node_id or 0), row.node_key) for row in session.scalars(query))

    def set_node(self, node_key: bytes, node_id: int | None) -> None:
        """Stores what Flower calls a node, or that Flower has it no longer.

        Raises:
            UsageError: no site has this node key.
        """
        with self.database.writing() as session:
            row = session.get(NodeRow, node_key_id(node_key))
            if row is None:
                raise UsageError("no site has this node key.")
            row.node_id = None if node_id is None else str(node_id)
            mapping.raise_revision(session)

    def ledger_head(self, name: str) -> LedgerHead | None:
        """The newest head of the site's ledger that was ever seen."""
        return self.heads.seen(name)

    def advance_ledger_head(self, name: str, head: LedgerHead) -> None:
        """Takes in a newer head.

        Raises:
            LedgerRolledBack: it is behind the newest one, or another entry has its number.
        """
        self.heads.check_and_advance(name, head)

    def forget_expired_certificates(self, older_than_seconds: int = 30 * 86_400) -> None:
        """Drops certificates that expired long ago and are nobody's newest."""
        current = select(MemberRow.fingerprint)
        limit = self.clock() - older_than_seconds
        with self.database.writing() as session:
            session.execute(
                delete(CertificateRow).where(
                    CertificateRow.expires_unix < limit, CertificateRow.fingerprint.not_in(current)
                )
            )


def _known(session: Session, name: str) -> MemberRow:
    row = session.get(MemberRow, name)
    if row is None:
        raise UsageError(f"there is no site {name[:80]}.", hint="`fedloop server site list` shows those there are.")
    return row
