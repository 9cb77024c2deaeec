"""The tables of membership. Public keys and certificates only; of a token's secret a digest."""

from __future__ import annotations

from sqlalchemy import ForeignKey, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from fedloop_server.database import Base

__all__ = ["CertificateRow", "KeyRow", "MemberRow", "NodeRow", "NoticeRow", "RevisionRow", "TokenRow"]


class MemberRow(Base):
    """A site, by our name for it."""

    __tablename__ = "sites"
    name: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str]
    reason: Mapped[str]
    authority: Mapped[bytes] = mapped_column(LargeBinary)
    added_unix: Mapped[int]
    joined_unix: Mapped[int]
    certificate_key: Mapped[str]
    node_key: Mapped[bytes] = mapped_column(LargeBinary)
    signing_key: Mapped[bytes] = mapped_column(LargeBinary)
    fingerprint: Mapped[str]
    protocol: Mapped[int]
    software_version: Mapped[str]
    renewal_signed_unix: Mapped[int]
    trusted_bundle: Mapped[str]
    last_seen_unix: Mapped[int]
    clock_skew_seconds: Mapped[int]
    activity: Mapped[str]
    run_id: Mapped[str]
    round: Mapped[int]
    step: Mapped[int]
    steps: Mapped[int]
    code: Mapped[str]
    notices_posted: Mapped[int]
    ledger_sequence: Mapped[int | None]
    ledger_digest: Mapped[bytes | None] = mapped_column(LargeBinary)


def _of_a_site() -> Mapped[str]:
    return mapped_column(ForeignKey(MemberRow.name), index=True)


class TokenRow(Base):
    """The one token of a site that may be valid."""

    __tablename__ = "join_tokens"
    digest: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    site: Mapped[str] = mapped_column(ForeignKey(MemberRow.name), unique=True)
    issued_unix: Mapped[int]
    expires_unix: Mapped[int]
    tries: Mapped[int]
    used_by: Mapped[bytes] = mapped_column(LargeBinary)


class KeyRow(Base):
    """A key that some site has, or had (``spent``): no other may bring it."""

    __tablename__ = "site_keys"
    key_id: Mapped[str] = mapped_column(primary_key=True)
    site: Mapped[str] = _of_a_site()
    spent: Mapped[bool]


class CertificateRow(Base):
    """A certificate by which a site may call; ``withdrawn`` ones stay for the record until they expire."""

    __tablename__ = "site_certificates"
    fingerprint: Mapped[str] = mapped_column(primary_key=True)
    site: Mapped[str] = _of_a_site()
    pem: Mapped[bytes] = mapped_column(LargeBinary)
    issued_unix: Mapped[int]
    expires_unix: Mapped[int]
    withdrawn: Mapped[bool]


class NodeRow(Base):
    """A Flower node's key; ``node_id`` (an unsigned number of 64 bits, so text) is set while Flower has it registered."""

    __tablename__ = "site_nodes"
    key_id: Mapped[str] = mapped_column(primary_key=True)
    site: Mapped[str] = _of_a_site()
    node_key: Mapped[bytes] = mapped_column(LargeBinary)
    node_id: Mapped[str | None]
    wanted: Mapped[bool] = mapped_column(index=True)


class NoticeRow(Base):
    """A sealed envelope for a site until the site has acknowledged it; ``bundle`` names the authorities that it brings."""

    __tablename__ = "site_notices"
    site: Mapped[str] = mapped_column(ForeignKey(MemberRow.name), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    envelope: Mapped[bytes] = mapped_column(LargeBinary)
    bundle: Mapped[str]
    posted_unix: Mapped[int]
    expires_unix: Mapped[int]


class RevisionRow(Base):
    """One row: rises with every change that open streams and the front must hear of."""

    __tablename__ = "membership_revision"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]
