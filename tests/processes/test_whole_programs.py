"""A program whose process ends with its main thread, whatever its other threads do."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import pytest

from fedloop_core.processes.whole import whole

_THREAD = "threading.Thread(target=threading.Event().wait).start()"


def run(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    """Runs an installed program, whose main function has this body."""
    package = folder / "program-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: program\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[console_scripts]\na-program = a_program:main\n")
    (folder / "a_program.py").write_text(
        "import sys, threading\n\n\ndef main():\n" + textwrap.indent(f"{_THREAD}\n{body}", "    ")
    )
    return subprocess.run(
        whole("a-program", "--port", "1"),
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("return None", 0),
        ("return 3", 3),
        ("sys.exit()", 0),
        ("sys.exit(7)", 7),
        ("sys.exit('a sentence')", 1),
        ("raise ConnectionError('a sentence')", 1),
        ("raise KeyboardInterrupt('a sentence')", 1),
    ],
)
def test_it_ends_with_its_main_thread(tmp_path: Path, body: str, status: int) -> None:
    done = run(tmp_path, body)
    assert done.returncode == status
    assert ("a sentence" in done.stderr) == ("a sentence" in body)


def test_it_has_its_own_name_and_arguments(tmp_path: Path) -> None:
    assert run(tmp_path, "print(sys.argv)").stdout == "['a-program', '--port', '1']\n"


def test_a_program_that_is_not_installed_is_said(tmp_path: Path) -> None:
    done = subprocess.run(whole("no-such-program"), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "ValueError" in done.stderr
