"""What tests of several areas share: databases of the kinds that the coordinator can use, and how properties are tried."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

# Nothing is written into the checkout, which may be another user's; a busy machine fails no property by its slowness.
set_hypothesis_home_dir(Path(tempfile.gettempdir()) / f"fedloop-hypothesis-{os.getuid()}")
settings.register_profile("fedloop", database=None, deadline=None)
settings.load_profile("fedloop")

_SERVER = os.environ.get("FEDLOOP_TEST_POSTGRES", "")  # postgresql+psycopg://…; its user may create databases


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
