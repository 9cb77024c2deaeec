"""What is told of a run whose plan cannot be read."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from fedloop_core.strict import Strict
from fedloop_server.cli.run_documents import RunLine
from fedloop_server.manager.views import BrokenRun

__all__ = ["BrokenDocument", "broken_document", "broken_line", "broken_tables"]


class BrokenDocument(Strict):
    """What ``fedloop run show --json`` prints of it: as much of ``RunDocument`` as is known."""

    line: RunLine
    problem: str
    folder: str
    next_step: str


def broken_line(run: BrokenRun) -> RunLine:
    """The run in one line; rounds that nobody knows are 0."""
    job = None if run.queued is None else run.queued.job
    return RunLine(
        run=run.run_id,
        task="-" if job is None else job.task,
        status=run.status,
        reason=run.problem,
        round=run.state.completed_rounds,
        rounds=0,
        sites=len(run.state.members),
        expected_sites=0,
        version=run.state.version,
        submitted_unix=None if job is None else job.submitted_unix,
        not_before_unix=job.not_before if job is not None and job.status.waiting else None,
        every_seconds=None if job is None else job.every_seconds,
        started_unix=None if job is None else job.started_unix,
        ended_unix=None if job is None else job.ended_unix,
        took=None,
    )


def broken_document(run: BrokenRun) -> BrokenDocument:
    """All that is known of it."""
    name = run.run_id
    step = (
        f"Put its folder back from a backup and `fedloop run resume {name}`, or remove it: `fedloop run remove {name}`."
    )
    return BrokenDocument(line=broken_line(run), problem=run.problem, folder=str(run.folder), next_step=step)


def broken_tables(document: BrokenDocument) -> RenderableType:
    """The same for people."""
    line = document.line
    return Group(Text(f"run:      {line.run}, {line.status} ({document.problem})"), Text(f"next: {document.next_step}"))
