"""Databases of every age come to the same tables, keep their rows, and are refused when they are too new."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect

import fedloop_server
from fedloop_core.errors import StorageError
from fedloop_server import migrations
from fedloop_server.blobs import BlobStore
from fedloop_server.database import Database
from fedloop_server.home import CoordinatorHome
from fedloop_server.migrations.opening import upgrade
from fedloop_server.migrations.revisions import HEAD, REVISIONS
from fedloop_server.migrations.schema import TABLE_MODULES, metadata
from fedloop_server.registry import Registry, Stage

OLD = (Path(__file__).parent / "registry_format_1.sql").read_text(encoding="utf-8")


def schema(connection: Connection) -> dict[str, Any]:
    """Everything that the database knows of its tables, as text that can be compared."""
    found = inspect(connection)
    return {
        name: {
            "columns": [(c["name"], str(c["type"]), c["nullable"], str(c["default"])) for c in found.get_columns(name)],
            "primary": found.get_pk_constraint(name)["constrained_columns"],
            "foreign": sorted(
                str((k["constrained_columns"], k["referred_table"], k["referred_columns"]))
                for k in found.get_foreign_keys(name)
            ),
            "indexes": sorted(
                str(
                    (
                        i["name"],
                        i["column_names"],
                        i["unique"],
                        sorted((k, str(v)) for k, v in i.get("dialect_options", {}).items()),
                    )
                )
                for i in found.get_indexes(name)
            ),
            "unique": sorted(str(u["column_names"]) for u in found.get_unique_constraints(name)),
        }
        for name in found.get_table_names()
    }


def rows(connection: sqlite3.Connection) -> dict[str, list[Any]]:
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {name: connection.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall() for name in names}  # noqa: S608


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A registry as it was written before there were revisions."""
    file = tmp_path / "old.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(OLD)
    return file


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Connection]:
    """A database that this release made at once."""
    Database(f"sqlite:///{tmp_path}/whole.db").close()
    engine = create_engine(f"sqlite:///{tmp_path}/whole.db")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@pytest.mark.parametrize("revision", REVISIONS)
def test_every_step_leads_to_the_tables_that_a_fresh_database_gets(revision: str, database_url: str) -> None:
    engine = create_engine(database_url)
    with engine.begin() as connection:
        upgrade(connection, revision)
    Database(database_url).close()
    with engine.begin() as connection:
        stepped = schema(connection)
        options = {"compare_type": True, "compare_server_default": True}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata()) == []
        for name in (*metadata().tables, "alembic_version"):
            connection.exec_driver_sql(
                f"DROP TABLE {name} CASCADE" if "postgres" in database_url else f"DROP TABLE {name}"
            )
    Database(database_url).close()
    with engine.begin() as connection:
        assert schema(connection) == stepped
    engine.dispose()


def test_a_registry_without_a_revision_is_upgraded_and_keeps_its_rows(old: Path, whole: Connection) -> None:
    with closing(sqlite3.connect(old)) as connection:
        before = rows(connection)
    for _ in range(2):  # the second opening finds nothing to do
        registry = Registry(Database(f"sqlite:///{old}"), BlobStore(f"file://{old.parent}/blobs"), lambda: 5)
        production = registry.production("heart")
        assert production is not None
        assert (production.number, production.stage, len(production.artifacts)) == (1, Stage.PRODUCTION, 1)
        registry.close()
    engine = create_engine(f"sqlite:///{old}")
    with engine.connect() as opened:
        assert schema(opened) == schema(whole)
    engine.dispose()
    with closing(sqlite3.connect(old)) as connection:
        after = rows(connection)
    assert after["alembic_version"] == [(HEAD,)]
    assert {name: after.get(name) for name in before if name != "format"} == {
        n: before[n] for n in before if n != "format"
    }
    aside = old.with_name(f"old.db.before-{HEAD}-was-0001")
    assert aside.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(aside)) as connection:
        assert rows(connection) == before


def test_a_home_with_a_registry_of_its_own_takes_it_over(old: Path, tmp_path: Path) -> None:
    home = CoordinatorHome(tmp_path / "home")
    home.folder.mkdir()
    old.rename(home.folder / "registry.db")
    for _ in range(2):
        registry = home.registry()
        assert [version.number for version in registry.versions("heart")] == [1]
        registry.close()


BAD = [
    ("newer", "UPDATE alembic_version SET version_num = '9999'", "revision 9999, which a newer release"),
    ("two revisions", "INSERT INTO alembic_version VALUES ('9998')", "9998"),
    ("no revision", "DELETE FROM alembic_version", "does not say which release"),
    ("no mark at all", "DROP TABLE alembic_version", "does not say which release"),
    ("newer format", "DROP TABLE alembic_version; CREATE TABLE format (number INTEGER); INSERT INTO format VALUES (2)",
     "has format 2"),
    ("two formats", "DROP TABLE alembic_version; CREATE TABLE format (number INTEGER); INSERT INTO format VALUES (1), (2)",
     "has format 1"),
]  # fmt: skip


@pytest.mark.parametrize(("statements", "sentence"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_database_that_this_release_does_not_know_is_refused(statements: str, sentence: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    Database(url).close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.executescript(statements)
        before = rows(connection)
    with pytest.raises(StorageError, match=sentence):
        Database(url)
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        assert rows(connection) == before


BAD_URLS = [
    ("another kind", "mysql://host/name", "of mysql cannot be used"),
    ("unknown kind", "nothing://host/name", "of nothing cannot be used"),
    ("no url", "coordinator.db", "cannot be read"),
    ("no such driver", "postgresql+nothing://host/name", "cannot be used"),
    ("no such folder", "sqlite:////nowhere/at/all/r.db", "No such file"),
    ("in memory", "sqlite://", "in memory"),
    ("a secret", "nothing://user:hidden@host/name", "^(?!.*hidden)"),
]


@pytest.mark.parametrize(("url", "sentence"), [row[1:] for row in BAD_URLS], ids=[row[0] for row in BAD_URLS])
def test_a_url_that_cannot_be_used_is_a_sentence(url: str, sentence: str) -> None:
    with pytest.raises(StorageError, match=sentence):
        Database(url)


@pytest.mark.skipif(len(REVISIONS) == 1, reason="no step after the first that could fail")
def test_an_upgrade_that_fails_changes_nothing(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection:
        connection.execute("CREATE TABLE run_queue (other TEXT)")
        connection.commit()
        before = rows(connection)
    with pytest.raises(StorageError, match="run_queue"):
        Database(f"sqlite:///{old}")
    with closing(sqlite3.connect(old)) as connection:
        assert rows(connection) == before


@pytest.mark.parametrize("age", ["fresh", "old"])
def test_processes_that_open_it_at_once_make_or_upgrade_it_once(age: str, tmp_path: Path, old: Path) -> None:
    file = old if age == "old" else tmp_path / "fresh.db"
    script = "import sys; from fedloop_server.database import Database; input(); Database(sys.argv[1]).close()"
    command = [sys.executable, "-c", script, f"sqlite:///{file}"]
    opened = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    try:
        for process in opened:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
        ends = [process.communicate(timeout=60)[1].decode() for process in opened]
        assert ends == [""] * len(opened)
        assert [process.returncode for process in opened] == [0] * len(opened)
    finally:
        for process in opened:
            process.kill()
            process.wait()
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT * FROM alembic_version").fetchall() == [(HEAD,)]


def test_the_list_of_revisions_is_that_of_the_files() -> None:
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert [script.revision for script in reversed(list(scripts.walk_revisions()))] == list(REVISIONS)
    files = sorted(path.name for path in (Path(migrations.__file__).parent / "versions").glob("[0-9]*.py"))
    assert [name.partition("_")[0] for name in files] == list(REVISIONS)


def test_every_module_with_a_table_is_named() -> None:
    root = Path(fedloop_server.__file__).parent
    declaring = {
        ".".join(path.relative_to(root.parent).with_suffix("").parts)
        for path in root.rglob("*.py")
        if re.search(r"^    __tablename__ = ", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert declaring == {module.__name__ for module in TABLE_MODULES}


def test_only_the_owner_reads_a_database(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        Database(f"sqlite:///{tmp_path}/a.db").close()
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o077 for path in tmp_path.glob("a.db*")} == {0}


def test_without_the_driver_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StorageError, match=r"needs a driver that is not installed \(psycopg\)") as refused:
        Database("postgresql://user:hidden@host/name")
    assert "fedloop[server,postgres]" in refused.value.hint
    assert "hidden" not in str(refused.value)


@pytest.mark.skipif(
    "FEDLOOP_TEST_POSTGRES" not in os.environ, reason="FEDLOOP_TEST_POSTGRES names no PostgreSQL server"
)
def test_a_real_postgresql_is_tried(database_url: str) -> None:
    Database(database_url).close()
