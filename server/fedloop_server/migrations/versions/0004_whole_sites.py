"""Charges to whole sites, and model cards."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from fedloop_server.migrations.columns import INTEGER

__all__ = ["upgrade"]

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Makes the tables."""
    op.create_table(
        "whole_site_charges",
        sa.Column("number", INTEGER, nullable=False),
        sa.Column("body", sa.String(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
    )
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER whole_site_charges_no_{verb.lower()} BEFORE {verb} ON whole_site_charges "
                "BEGIN SELECT RAISE(ABORT, 'charges are only ever added'); END"
            )
    op.create_table(
        "model_cards",
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("number", INTEGER, nullable=False),
        sa.Column("card", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["task", "number"], ["versions.task", "versions.number"]),
        sa.PrimaryKeyConstraint("task", "number"),
    )
