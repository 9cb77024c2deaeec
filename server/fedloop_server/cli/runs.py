"""Start, follow, stop, compare and remove runs.

With ``--json`` every command prints one JSON object (``watch`` and ``logs --follow`` one a line): the documents of
``fedloop_server.cli.run_documents``, ``run_start.DryRun``, ``run_compare.Comparison`` and ``run_remove.RemovalDocument``;
of a run whose plan cannot be read, ``show`` prints ``run_broken.BrokenDocument``. ``list`` prints ``{"runs": [RunLine,
…]}``; ``start``, ``stop`` and ``resume`` print ``{"run": NAME, "status": STATUS, "next": SENTENCE}``; ``logs`` prints
``{"run": NAME, "events": [{"at": UNIX or null, "event": KIND, "sentence": TEXT}, …], "serverapp": [LINE, …]}``, ``statement``
``{"task": NAME, "version": NUMBER, "statement": PrivacyStatement}``, ``card`` a ``fedloop_core.model_card.ModelCard``. Errors print
``{"error": {"code", "message", "hint", "fields"}}``. A run may be named by the beginning of its name.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedloop_core.commands import as_owner, operator
from fedloop_core.errors import FedloopError, RunCancelled, RunError, UsageError
from fedloop_server.cli.run_card import card
from fedloop_server.cli.run_office import any_view, made_version, office, queued_name, readable_view, say, served

if TYPE_CHECKING:
    from fedloop_core.task.document import Task
    from fedloop_server.home import CoordinatorHome
    from fedloop_server.manager.state import Wish
    from fedloop_server.manager.views import RunView
    from fedloop_server.runs.events import Event

__all__ = ["commands", "compare", "list_", "logs", "remove", "resume", "show", "start", "statement", "stop", "watch"]

commands = typer.Typer(no_args_is_help=True, suggest_commands=False, add_completion=False)

HomeOption = Annotated[
    Path, typer.Option("--home", envvar="FEDLOOP_HOME", help="The coordinator's folder.", callback=as_owner)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of sentences.")]
RunArgument = Annotated[str, typer.Argument(help="Name of the run, or how it begins.")]
_HERE = Path()


@commands.callback()
def _run() -> None:
    """Start, follow, stop, compare and remove runs."""


@commands.command()
def start(
    task: Annotated[str, typer.Argument(help="A task file or a preset.")],
    home: HomeOption = _HERE,
    name: Annotated[str | None, typer.Option(help="Name of the run.", show_default="the task's, numbered")] = None,
    sites: Annotated[
        int | None, typer.Option(min=1, help="Sites that the run waits for.", show_default="all active ones")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, max=2**63 - 1, help="Of the initial weights and the order of rows.", show_default="a new one"
        ),
    ] = None,
    warm_from: Annotated[
        int | None, typer.Option(min=1, help="Version of the task to start from.", show_default="afresh")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            help="When, in this machine's time zone unless it names another: 02:30, 2027-01-31T02:30, 2027-01-31T02:30+00:00.",
            show_default="now",
        ),
    ] = None,
    every: Annotated[str | None, typer.Option(help="Again and again: 7d, 12h.", show_default="once")] = None,
    no_export: Annotated[bool, typer.Option("--no-export", help="Train only: make no version.")] = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="Say what it would do, and start nothing.")] = False,
    watch_it: Annotated[bool, typer.Option("--watch", help="Follow it until it ends.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a task with the sites: check it, and put the run into the queue."""
    from fedloop_server.cli.run_start import active_names, dry_run, dry_run_tables, named_task, whole_sites_of
    from fedloop_server.cli.run_words import parse_at, parse_every
    from fedloop_server.manager.submitting import RunRequest, planned, submit
    from fedloop_server.membership import Members

    request = RunRequest(
        task=named_task(task),
        name=name,
        sites=sites,
        seed=seed,
        warm_from=warm_from,
        export=not no_export,
        not_before=0.0 if at is None else parse_at(at, dt.datetime.now().astimezone()),
        every_seconds=None if every is None else parse_every(every),
    )
    with office(home) as (coordinator, queue):
        members = Members(queue.database).sites()
        plan = planned(coordinator, queue, request, len(active_names(members)))
        _check_warm(coordinator, plan.task, warm_from)
        outlook = whole_sites_of(coordinator, plan, members)
        if dry:
            found = dry_run(plan, members, outlook, not_before=request.not_before, every_seconds=request.every_seconds)
            say(found.model_dump_json() if as_json else dry_run_tables(found))
            return
        if outlook is not None:
            outlook.require()
        submit(coordinator, queue, plan, request, audit=coordinator.audit(), actor=operator())
    _told(home, plan.run_id, as_json=as_json and not watch_it)
    if watch_it:
        watch(plan.run_id, home, as_json=as_json)


@commands.command("list")
def list_(
    home: HomeOption = _HERE,
    task: Annotated[str | None, typer.Option(help="Only runs of this task.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the runs: state, round, sites, when they started and how long they took."""
    from fedloop_server.cli.run_broken import broken_line
    from fedloop_server.cli.run_tables import list_table
    from fedloop_server.cli.run_telling import line_of
    from fedloop_server.manager.views import BrokenRun, load_views

    with office(home) as (coordinator, queue):
        views = load_views(coordinator, queue)
    lines = [broken_line(view) if isinstance(view, BrokenRun) else line_of(view) for view in views]
    lines = [line for line in lines if task in {None, line.task}]
    if as_json:
        say(json.dumps({"runs": [line.model_dump() for line in lines]}))
    elif lines:
        say(list_table(lines))
    else:
        say("There is no run yet. `fedloop run start TASK --dry-run` says what one would do.")


@commands.command()
def show(
    run: RunArgument,
    home: HomeOption = _HERE,
    rounds: Annotated[bool, typer.Option("--rounds", help="Show every round.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show everything of a run: rounds, sites, who was left out and why, privacy spent, traffic, version, next step."""
    from fedloop_server.cli.run_broken import broken_document, broken_tables
    from fedloop_server.cli.run_tables import show_tables
    from fedloop_server.cli.run_telling import document_of
    from fedloop_server.manager.views import BrokenRun

    view = any_view(home, run)
    if isinstance(view, BrokenRun):
        broken = broken_document(view)
        say(broken.model_dump_json() if as_json else broken_tables(broken))
        return
    document = document_of(view)
    say(document.model_dump_json() if as_json else show_tables(document, every_round=rounds))


@commands.command()
def statement(run: RunArgument, home: HomeOption = _HERE, as_json: JsonOption = False) -> None:
    """Tell what the version that a run made promises about the people in its data, as a page or as JSON."""
    from fedloop_core.privacy_statement import statement_page

    view = readable_view(home, run)
    number, task = made_version(view), view.plan.task.name
    with office(home) as (coordinator, _), closing(coordinator.registry()) as registry:
        promised = registry.version(task, number).privacy
    if as_json:
        say(json.dumps({"task": task, "version": number, "statement": json.loads(promised.model_dump_json())}))
    else:
        say(statement_page(promised, task=task, version=number))


commands.command()(card)


@commands.command()
def logs(
    run: RunArgument,
    home: HomeOption = _HERE,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Tell what happened in a run, from its journal, and what its ServerApp printed."""
    from fedloop_server.cli.run_watch import follow as follow_run
    from fedloop_server.manager.journals import JournalReader

    view = readable_view(home, run)
    if follow:
        with office(home) as (coordinator, queue), _interruptible(view.plan.run_id):
            for event, _ in follow_run(coordinator, queue, view.plan.run_id, lambda _: None):
                say(json.dumps(_told_event(event)) if as_json else _line(event))
        return
    events = JournalReader(view.folder).news() if view.problem else view.events
    printed = _serverapp_lines(home, view)
    if as_json:
        told = {"run": view.plan.run_id, "events": [_told_event(event) for event in events], "serverapp": printed}
        say(json.dumps(told))
        return
    for event in events:
        say(_line(event))
    if not events:
        say("Nothing has happened yet.")
    for line in printed:
        say(f"serverapp | {line}")


@commands.command()
def stop(run: RunArgument, home: HomeOption = _HERE, as_json: JsonOption = False) -> None:
    """Stop a run, at the sites too; it can be resumed."""
    from fedloop_core.audit import AuditAction

    with office(home) as (coordinator, queue):
        name = queued_name(coordinator, queue, run)
        taken_back = queue.wish_stop(name)
        coordinator.audit().record(operator(), AuditAction.RUN_STOPPED, name)
    _told(home, name, as_json=as_json, taken_back=taken_back)


@commands.command()
def resume(
    run: RunArgument,
    home: HomeOption = _HERE,
    at_once: Annotated[
        bool, typer.Option("--now", help="Start at once a run that has not begun and whose time is to come.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Let a run that was stopped or failed go on after its last closed round; one that never began waits for its time."""
    from fedloop_core.audit import AuditAction

    with office(home) as (coordinator, queue):
        name = queued_name(coordinator, queue, run)
        taken_back = queue.wish_resume(name, at_once=at_once)
        coordinator.audit().record(operator(), AuditAction.RUN_RESUMED, name)
    _told(home, name, as_json=as_json, taken_back=taken_back)


@commands.command()
def remove(
    runs: Annotated[list[str] | None, typer.Argument(help="Names of runs that are over, or how they begin.")] = None,
    home: HomeOption = _HERE,
    older_than: Annotated[
        float | None, typer.Option(min=0, help="Days since they ended; without names: all such runs.")
    ] = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove runs that are over and made no version: plan, journal and checkpoints, for good."""
    from fedloop_core.audit import AuditAction
    from fedloop_server.cli.run_remove import asked_removal, removal_document, removal_tables
    from fedloop_server.manager.removal import remove_run

    if as_json and not (yes or dry):
        raise UsageError("removing runs must be confirmed.", hint="Add --yes, or --dry-run.")
    with office(home) as (coordinator, queue):
        removal = asked_removal(coordinator, queue, runs or [], older_than)
        if not as_json:
            say(removal_tables(removal))
        if removal.gone and not dry:
            if not yes:
                typer.confirm("Remove them for good?", abort=True)
            audit = coordinator.audit()
            for run in removal.gone:
                remove_run(coordinator, queue, run.run_id)
                audit.record(operator(), AuditAction.RUN_REMOVED, run.run_id, status=run.status, bytes=run.bytes)
    if as_json:
        say(removal_document(removal, dry=dry).model_dump_json())
    elif removal.gone:
        say("Nothing was removed. Leave --dry-run out to remove them." if dry else "They are removed.")


@commands.command()
def compare(
    runs: Annotated[list[str], typer.Argument(help="Names of two runs or more.")],
    home: HomeOption = _HERE,
    as_json: JsonOption = False,
) -> None:
    """Compare runs: where their tasks differ, and rounds, measures, epsilon and time of each."""
    from fedloop_server.cli.run_compare import comparison_of, comparison_tables

    if len(runs) < 2:
        raise UsageError("one run cannot be compared.", hint="Name two runs or more.")
    views = [readable_view(home, run) for run in runs]
    if len({view.plan.run_id for view in views}) < len(views):
        raise UsageError("a run is named twice.", hint="Name different runs.")
    found = comparison_of(views)
    say(found.model_dump_json() if as_json else comparison_tables(found))


@commands.command()
def watch(run: RunArgument, home: HomeOption = _HERE, as_json: JsonOption = False) -> None:
    """Follow a run until it ends: exit status 0 when it finishes, 7 when it fails or is stopped."""
    from rich.console import Console

    from fedloop_server.cli.run_telling import next_step
    from fedloop_server.cli.run_watch import follow, show_progress

    name = readable_view(home, run).plan.run_id
    with office(home) as (coordinator, queue), _interruptible(name):
        if not served(home):
            typer.echo("Nobody takes the queue forward: start `fedloop server up` on this coordinator.", err=True)
        told = follow(coordinator, queue, name, lambda said: None if as_json else typer.echo(said, err=True))
        if as_json:
            for event, _ in told:
                say(json.dumps(_told_event(event)))
        else:
            rounds = coordinator.plan(name).task.rounds.count
            show_progress(Console(stderr=True), coordinator.run_folder(name), rounds, told)
    view = readable_view(home, name)
    if as_json:
        say(json.dumps({"run": name, "status": view.status, "next": next_step(view)}))
    _raise_unless_finished(view)
    if not as_json:
        say(f"{name} has finished. {next_step(view)}")


@contextmanager
def _interruptible(run: str) -> Iterator[None]:
    """Ctrl-C ends the command and not the run."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(
            f"\n{run} goes on. `fedloop run watch {run}` follows it, `fedloop run stop {run}` stops it.", err=True
        )
        raise


def _told(home: Path, run: str, *, as_json: bool, taken_back: Wish | None = None) -> None:
    """Says where a run stands after a command about it, and which wish that took back."""
    from fedloop_server.cli.run_broken import broken_document
    from fedloop_server.cli.run_telling import next_step, wished_step
    from fedloop_server.manager.state import Wish
    from fedloop_server.manager.views import BrokenRun

    view = any_view(home, run)
    wish = Wish.NONE if view.queued is None else view.queued.wish
    status = "to be stopped" if wish is Wish.STOP else "to be resumed" if wish.resumes else view.status
    if taken_back is Wish.STOP and wish.resumes and view.status in {"starting", "running"}:
        status = "to go on"
    back = {Wish.STOP: "The wish to stop it is taken back. ", Wish.RESUME: "The wish to resume it is taken back. "}
    unserved = "" if served(home) else " Nobody takes the queue forward: start `fedloop server up` on this coordinator."
    step = broken_document(view).next_step if isinstance(view, BrokenRun) else wished_step(view) or next_step(view)
    step = f"{back.get(taken_back or Wish.NONE, '')}{step}"
    if as_json:
        say(json.dumps({"run": run, "status": view.status, "wish": wish.value, "next": f"{step}{unserved}"}))
    else:
        say(f"{run} is {status}. {step}{unserved}")


def _check_warm(coordinator: CoordinatorHome, task: Task, version: int | None) -> None:
    from fedloop_server.runs.warm import require_same_purpose, require_weights

    if version is None:
        return
    with closing(coordinator.registry()) as registry:
        parent = registry.version(task.name, version).run_id
    require_same_purpose(coordinator.plan(parent).task, task, version)
    require_weights(coordinator.run_folder(parent), task.name, version)


def _raise_unless_finished(view: RunView) -> None:
    run = view.plan.run_id
    if view.status == "finished":
        return
    if view.status == "stopped":
        raise RunCancelled(f"run {run} was stopped.", hint=f"`fedloop run resume {run}` lets it go on.")
    if view.status == "open":
        raise RunError(f"run {run} is open and nobody drives it.", hint=f"`fedloop run show {run}` says how it stands.")
    why = (
        view.state.failure.reason if view.state.failure is not None else view.problem or "its journal does not say why"
    )
    raise RunError(f"run {run} has failed: {why.rstrip('.')}.", hint=f"`fedloop run show {run}` says more.")


def _serverapp_lines(home: Path, view: RunView) -> Sequence[str]:
    """What the ServerApps of a run printed, as far as Flower keeps it and can be asked."""
    if view.queued is None or not view.queued.job.flower_runs:
        return ()
    from fedloop_server.home import CoordinatorHome
    from fedloop_server.manager.deployed import flower_control

    try:
        control = flower_control(CoordinatorHome(home))
        return [line for number in view.queued.job.flower_runs for line in control.log(number)]
    except FedloopError as error:
        typer.echo(f"What the ServerApp printed cannot be had: {error}", err=True)
        return ()


def _told_event(event: Event) -> dict[str, object]:
    from fedloop_server.cli.run_logs import sentence_of

    return {"at": getattr(event, "unix", None), "event": event.event, "sentence": sentence_of(event)}


def _line(event: Event) -> str:
    from fedloop_server.cli.run_logs import sentence_of
    from fedloop_server.cli.run_words import moment

    at = getattr(event, "unix", None)
    return f"{moment(at) if at is not None else ' ' * 16}  {sentence_of(event)}"
