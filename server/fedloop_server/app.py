"""The Flower ServerApp: takes up a run of a coordinator's folder and drives it to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedloop_core.errors import AuditBroken, ContentDamaged, FedloopError, RunCancelled, RunError, StorageError
from fedloop_core.federation.bundle import HOME_KEY, RUN_KEY
from fedloop_server.home import CoordinatorHome
from fedloop_server.registry import Registry
from fedloop_server.runs.auditing import audited
from fedloop_server.runs.behind import catching_up
from fedloop_server.runs.candidate import Candidate
from fedloop_server.runs.control import settle
from fedloop_server.runs.driver import RunDriver
from fedloop_server.runs.events import AttemptBroken, Event, RunFailed, RunFinished, RunStopped
from fedloop_server.runs.exchange import Exchange
from fedloop_server.runs.journal import RunJournal
from fedloop_server.runs.lock import drives
from fedloop_server.runs.model import RunModel, model_of
from fedloop_server.runs.patient import patient
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.room import Room, with_room
from fedloop_server.runs.state import RunState
from fedloop_server.runs.surroundings import Surroundings
from fedloop_server.runs.warm import require_same_purpose, require_weights
from fedloop_server.whole_sites.book import WholeSites

__all__ = ["app", "drive", "server_app"]

Observer = Callable[[RunState, Event], None]


def drive(
    grid: Grid, home: CoordinatorHome, run_id: str, surroundings: Surroundings, observe: Observer | None = None
) -> RunState:
    """Drives a run, from its beginning or from where its last process left it; returns its state at the end.

    A failure that has a name ends the run as failed, and a person's wish as stopped, in the journal and the registry; neither
    is raised. Anything else is, and leaves the run open, as a process that dies does: it can be taken up again.

    The coordinator's own database and disk end no run by failing. What may pass is waited for (``runs.room``: a minute, and
    for room on the disk as long as it takes); what lasts longer is noted in the journal, leaves the run open and is raised,
    and the manager starts further attempts, ever more seldom, until it gives the run up and says why. What is damaged
    (``ContentDamaged``, ``AuditBroken``) no attempt can mend: it ends the run as failed.

    Raises:
        ContentDamaged: the plan or the journal is damaged.
        RunBusy: another process drives the run.
        RunError: there is no such run.
        StorageError: the coordinator's database or disk fails for longer than it is waited for.
    """
    plan, room = home.plan(run_id), surroundings.room
    with drives(home.run_folder(run_id)), closing(with_room(home.registry, room)) as registry:
        journal = home.journal(run_id, audited(run_id, surroundings.audit, observe, room), room)
        with_room(lambda: _open(registry, plan), room)
        if not journal.state.ended:
            with_room(lambda: settle(registry, run_id, journal.state), room)
            _to_the_end(grid, home, registry, plan, journal, patient(surroundings))
        with_room(lambda: settle(registry, run_id, journal.state), room)
        return journal.state


def server_app(observe: Observer, surroundings: Surroundings) -> ServerApp:
    """The app with somebody who watches each event, for the process that runs it."""
    watched = ServerApp()

    @watched.main()
    def main(grid: Grid, context: Context) -> None:
        drive(grid, _home(context), str(context.run_config[RUN_KEY]), surroundings, observe)

    return watched


app = ServerApp()


@app.main()
def _main(grid: Grid, context: Context) -> None:
    from fedloop_server.deployed import deployed_surroundings  # front and membership, which no rehearsal needs

    home, run_id = _home(context), str(context.run_config[RUN_KEY])
    with deployed_surroundings(home, run_id) as surroundings:
        drive(grid, home, run_id, surroundings)


def _home(context: Context) -> CoordinatorHome:
    return CoordinatorHome(Path(str(context.run_config[HOME_KEY])))


def _open(registry: Registry, plan: RunPlan) -> None:
    registry.register_task(plan.task)
    if all(run.run_id != plan.run_id for run in registry.runs(plan.task.name)):
        registry.open_run(plan.run_id, plan.task.digest.hex(), plan.warm_from)


def _to_the_end(
    grid: Grid,
    home: CoordinatorHome,
    registry: Registry,
    plan: RunPlan,
    journal: RunJournal,
    surroundings: Surroundings,
) -> None:
    try:
        _attempt(grid, home, registry, plan, journal, surroundings)
    except RunCancelled:
        journal.record(RunStopped(unix=time.time()))
    except (AuditBroken, ContentDamaged) as error:
        journal.record(RunFailed(code=error.code, reason=error.message, unix=time.time()))
    except StorageError as error:
        with suppress(StorageError):  # it may be the journal's own disk
            journal.record(AttemptBroken(code=error.code, reason=error.message, unix=time.time()))
        raise
    except FedloopError as error:
        journal.record(RunFailed(code=error.code, reason=error.message, unix=time.time()))
    else:
        journal.record(RunFinished(unix=time.time()))


def _attempt(
    grid: Grid,
    home: CoordinatorHome,
    registry: Registry,
    plan: RunPlan,
    journal: RunJournal,
    surroundings: Surroundings,
) -> None:
    key = home.envelope_key

    def once(at_least: int, catches_up: bool) -> None:
        with _whole_sites(home, plan, surroundings) as whole_sites:
            drive_once(at_least, catches_up, whole_sites)

    def drive_once(at_least: int, catches_up: bool, whole_sites: WholeSites | None) -> None:
        model = _model(home, registry, plan, surroundings.room)

        def connect(attempt: int) -> Exchange:
            return Exchange(
                grid,
                key,
                surroundings,
                run_id=plan.run_id,
                attempt=attempt,
                task_digest=plan.task.digest,
                catches_up=catches_up,
            )

        driver = RunDriver(plan, journal, model, connect, at_least=at_least, whole_sites=whole_sites)
        driver.train()
        if plan.export:
            Candidate(plan, journal, registry, driver.exchange).make(model.deployable())

    catching_up(once)


@contextmanager
def _whole_sites(home: CoordinatorHome, plan: RunPlan, surroundings: Surroundings) -> Iterator[WholeSites | None]:
    """The record of what whole sites have spent, where the run hides them."""
    if plan.task.central_privacy is None:
        yield None
        return
    with closing(with_room(lambda: home.whole_sites(surroundings.whole_site_budget), surroundings.room)) as book:
        yield book


def _model(home: CoordinatorHome, registry: Registry, plan: RunPlan, room: Room | None) -> RunModel:
    if plan.warm_from is None:
        return model_of(plan.task, plan.seed)
    version = plan.warm_from
    parent = with_room(lambda: registry.version(plan.task.name, version), room)
    require_same_purpose(home.plan(parent.run_id).task, plan.task, version)
    require_weights(home.run_folder(parent.run_id), plan.task.name, version)
    warm = home.trained_arrays(parent.run_id)
    missing = [name for name in model_of(plan.task, plan.seed).names if name not in warm]
    if missing:
        raise RunError(
            f"version {plan.warm_from} has no array {missing[0]}: its model is another one.",
            hint="Start afresh instead of warm.",
        )
    return model_of(plan.task, plan.seed, warm)
