"""Run by Alembic: applies revisions through the connection, and in the transaction, of whoever opens the database."""

from __future__ import annotations

from alembic import context

from fedloop_server.migrations.schema import metadata

__all__ = ["run"]


def run() -> None:
    """Takes the missing steps."""
    context.configure(connection=context.config.attributes["connection"], target_metadata=metadata())
    context.run_migrations()


if __name__ != "fedloop_server.migrations.env":  # Alembic gives the file a name of its own
    run()
