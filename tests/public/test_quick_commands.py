"""What commands import: none that tells or lists waits for the packages that training needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "flwr", "opacus", "onnx", "ray")
TYPED = """
import sys
from fedloop_core.cli import main
try:
    main(sys.argv[2:])
except SystemExit as ended:
    status = ended.code
found = sorted(name for name in sys.argv[1].split() if name in sys.modules)
print("status", status, "imported", *found, file=sys.stderr)
"""
IMPORTED = "import importlib, sys\nfor name in sys.argv[2:]: importlib.import_module(name)\nprint('status 0 imported', *(name for name in sys.argv[1].split() if name in sys.modules), file=sys.stderr)"


def _imported(code: str, *words: str, heavy: tuple[str, ...] = HEAVY) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", code, " ".join(heavy), *words], capture_output=True, text=True, timeout=120, check=False
    )
    last = done.stderr.splitlines()[-1].split()
    assert last[0] == "status", done.stderr
    return int(last[1]), last[3:]


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("coordinator")
    words = ("server", "init", "--home", str(home), "--name", "n", "--public", "127.0.0.1")
    assert _imported(TYPED, *words) == (0, [])
    return home


@pytest.mark.parametrize(
    "words", [("--help",), ("run", "--help"), ("server", "up", "--help"), ("site", "up", "--help")], ids=" ".join
)
def test_help_is_quick(words: tuple[str, ...]) -> None:
    assert _imported(TYPED, *words, heavy=(*HEAVY, "sqlalchemy", "scipy", "numpy", "grpc")) == (0, [])


@pytest.mark.parametrize("words", [("run", "list"), ("server", "site", "list"), ("server", "status")], ids=" ".join)
def test_lists_of_a_coordinator_need_nothing_that_trains(words: tuple[str, ...], coordinator: Path) -> None:
    assert _imported(TYPED, *words, "--home", str(coordinator)) == (0, [])


def test_the_status_of_a_site_needs_nothing_that_trains(tmp_path: Path) -> None:
    status, found = _imported(TYPED, "site", "status", "--home", str(tmp_path))
    assert (status != 0, found) == (True, [])  # it has not joined
    assert _imported(IMPORTED, "fedloop_clients.home", "fedloop_clients.status", "fedloop_clients.privacy.ledger") == (
        0,
        [],
    )


@pytest.mark.parametrize(
    ("process", "heavy"),
    [
        ("fedloop_server.service.wiring", HEAVY),
        ("fedloop_server.front.server", ("torch", "opacus", "onnx", "sqlalchemy")),  # it reads Flower's messages
        ("fedloop_clients.relay_server", ("torch", "opacus", "onnx", "sqlalchemy")),
        ("fedloop_core.processes.supervisor", (*HEAVY, "numpy", "grpc")),
        ("fedloop_server.up", (*HEAVY, "sqlalchemy", "numpy")),
        ("fedloop_clients.up", HEAVY),
    ],
)
def test_processes_load_only_what_they_need(process: str, heavy: tuple[str, ...]) -> None:
    assert _imported(IMPORTED, process, heavy=heavy) == (0, [])
