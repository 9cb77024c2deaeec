"""`fedloop run remove` over real folders, queue, registry and backups' locks."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedloop_core import cli
from fedloop_core.artifact import Lineage
from fedloop_core.audit import AuditAction
from fedloop_core.errors import RunError
from fedloop_core.privacy_statement import PrivacyStatement
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task.document import FederatedAveraging, LogisticModel, Privacy, Rounds, Task
from fedloop_server.cli.run_remove import RemovalDocument
from fedloop_server.home import CoordinatorHome
from fedloop_server.manager.state import Status, Wish
from fedloop_server.manager.submitting import RunRequest, planned
from fedloop_server.manager.views import load_views, run_names
from fedloop_server.runs.events import AttemptStarted, RunFinished, RunStopped
from fedloop_server.runs.lock import drives
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.statement import lineage_of, privacy_of
from fedloop_server.runs.thinning import nothing_is_thinned

DAY = 86_400.0


def wards() -> Task:
    return Task(
        format=1,
        name="wards",
        features=(NumericFeature(kind="numeric", name="a", range=(-4.0, 4.0)),),
        label=ClassLabel(kind="classes", name="outcome", classes=("no", "yes")),
        model=LogisticModel(kind="logistic"),
        training=FederatedAveraging(algorithm="fedavg"),
        privacy=Privacy(epsilon=math.inf),
        rounds=Rounds(count=3),
    )


def run(home: CoordinatorHome, name: str, status: Status, *, ended: float = 0.0, driven: bool = True) -> None:
    """A run that the queue knows; one that was driven has a journal and is in the registry."""
    plan = RunPlan(run_id=name, task=wards(), seed=1, private=False, expected_sites=2, durable=False)
    home.store_plan(plan)
    if driven:
        journal = home.journal(name)
        journal.record(AttemptStarted(attempt=1, unix=ended - 60))
        if status.over:
            end = RunFinished if status is Status.FINISHED else RunStopped
            journal.record(end(unix=ended))
        (home.run_folder(name) / "round-1.safetensors").write_bytes(bytes(1000))
        with closing(home.registry()) as registry:
            registry.register_task(plan.task)
            registry.open_run(name, plan.task.digest.hex())
    with closing(home.queue()) as queue:
        entry = queue.submit(plan)
        job = entry.job.model_copy(update={"status": status, "ended_unix": ended if status.over else None})
        queue.keep([entry], [entry.__class__(entry.number, job, Wish.NONE)])


def released(home: CoordinatorHome, name: str) -> None:
    """The run has made a version."""
    plan, state = home.plan(name), home.journal(name).state
    privacy: PrivacyStatement = privacy_of(plan, state)
    lineage: Lineage = lineage_of(plan, state)
    with closing(home.registry()) as registry:
        registry.register_version(name, privacy, lineage)


@dataclass
class Shell:
    """Runs commands on a folder in this process."""

    home: CoordinatorHome
    capture: pytest.CaptureFixture[str]

    def __call__(self, *words: str, status: int = 0) -> str:
        self.capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(["run", *words, "--home", str(self.home.folder)])
        said = self.capture.readouterr()
        assert ended.value.code == status, said
        assert "Traceback" not in said.out + said.err
        return said.out + said.err

    def names(self) -> tuple[str, ...]:
        with closing(self.home.queue()) as queue:
            return run_names(self.home, queue)

    def folders(self) -> set[str]:
        return {path.name for path in (self.home.folder / "runs").iterdir()}


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    home, now = CoordinatorHome(tmp_path), time.time()
    run(home, "old-1", Status.FINISHED, ended=now - 40 * DAY)
    run(home, "old-2", Status.STOPPED, ended=now - 31 * DAY)
    run(home, "new-1", Status.STOPPED, ended=now - DAY)
    run(home, "open-1", Status.RUNNING)
    run(home, "made-1", Status.FINISHED, ended=now - 90 * DAY)
    released(home, "made-1")
    return Shell(home, capsys)


def test_a_run_that_is_over_goes_with_its_folder_and_its_place_in_the_queue(shell: Shell) -> None:
    said = shell("remove", "old-1", "--yes")
    assert "1 run, 3" in said
    assert "They are removed." in said
    assert shell.names() == ("old-2", "new-1", "open-1", "made-1")
    assert shell.folders() == {"old-2", "new-1", "open-1", "made-1"}
    assert "old-1" not in shell("list")
    entries = [(e.action, e.subject) for e in shell.home.audit().entries()]
    assert entries == [(AuditAction.RUN_REMOVED, "old-1")]
    assert "there is no run" in shell("show", "old-1", status=2)


def test_all_runs_older_than_some_days_go_and_the_others_say_why_they_stay(shell: Shell) -> None:
    before = shell.names()
    dry = RemovalDocument.model_validate_json(shell("remove", "--older-than", "30", "--dry-run", "--json"))
    assert [r.run for r in dry.removed] == ["old-1", "old-2"]
    assert {k.run: k.reason.split(",")[0] for k in dry.kept} == {
        "new-1": "it ended later than that",
        "open-1": "it is running",
        "made-1": "it made version 1 of wards",
    }
    assert dry.bytes == sum(r.bytes for r in dry.removed) > 2000
    assert dry.dry_run
    assert shell.names() == before
    told = RemovalDocument.model_validate_json(shell("remove", "--older-than", "30", "--yes", "--json"))
    assert not told.dry_run
    assert shell.names() == ("new-1", "open-1", "made-1")
    assert "There is no run to remove." in shell("remove", "--older-than", "30", "--yes")


def wished(shell: Shell) -> str:
    with closing(shell.home.queue()) as queue:
        queue.wish_resume("old-2")
    return "old-2"


REFUSED: dict[str, tuple[Callable[[Shell], str], tuple[str, ...], int, str]] = {
    "nothing named": (lambda _: "", ("--yes",), 2, "no run is named"),
    "no such run": (lambda _: "nothing", ("--yes",), 2, "there is no run"),
    "it goes on": (lambda _: "open-1", ("--yes",), 7, "it is running"),
    "it made a version": (lambda _: "made-1", ("--yes",), 7, "made version 1 of wards"),
    "it is to be resumed": (wished, ("--yes",), 7, "it is to be resumed"),
    "too young": (lambda _: "new-1", ("--older-than", "30", "--yes"), 7, "it ended later than that"),
    "json without a yes": (lambda _: "old-1", ("--json",), 2, "must be confirmed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_not_go_stays_and_so_does_what_was_named_with_it(shell: Shell, name: str) -> None:
    make, options, status, sentence = REFUSED[name]
    run_id = make(shell)
    words = [run_id, *(["old-1"] if run_id not in {"", "old-1"} else [])] if run_id else []
    assert sentence in shell("remove", *words, *options, status=status)
    assert "old-1" in shell.names()
    assert shell.folders() == {"old-1", "old-2", "new-1", "open-1", "made-1"}


def test_without_a_yes_a_person_is_asked(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def no(question: str, **options: Any) -> None:
        asked.append(question)
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.confirm", no)
    shell("remove", "old-1", status=130)
    assert asked == ["Remove them for good?"]
    assert "old-1" in shell.names()


def test_a_run_that_is_driven_or_backed_up_stays(shell: Shell) -> None:
    with drives(shell.home.run_folder("old-1")):
        assert "still drives it" in shell("remove", "old-1", "--yes", status=7)
    with nothing_is_thinned(shell.home.folder / "runs"):
        assert "a backup is being written" in shell("remove", "old-1", "--yes", status=7)
    assert "old-1" in shell.names()
    assert shell.home.plan("old-1")


def test_a_run_whose_plan_cannot_be_read_can_be_removed(shell: Shell) -> None:
    (shell.home.run_folder("old-2") / "plan.json").write_text("{}")
    shell("remove", "old-2", "--yes")
    assert "old-2" not in shell.names()


def test_a_removal_that_was_cut_short_hides_and_is_finished_by_the_next(shell: Shell) -> None:
    runs = shell.home.folder / "runs"
    (runs / "old-2").rename(runs / ".old-2.00ff.removed")  # and the process died before the database kept it
    with closing(shell.home.queue()) as queue:
        assert "old-2" in {getattr(view, "run_id", "") for view in load_views(shell.home, queue)}
    shell("remove", "old-2", "old-1", "--yes")
    assert shell.names() == ("new-1", "open-1", "made-1")
    assert shell.folders() == {"new-1", "open-1", "made-1"}


def test_a_name_is_never_given_again_to_another_run(shell: Shell) -> None:
    run(shell.home, "wards-1", Status.STOPPED, ended=1.0)
    shell("remove", "wards-1", "--yes")
    with closing(shell.home.queue()) as queue:
        assert planned(shell.home, queue, RunRequest(task=wards()), 2).run_id == "wards-2"
        with pytest.raises(RunError, match="there was a run wards-1"):
            planned(shell.home, queue, RunRequest(task=wards(), name="wards-1"), 2)


def test_what_is_printed_is_one_object(shell: Shell) -> None:
    assert set(json.loads(shell("remove", "old-1", "--yes", "--json"))) == {"removed", "kept", "bytes", "dry_run"}
