"""Writing a joining or a renewal, inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from fedloop_core.errors import JoinRefused
from fedloop_server.membership import machine, mapping
from fedloop_server.membership.machine import Joined, SiteKeys
from fedloop_server.membership.nodekeys import node_key_id
from fedloop_server.membership.records import IssuedCertificate, JoinedSite, SiteRecord
from fedloop_server.membership.tables import CertificateRow, KeyRow, MemberRow, NodeRow, NoticeRow, TokenRow

__all__ = ["write_join", "write_renewal"]


def write_join(
    session: Session, digest: bytes, keys: SiteKeys, make: Callable[[str], JoinedSite], bundle: str, now_unix: int
) -> SiteRecord:
    """See ``Members.record_join``."""
    token = session.get(TokenRow, digest)
    row = None if token is None else session.get(MemberRow, token.site)
    if row is None:
        raise JoinRefused("the token is not known here.", hint="Ask for a new one.", reason="unknown")
    membership = mapping.load_membership(session, row)
    foreign = session.scalars(select(KeyRow.key_id).where(KeyRow.key_id.in_(keys.ids), KeyRow.site != row.name)).all()
    if machine.check_join(membership, keys, foreign=foreign, now_unix=now_unix):
        row.trusted_bundle = bundle
        return mapping.site_record(session, row)
    joined = make(row.name)
    _retire(session, row.name)
    after = machine.apply(membership, Joined(keys))
    _describe(row, after.state.value, keys, joined, bundle, now_unix)
    mapping.store_token(session, after, now_unix)
    for key_id in sorted(keys.ids):
        session.add(KeyRow(key_id=key_id, site=row.name, spent=False))
    node = NodeRow(
        key_id=node_key_id(joined.node_key), site=row.name, node_key=joined.node_key, node_id=None, wanted=True
    )
    session.add(node)
    _add_certificate(session, row.name, joined.certificate, now_unix)
    mapping.raise_revision(session)
    session.flush()
    return mapping.site_record(session, row)


def _retire(session: Session, name: str) -> None:
    """Whatever the site had before is worth nothing; notices sealed for it then are not for the new installation."""
    session.execute(update(KeyRow).where(KeyRow.site == name).values(spent=True))
    session.execute(update(NodeRow).where(NodeRow.site == name).values(wanted=False))
    session.execute(update(CertificateRow).where(CertificateRow.site == name).values(withdrawn=True))
    for notice in session.scalars(select(NoticeRow).where(NoticeRow.site == name)):
        session.delete(notice)


def _describe(row: MemberRow, state: str, keys: SiteKeys, joined: JoinedSite, bundle: str, now_unix: int) -> None:
    row.state, row.reason = state, ""
    row.certificate_key = keys.certificate_key
    row.node_key, row.signing_key = joined.node_key, joined.signing_key
    row.fingerprint = joined.certificate.fingerprint
    row.joined_unix, row.renewal_signed_unix = now_unix, 0
    row.protocol, row.software_version = joined.protocol, joined.software_version
    row.trusted_bundle = bundle


def write_renewal(
    session: Session, name: str, certificate: IssuedCertificate, key: str, signed_unix: int, now_unix: int
) -> SiteRecord:
    """See ``Members.record_renewal``."""
    row = session.get(MemberRow, name)
    if row is None:
        raise JoinRefused("a renewal for a site that is not known here.", reason="unknown")
    machine.check_active(mapping.load_membership(session, row))
    if signed_unix <= row.renewal_signed_unix:
        raise JoinRefused(
            f"site {name}: this renewal, or one signed after it, was answered before.",
            hint="Sign a new request.",
            reason="replayed",
        )
    known = session.get(KeyRow, key)
    if known is not None and (known.site != name or known.spent):
        raise JoinRefused(f"site {name}: the certificate's key is not its own.", hint="Make a new key.", reason="keys")
    if known is None:
        session.add(KeyRow(key_id=key, site=name, spent=False))
    row.certificate_key = key
    row.renewal_signed_unix, row.fingerprint = signed_unix, certificate.fingerprint
    _add_certificate(session, name, certificate, now_unix)
    session.flush()
    return mapping.site_record(session, row)


def _add_certificate(session: Session, name: str, certificate: IssuedCertificate, now_unix: int) -> None:
    """An institution may show a certificate of its own again; one that was withdrawn stays so."""
    known = session.get(CertificateRow, certificate.fingerprint)
    if known is not None and (known.site != name or known.withdrawn):
        raise JoinRefused(f"site {name}: the certificate was used before.", hint="Bring a new one.", reason="keys")
    if known is None:
        session.add(
            CertificateRow(
                fingerprint=certificate.fingerprint,
                site=name,
                pem=certificate.pem,
                issued_unix=now_unix,
                expires_unix=certificate.expires_unix,
                withdrawn=False,
            )
        )
