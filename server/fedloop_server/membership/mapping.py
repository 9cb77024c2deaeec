"""Between rows and what they mean."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from fedloop_server.membership.machine import Membership, SiteKeys, SiteState, Token
from fedloop_server.membership.nodekeys import node_key_id, raw_key_id
from fedloop_server.membership.records import Activity, ActivityKind, SiteRecord, TokenRecord
from fedloop_server.membership.tables import CertificateRow, KeyRow, MemberRow, NodeRow, RevisionRow, TokenRow

__all__ = ["keys_of", "load_membership", "new_member", "raise_revision", "site_record", "store_token", "token_of"]


def new_member(name: str, authority: bytes, now_unix: int) -> MemberRow:
    """The row of a site that was just added."""
    return MemberRow(
        name=name,
        state=SiteState.INVITED.value,
        reason="",
        authority=authority,
        added_unix=now_unix,
        joined_unix=0,
        certificate_key="",
        node_key=b"",
        signing_key=b"",
        fingerprint="",
        protocol=0,
        software_version="",
        renewal_signed_unix=0,
        trusted_bundle="",
        last_seen_unix=0,
        clock_skew_seconds=0,
        activity=ActivityKind.UNKNOWN.value,
        run_id="",
        round=0,
        step=0,
        steps=0,
        code="",
        notices_posted=0,
    )


def token_of(session: Session, site: str) -> TokenRow | None:
    """The site's token."""
    return session.scalars(select(TokenRow).where(TokenRow.site == site)).one_or_none()


def keys_of(row: MemberRow) -> SiteKeys | None:
    """The keys that the site joined with last."""
    if not row.joined_unix:
        return None
    return SiteKeys(row.certificate_key, node_key_id(row.node_key), raw_key_id(row.signing_key))


def load_membership(session: Session, row: MemberRow) -> Membership:
    """What the machine decides over."""
    token = token_of(session, row.name)
    spent = session.scalars(select(KeyRow.key_id).where(KeyRow.site == row.name, KeyRow.spent))
    return Membership(
        site=row.name,
        state=SiteState(row.state),
        token=None if token is None else Token(token.digest, token.expires_unix, token.tries, token.used_by),
        keys=keys_of(row),
        spent=frozenset(spent),
    )


def store_token(session: Session, membership: Membership, now_unix: int) -> None:
    """Makes the token's row what the machine says of it."""
    row, token = token_of(session, membership.site), membership.token
    if row is not None and (token is None or row.digest != token.digest):
        session.delete(row)
        session.flush()
        row = None
    if token is None:
        return
    if row is None:
        row = TokenRow(digest=token.digest, site=membership.site, issued_unix=now_unix)
        session.add(row)
    row.expires_unix, row.tries, row.used_by = token.expires_unix, token.tries, token.used_by


def site_record(session: Session, row: MemberRow) -> SiteRecord:
    """A site as others read it."""
    node = session.get(NodeRow, node_key_id(row.node_key)) if row.node_key else None
    certificate = session.get(CertificateRow, row.fingerprint) if row.fingerprint else None
    token = token_of(session, row.name)
    return SiteRecord(
        name=row.name,
        state=SiteState(row.state),
        node_id=int(node.node_id) if node is not None and node.node_id is not None else None,
        node_key=row.node_key,
        signing_key=row.signing_key,
        certificate_fingerprint=row.fingerprint,
        certificate_expiry_unix=certificate.expires_unix if certificate is not None else 0,
        software_version=row.software_version,
        protocol=row.protocol,
        added_unix=row.added_unix,
        joined_unix=row.joined_unix,
        last_seen_unix=row.last_seen_unix,
        clock_skew_seconds=row.clock_skew_seconds,
        activity=Activity(ActivityKind(row.activity), row.run_id, row.round, row.step, row.steps, row.code),
        authority=row.authority,
        trusted_bundle=row.trusted_bundle,
        reason=row.reason,
        token=None if token is None else TokenRecord(token.expires_unix, token.tries, bool(token.used_by)),
    )


def raise_revision(session: Session) -> None:
    """Tells open streams and the front that something changed."""
    row = session.get(RevisionRow, 1)
    if row is None:
        session.add(RevisionRow(id=1, number=1))
    else:
        row.number += 1
