"""What the commands about runs share: the coordinator in a folder, the run that was named, and how it is said."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedloop_core.errors import NotSetUp, RunError

if TYPE_CHECKING:
    from fedloop_server.home import CoordinatorHome
    from fedloop_server.manager.queue import RunQueue
    from fedloop_server.manager.views import BrokenRun, RunView

__all__ = ["any_view", "made_version", "office", "queued_name", "readable_view", "say", "served"]


@contextmanager
def office(home: Path) -> Iterator[tuple[CoordinatorHome, RunQueue]]:
    """The coordinator in a folder and its queue.

    Raises:
        NotSetUp: the folder holds none.
    """
    from fedloop_server.home import CoordinatorHome

    if not any((home / name).exists() for name in ("server.toml", "coordinator.db", "runs")):
        raise NotSetUp(
            f"{home.resolve()} holds no coordinator.",
            hint="Name its folder with --home or FEDLOOP_HOME, or make one: `fedloop server init`.",
        )
    coordinator = CoordinatorHome(home)
    with closing(coordinator.queue()) as queue:
        yield coordinator, queue


def any_view(home: Path, run: str) -> RunView | BrokenRun:
    """A run by the beginning of its name, also one whose plan cannot be read.

    Raises:
        NotSetUp: the folder holds no coordinator.
        UsageError: no run, or more than one, is named so.
    """
    from fedloop_server.manager.views import find_view, run_names, the_run

    with office(home) as (coordinator, queue):
        return find_view(coordinator, queue, the_run(run, run_names(coordinator, queue)))


def readable_view(home: Path, run: str) -> RunView:
    """A run by the beginning of its name.

    Raises:
        NotSetUp: the folder holds no coordinator.
        UsageError: no run, or more than one, is named so.
        RunError: its plan is not there.
        StorageError: its plan cannot be read.
    """
    from fedloop_server.manager.views import load_view, run_names, the_run

    with office(home) as (coordinator, queue):
        return load_view(coordinator, queue, the_run(run, run_names(coordinator, queue)))


def made_version(view: RunView) -> int:
    """The number of the version that a run has made.

    Raises:
        RunError: it has made none, and so neither promises anything nor has a card.
    """
    if view.state.version is None:
        raise RunError(
            f"run {view.plan.run_id} has made no version, and promises nothing.",
            hint=f"`fedloop run show {view.plan.run_id}` says how it stands.",
        )
    return view.state.version


def queued_name(coordinator: CoordinatorHome, queue: RunQueue, run: str) -> str:
    """The whole name of a run of this queue.

    Raises:
        UsageError: no run, or more than one, is named so.
        RunError: it was not started from this queue.
    """
    from fedloop_server.manager.views import run_names, the_run

    name = the_run(run, run_names(coordinator, queue))
    if queue.find(name) is None:
        raise RunError(
            f"run {name} was not started from this queue.", hint=f"`fedloop run show {name}` says how it stands."
        )
    return name


def served(home: Path) -> bool:
    """Whether the coordinator's service answers."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(home / "sockets" / "service.sock"))
        except OSError:
            return False
    return True


def say(what: object) -> None:
    """Text as it is; tables as wide as the terminal, or as they need where there is none."""
    if isinstance(what, str):
        typer.echo(what)
        return
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(what)
