"""Sites: their keys, certificates, tokens, nodes and notices."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from fedloop_server.migrations.columns import INTEGER

__all__ = ["upgrade"]

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Makes the tables."""
    _sites()
    _keys()
    _nodes()


def _sites() -> None:
    op.create_table(
        "sites",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("authority", sa.LargeBinary(), nullable=False),
        sa.Column("added_unix", INTEGER, nullable=False),
        sa.Column("joined_unix", INTEGER, nullable=False),
        sa.Column("certificate_key", sa.String(), nullable=False),
        sa.Column("node_key", sa.LargeBinary(), nullable=False),
        sa.Column("signing_key", sa.LargeBinary(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("protocol", INTEGER, nullable=False),
        sa.Column("software_version", sa.String(), nullable=False),
        sa.Column("renewal_signed_unix", INTEGER, nullable=False),
        sa.Column("trusted_bundle", sa.String(), nullable=False),
        sa.Column("last_seen_unix", INTEGER, nullable=False),
        sa.Column("clock_skew_seconds", INTEGER, nullable=False),
        sa.Column("activity", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("round", INTEGER, nullable=False),
        sa.Column("step", INTEGER, nullable=False),
        sa.Column("steps", INTEGER, nullable=False),
        sa.Column("code", sa.String(), nullable=False),
        sa.Column("notices_posted", INTEGER, nullable=False),
        sa.Column("ledger_sequence", INTEGER, nullable=True),
        sa.Column("ledger_digest", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "join_tokens",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("issued_unix", INTEGER, nullable=False),
        sa.Column("expires_unix", INTEGER, nullable=False),
        sa.Column("tries", INTEGER, nullable=False),
        sa.Column("used_by", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["site"], ["sites.name"]),
        sa.PrimaryKeyConstraint("digest"),
        sa.UniqueConstraint("site"),
    )


def _keys() -> None:
    op.create_table(
        "site_keys",
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("spent", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["site"], ["sites.name"]),
        sa.PrimaryKeyConstraint("key_id"),
    )
    op.create_index("ix_site_keys_site", "site_keys", ["site"], unique=False)
    op.create_table(
        "site_certificates",
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("pem", sa.LargeBinary(), nullable=False),
        sa.Column("issued_unix", INTEGER, nullable=False),
        sa.Column("expires_unix", INTEGER, nullable=False),
        sa.Column("withdrawn", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["site"], ["sites.name"]),
        sa.PrimaryKeyConstraint("fingerprint"),
    )
    op.create_index("ix_site_certificates_site", "site_certificates", ["site"], unique=False)


def _nodes() -> None:
    op.create_table(
        "site_nodes",
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("node_key", sa.LargeBinary(), nullable=False),
        sa.Column("node_id", sa.String(), nullable=True),
        sa.Column("wanted", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["site"], ["sites.name"]),
        sa.PrimaryKeyConstraint("key_id"),
    )
    op.create_index("ix_site_nodes_site", "site_nodes", ["site"], unique=False)
    op.create_index("ix_site_nodes_wanted", "site_nodes", ["wanted"], unique=False)
    op.create_table(
        "site_notices",
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("number", INTEGER, nullable=False),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.Column("bundle", sa.String(), nullable=False),
        sa.Column("posted_unix", INTEGER, nullable=False),
        sa.Column("expires_unix", INTEGER, nullable=False),
        sa.ForeignKeyConstraint(["site"], ["sites.name"]),
        sa.PrimaryKeyConstraint("site", "number"),
    )
    op.create_table(
        "membership_revision",
        sa.Column("id", INTEGER, nullable=False),
        sa.Column("number", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
