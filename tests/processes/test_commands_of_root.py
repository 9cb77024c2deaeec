"""Commands that root gives about a home that is another user's: they go on as that user, and nothing in it becomes root's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedloop_core.errors import NotSetUp
from fedloop_core.processes.users import become_owner

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")

NOBODYS = 65_431  # a number that no user has
# Each command runs first on a home of root, so that it has imported all it needs: another user may not read this Python.
COMMANDS = """
import contextlib, json, os, sys
from fedloop_core.cli import main

def run(home, words):
    try:
        main([*words, "--home", home])
    except SystemExit as ended:
        return ended.code

of_root, of_another, commands = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
for words in commands:
    run(of_root, words)
sys.executable = "/bin/sh"
os.umask(0o022)
found = []
for words in commands:
    found.append((run(of_another, words), os.getresuid(), os.getresgid(), os.getgroups()))
print("found", json.dumps(found))
"""
INIT = ("server", "init", "--name", "n", "--public", "127.0.0.1", "--front-port", "0", "--hub-port", "0")
LOOK = (
    ("server", "site", "add", "north", "--json"),
    ("server", "site", "list"),
    ("server", "authority", "roll"),
    ("server", "status"),
    ("run", "list"),
    ("audit", "verify"),
    ("audit", "show"),
)


def _as_root(
    of_root: Path, of_another: Path, *commands: tuple[str, ...]
) -> list[tuple[int, list[int], list[int], list[int]]]:
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, str(of_root), str(of_another), json.dumps(commands)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    assert lines, done.stdout + done.stderr
    return [(one[0], one[1], one[2], one[3]) for one in json.loads(lines[0].removeprefix("found "))]


def _owners(home: Path) -> dict[str, int]:
    return {str(path.relative_to(home)): path.lstat().st_uid for path in home.rglob("*")}


@pytest.fixture
def homes(tmp_path: Path) -> tuple[Path, Path]:
    for folder in (tmp_path, *tmp_path.parents[:3]):  # pytest closes its folders to others
        folder.chmod(0o755)
    (tmp_path / "roots").mkdir()
    another = tmp_path / "anothers"
    another.mkdir()
    os.chown(another, NOBODYS, NOBODYS)
    return tmp_path / "roots", another


def test_everything_that_commands_make_is_the_owners(homes: tuple[Path, Path]) -> None:
    of_root, of_another = homes
    found = _as_root(of_root, of_another, INIT, *LOOK)
    assert [status for status, *_ in found] == [0] * (len(LOOK) + 1)
    assert all(uids == [NOBODYS] * 3 and gids == [NOBODYS] * 3 and groups == [] for _, uids, gids, groups in found)
    assert (of_another / "coordinator.db").exists()
    assert set(_owners(of_another).values()) == {NOBODYS}
    assert set(_owners(of_root).values()) == {0}


def test_in_a_folder_of_root_the_owner_of_the_keys_is_meant(homes: tuple[Path, Path]) -> None:
    of_root, of_another = homes
    _as_root(of_root, of_another, INIT)
    os.chown(of_another, 0, NOBODYS)
    of_another.chmod(0o1771)
    ((_, uids, _, _),) = _as_root(of_root, of_another, ("server", "site", "add", "north"))
    assert uids == [NOBODYS] * 3
    assert set(_owners(of_another).values()) == {NOBODYS}


@pytest.mark.parametrize("kind", ["link to a folder", "no folder"])
def test_keys_that_lead_elsewhere_name_nobody(kind: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    if kind == "link to a folder":
        (tmp_path / "elsewhere").mkdir()
        os.chown(tmp_path / "elsewhere", NOBODYS, NOBODYS)
        (home / "keys").symlink_to(tmp_path / "elsewhere")
    become_owner(home)
    become_owner(home / "not there")
    assert os.getresuid() == (0, 0, 0)


def test_an_installation_that_the_owner_cannot_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python").touch(mode=0o755)
    monkeypatch.setattr("sys.executable", str(closed / "python"))
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, NOBODYS, NOBODYS)
    with pytest.raises(NotSetUp, match=f"user number {NOBODYS}, who cannot run"):
        become_owner(home)
    assert os.getresuid() == (0, 0, 0)
