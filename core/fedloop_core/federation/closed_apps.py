"""The programs that a superexec may start, and what they may not reach: bundles other than ours.

Flower builds the path of an app's folder from the version that a bundle states. A version such as
``1.0.0.<our digest>/../../../../tmp/x`` leaves the closed folder through a part of it that exists (tried on Flower 1.42: the
bundle's code ran from /tmp). So a process that runs apps opens and makes nothing through ``..`` below the apps folder; an
audit hook (PEP 578) sees every attempt, Python offers no way to take it out again, and nothing of Flower is altered.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path, PurePath

from fedloop_core.errors import ProcessFailed

__all__ = ["APP_LOG", "APP_PROGRAMS", "close_apps", "closed", "run_app", "write_app_programs"]

APP_PROGRAMS = ("flwr-serverapp", "flwr-clientapp", "flwr-agentapp", "flwr-connector", "flwr-model", "flwr-simulation")
"""All that Flower 1.42's superexec looks for on PATH."""
APP_LOG = "FEDLOOP_APP_LOG"
"""File for what an app prints, which superexec would drop."""

_EVENTS = frozenset({"open", "os.mkdir", "os.rename", "os.symlink", "os.link", "os.listdir", "os.scandir", "os.chdir"})
_LOG_BYTES = 10 * 1024 * 1024
_REFUSES = "#!/bin/sh\necho 'fedloop starts no {name} here.' >&2\nexit 1\n"
_RUNS = "#!{python}\nfrom fedloop_core.federation.closed_apps import run_app\n\nrun_app({name!r})\n"


def close_apps(flwr_home: Path) -> None:
    """For the rest of this process's life, paths through ``..`` below ``flwr_home/apps`` fail with PermissionError."""
    apps = str(flwr_home / "apps") + os.sep

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        if event not in _EVENTS:
            return
        for path in arguments[:2]:
            if isinstance(path, str | bytes | os.PathLike):
                text = os.fsdecode(path)
                if text.startswith(apps) and ".." in PurePath(text).parts:
                    raise PermissionError(f"{text} leads out of the apps folder")

    sys.addaudithook(refuse)


def run_app(name: str) -> None:
    """Runs one of Flower's programs behind ``close_apps``; its output goes to the file that ``APP_LOG`` names.

    Raises:
        ProcessFailed: Flower has no such program.
    """
    _redirect(os.environ.get(APP_LOG))
    entry = next(iter(metadata.entry_points(group="console_scripts", name=name)), None)
    if entry is None:
        raise ProcessFailed(f"the installed Flower has no program {name}.", hint="Install fedloop anew.")
    closed(entry.load())()


def closed(command: Callable[[], object]) -> Callable[[], object]:
    """The same command behind ``close_apps``, with the FLWR_HOME of the moment when it is called."""

    def run() -> object:
        close_apps(Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr"))  # as Flower finds it
        return command()

    return run


def write_app_programs(folder: Path, runs: Iterable[str]) -> None:
    """Fills a folder that stands first on a superexec's PATH: programs that run closed, and refusals for all others."""
    folder.mkdir(parents=True, exist_ok=True)
    allowed = frozenset(runs)
    for name in APP_PROGRAMS:
        text = _RUNS.format(python=sys.executable, name=name) if name in allowed else _REFUSES.format(name=name)
        path = folder / name
        path.unlink(missing_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o555)


def _redirect(log: str | None) -> None:
    if not log:
        return
    path = Path(log)
    try:
        if path.stat().st_size > _LOG_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
    except FileNotFoundError:
        pass
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o640)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
