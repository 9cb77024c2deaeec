"""What a person sees while a simulation runs."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from fedloop_server.runs.events import ArtifactMeasured, Event, RoundClosed, SiteLeftOut, VersionRegistered
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import RunState
from fedloop_simulations.data import World

__all__ = ["Progress"]


_SITES = logging.getLogger("fedloop_clients")


class _SiteSentences(logging.Handler):
    """What the sites log, which says more than what may leave a site; here all sites are the reader's own."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.WARNING)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        """Tells it as one line, with the error that nobody foresaw if it is about one."""
        error = record.exc_info[1] if record.exc_info else None
        self._progress.note(record.getMessage() + (f" ({error!r})" if error is not None else ""))


class Progress:
    """Bars and lines on a terminal; plain lines where there is none; nothing on a quiet console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[what]}"),
            console=console,
            transient=True,
        )
        self._run: TaskID | None = None
        self._stream: TaskID | None = None
        self._sentences = _SiteSentences(self)

    def __enter__(self) -> Self:
        self._bars.start()
        _SITES.addHandler(self._sentences)
        _SITES.propagate = False  # some libraries install a handler at the root
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _SITES.removeHandler(self._sentences)
        _SITES.propagate = True
        self._bars.stop()

    def rows_skipped(self, world: World) -> None:
        """Tells which sites' sources hold rows that do not fit the task, with the first of each."""
        for site in world.sites:
            if site.problems:
                rows = "1 row" if site.skipped == 1 else f"{site.skipped} rows"
                self.note(f"{site.name}: {rows} skipped; the first: {site.problems[0]}")

    def run_begins(self, plan: RunPlan) -> None:
        """Opens a bar over the rounds."""
        self.note(f"{plan.run_id}: {plan.expected_sites} sites, {plan.task.rounds.count} rounds")
        self._run = self._bars.add_task(plan.run_id, total=plan.task.rounds.count, what="gathering sites")

    def run_event(self, state: RunState, event: Event) -> None:  # noqa: ARG002  as a journal calls its observer
        """Moves the bar; tells who is left out."""
        if self._run is None:
            return
        match event:
            case RoundClosed(round=number):
                self._bars.update(self._run, completed=number, what="training")
            case VersionRegistered():
                self._bars.update(self._run, what="converting and quantising")
            case ArtifactMeasured(kind=kind):
                self._bars.update(self._run, what=f"sites evaluate {kind}")
            case SiteLeftOut(left_out=out):
                where = f"round {out.round}" if out.round else "the run"
                self.note(f"{out.site} is left out of {where}: {out.code}, {out.reason}")
            case _:
                pass

    def run_ends(self) -> None:
        """Closes the bar."""
        if self._run is not None:
            self._bars.remove_task(self._run)
            self._run = None

    def device_switched(self, device: str, version: int) -> None:
        """Tells it."""
        self.note(f"{device} serves version {version}")

    def stream_begins(self, rows: int) -> None:
        """Opens a bar over the rows."""
        self._stream = self._bars.add_task("devices", total=rows, what="rows answered")

    def stream_event(self, seen: int) -> None:
        """Moves the bar."""
        if self._stream is not None:
            self._bars.update(self._stream, completed=seen)

    def note(self, text: str) -> None:
        """Prints a line above the bars."""
        self._console.print(f"  {text}", highlight=False, markup=False, soft_wrap=True)
