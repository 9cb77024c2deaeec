"""Run by Alembic: applies revisions through the connection, and in the transaction, of whoever opens the database."""

from __future__ import annotations

from alembic import context

from fedloop_server.migrations.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata())
context.run_migrations()
