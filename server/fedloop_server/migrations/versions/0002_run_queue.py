"""The queue of runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from fedloop_server.migrations.columns import INTEGER

__all__ = ["upgrade"]

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Makes the table."""
    op.create_table(
        "run_queue",
        sa.Column("number", INTEGER, nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.Column("wish", sa.String(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("run_id"),
    )
    op.create_index("ix_run_queue_settled", "run_queue", ["settled"], unique=False)
