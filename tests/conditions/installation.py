"""Another installation of fedloop on this machine: of another generation of the protocol, or under another clock.

Its interpreter is a script beside which everything else is found, as in any virtual environment, so that all processes that
are started from it are of it. What it is can be changed meanwhile and holds for processes that start afterwards.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

__all__ = ["GENERATION", "Installation", "ahead"]

GENERATION = "FEDLOOP_TEST_GENERATION"
_PROGRAMS = ("fedloop", "flwr", "flower-supernode", "flower-superexec", "flower-superlink")
_PATCH = f"""
import os
import site

site.addsitedir({sysconfig.get_path("purelib")!r})
if {GENERATION!r} in os.environ:
    from fedloop_core.federation import protocol

    protocol.PROTOCOL = int(os.environ[{GENERATION!r}])
    protocol.check_protocol.__kwdefaults__["ours"] = protocol.PROTOCOL
"""


class Installation:
    """One in a folder; ``be`` sets the environment of all its processes."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self._environment = folder / "environment"
        self._python = folder / "bin" / "python"
        self.fedloop = folder / "bin" / "fedloop"
        libraries = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        for made in (self._python.parent, libraries):
            made.mkdir(parents=True)
        base = Path(sys.executable).resolve()
        (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
        (libraries / "installation.pth").write_text("import fedloop_test_installation\n")
        (libraries / "fedloop_test_installation.py").write_text(_PATCH)
        self.be(environment)
        self._script(
            self._python, f"set -a; . {self._environment}; set +a\nexec -a {self._python} {shlex.quote(str(base))}"
        )
        for name in _PROGRAMS:
            self._script(self._python.with_name(name), f"exec {self._python} {Path(sys.executable).with_name(name)}")

    def be(self, environment: Mapping[str, str]) -> None:
        """Has processes that start from now on run with these variables."""
        self._environment.write_text("".join(f"{name}={shlex.quote(value)}\n" for name, value in environment.items()))

    def _script(self, path: Path, command: str) -> None:
        path.write_text(f'#!/bin/bash\n{command} "$@"\n')
        path.chmod(0o755)


def ahead(seconds: int, folder: Path) -> dict[str, str] | None:
    """Variables under which a process sees a clock that is so far ahead; None where no C compiler is installed.

    libfaketime 0.9.10 cannot be used: it breaks ``time.sleep`` of Python 3.11.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "clock.so"
    source = Path(__file__).with_name("clock_ahead.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True, timeout=60)
    return {"LD_PRELOAD": str(library), "FEDLOOP_TEST_AHEAD": str(seconds)}
