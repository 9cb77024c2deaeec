"""Environments that are built from nothing: what the supervisor was started with reaches no process by accident."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = [
    "MARK",
    "SYSTEM_PATH",
    "complete",
    "flower_environment",
    "passed_on",
    "proxy_environment",
    "python_environment",
]

MARK = "FEDLOOP_SUPERVISED"
"""Names the supervisor's folder in all that it starts, so that a later one finds what was left."""

_SYSTEM = ("/usr/local/bin", "/usr/bin", "/bin")
SYSTEM_PATH = os.pathsep.join(_SYSTEM)
_LOOPBACK = "localhost,127.0.0.1,::1"


def complete(environment: Mapping[str, str], *, home: Path, folder: Path) -> dict[str, str]:
    """The whole environment of a process: PATH, LANG and HOME where they are not given, and the supervisor's mark."""
    base = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "HOME": str(home)}
    return base | dict(environment) | {MARK: str(folder.resolve())}


def python_environment() -> dict[str, str]:
    """For our own Python processes: the programs of this installation, and output that reaches the log at once."""
    return {
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), *_SYSTEM)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",  # a file that lies in the working folder is no module
    } | passed_on(("OMP_NUM_THREADS",))


def passed_on(names: Iterable[str]) -> dict[str, str]:
    """Those variables of this process's environment that are set, by name: which GPUs to use, where CUDA lies."""
    return {name: os.environ[name] for name in names if name in os.environ}


def proxy_environment(proxy: str) -> dict[str, str]:
    """The one proxy setting for all libraries: some read small letters, some capitals; loopback never goes through it.

    Without a proxy none is set, and none is inherited either.
    """
    ways = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), proxy) if proxy else {}
    return ways | {"no_proxy": _LOOPBACK, "NO_PROXY": _LOOPBACK}


def flower_environment(flwr_home: Path, proxy: str = "") -> dict[str, str]:
    """For every Flower process: it calls nobody but its peer and installs nothing.

    Args:
        flwr_home: Flower's own folder of this process.
        proxy: ``http://host:port``, or empty.
    """
    return {
        "FLWR_HOME": str(flwr_home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
        # glibc raises this bound to the largest buffer that was freed, and from then on keeps such buffers: with weights of
        # 9 MB a ServerApp grew from 11.6 to 13.9 times their size as replies came, and stays at 9.0 with the bound fixed.
        "MALLOC_MMAP_THRESHOLD_": str(2**20),
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",
    } | proxy_environment(proxy)
