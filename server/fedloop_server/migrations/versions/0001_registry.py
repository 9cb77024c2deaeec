"""The registry: tasks, runs, versions, their metrics, artifacts and gates, and the history of stages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from fedloop_server.migrations.columns import INTEGER

__all__ = ["upgrade"]

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Makes the tables."""
    _runs()
    _versions()
    _artifacts()
    _history()


def _runs() -> None:
    op.create_table(
        "tasks",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("registered_at", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index("ix_tasks_name", "tasks", ["name"], unique=False)
    op.create_table(
        "runs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("task_digest", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("started_at", INTEGER, nullable=False),
        sa.Column("finished_at", INTEGER, nullable=True),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("parent_version", INTEGER, nullable=True),
        sa.Column("summary", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["task_digest"], ["tasks.digest"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_runs_task_digest", "runs", ["task_digest"], unique=False)


def _versions() -> None:
    op.create_table(
        "versions",
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("number", INTEGER, nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("parent", INTEGER, nullable=True),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("registered_at", INTEGER, nullable=False),
        sa.Column("privacy", sa.String(), nullable=False),
        sa.Column("lineage", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"]),
        sa.PrimaryKeyConstraint("task", "number"),
        sa.UniqueConstraint("run_id"),
    )
    op.create_index(
        "one_canary",
        "versions",
        ["task"],
        unique=True,
        sqlite_where=sa.text("stage = 'canary'"),
        postgresql_where=sa.text("stage = 'canary'"),
    )
    op.create_index(
        "one_production",
        "versions",
        ["task"],
        unique=True,
        sqlite_where=sa.text("stage = 'production'"),
        postgresql_where=sa.text("stage = 'production'"),
    )


def _artifacts() -> None:
    op.create_table(
        "artifacts",
        sa.Column("id", INTEGER, nullable=False),
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("number", INTEGER, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("description_sha256", sa.String(), nullable=False),
        sa.Column("description_length", INTEGER, nullable=False),
        sa.Column("model_sha256", sa.String(), nullable=False),
        sa.Column("model_length", INTEGER, nullable=False),
        sa.Column("golden_sha256", sa.String(), nullable=False),
        sa.Column("golden_length", INTEGER, nullable=False),
        sa.Column("profile_sha256", sa.String(), nullable=False),
        sa.Column("profile_length", INTEGER, nullable=False),
        sa.ForeignKeyConstraint(["task", "number"], ["versions.task", "versions.number"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("one_artifact", "artifacts", ["task", "number", "kind"], unique=True)


def _history() -> None:
    op.create_table(
        "gate_results",
        sa.Column("id", INTEGER, nullable=False),
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("number", INTEGER, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("verdict", sa.String(), nullable=False),
        sa.Column("detail", sa.String(), nullable=False),
        sa.Column("decided_at", INTEGER, nullable=False),
        sa.ForeignKeyConstraint(["task", "number"], ["versions.task", "versions.number"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "stage_history",
        sa.Column("id", INTEGER, nullable=False),
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("number", INTEGER, nullable=False),
        sa.Column("before", sa.String(), nullable=True),
        sa.Column("after", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("at", INTEGER, nullable=False),
        sa.ForeignKeyConstraint(["task", "number"], ["versions.task", "versions.number"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_stage_history_task", "stage_history", ["task"], unique=False)
    op.create_table(
        "version_metrics",
        sa.Column("id", INTEGER, nullable=False),
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("number", INTEGER, nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("artifact", sa.String(), nullable=False),
        sa.Column("metric", sa.String(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("low", sa.Double(), nullable=False),
        sa.Column("high", sa.Double(), nullable=False),
        sa.Column("total", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["task", "number"], ["versions.task", "versions.number"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("one_value", "version_metrics", ["task", "number", "scope", "artifact", "metric"], unique=True)
