"""All tables of the coordinator, in one place: whoever asks here has imported every module that declares one."""

from __future__ import annotations

from sqlalchemy import Column, MetaData, String, Table

from fedloop_server.database import Base
from fedloop_server.manager import tables as manager_tables
from fedloop_server.membership import tables as membership_tables
from fedloop_server.registry import tables as registry_tables
from fedloop_server.whole_sites import tables as whole_site_tables

__all__ = ["TABLE_MODULES", "metadata", "version_table"]

TABLE_MODULES = (registry_tables, manager_tables, membership_tables, whole_site_tables)
"""The modules that declare tables."""


def metadata() -> MetaData:
    """The tables as this release has them."""
    return Base.metadata


def version_table() -> Table:
    """Alembic's own table, in a collection of its own: a fresh database gets it without importing Alembic."""
    name = Column("version_num", String(32), primary_key=True)
    table = Table("alembic_version", MetaData(), name)
    table.primary_key.name = "alembic_version_pkc"
    return table
