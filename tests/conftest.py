"""What tests of several areas share: databases of the kinds that the coordinator can use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

_SERVER = os.environ.get("FEDLOOP_TEST_POSTGRES", "")  # a URL; its user may create databases


@pytest.fixture(params=["sqlite", "postgresql"] if _SERVER else ["sqlite"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database that holds nothing; PostgreSQL's is dropped at the end."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/coordinator.db"
        return
    name = f"fedloop_{uuid4().hex}"
    server = create_engine(_SERVER, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield make_url(_SERVER).set(database=name).render_as_string(hide_password=False)
    with server.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    server.dispose()
