"""A run as it goes on: events as they come, until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedloop_server.cli.run_logs import sentence_of
from fedloop_server.home import CoordinatorHome
from fedloop_server.manager.journals import JournalReader
from fedloop_server.manager.queue import RunQueue
from fedloop_server.manager.views import load_view
from fedloop_server.runs.events import Event, RoundClosed, RoundOpened
from fedloop_server.runs.state import RunState

__all__ = ["follow", "show_progress"]

_POLL_SECONDS = 0.3


def follow(
    home: CoordinatorHome, queue: RunQueue, run_id: str, waiting: Callable[[str], None]
) -> Iterator[tuple[Event, RunState]]:
    """Yields what has happened and what happens, until the run is over in journal and queue.

    ``waiting`` is told, when it changes, why nothing happens.
    """
    reader = JournalReader(home.run_folder(run_id))
    told = ""
    while True:
        before = load_view(home, queue, run_id)  # first: what ended has journalled all before
        for event in reader.news():
            yield event, reader.state
        if before.ended or (before.queued is None and before.driver is None):
            return
        said = _why(before.status, before.queued.job.reason if before.queued is not None else "")
        if said != told:
            told = said
            waiting(said)
        time.sleep(_POLL_SECONDS)


def _why(status: str, reason: str) -> str:
    return f"The run is {status}{f': {reason}' if reason else ''}."


def show_progress(console: Console, folder: Path, rounds: int, events: Iterator[tuple[Event, RunState]]) -> RunState:
    """Sentences, above a bar over the rounds where there is a terminal; returns the last state."""
    state = RunState()
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bars:
        bar = bars.add_task(folder.name, total=rounds)
        for event, after in events:
            state = after
            bars.update(bar, completed=state.completed_rounds)
            if not (console.is_terminal and isinstance(event, RoundOpened | RoundClosed)):
                bars.console.print(sentence_of(event), highlight=False, markup=False, soft_wrap=True)
    return state
