"""`fedloop run` over runs that were really driven, in process, by real sites."""

from __future__ import annotations

import hashlib
import io
import json
import math
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.data.site_data import SiteData
from fedloop_clients.endpoint import Question, Reply, SiteEndpoint
from fedloop_clients.outbox import Outbox
from fedloop_clients.policy import Budget, SiteConfig
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core import cli
from fedloop_core.audit import AuditAction
from fedloop_core.dataset import Dataset
from fedloop_core.keys import SigningKey
from fedloop_core.noise import SeededNoise
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task.document import FederatedAveraging, LogisticModel, Privacy, Rounds, Task
from fedloop_server.cli.run_broken import BrokenDocument
from fedloop_server.cli.run_compare import Comparison
from fedloop_server.cli.run_documents import RunDocument, RunLine
from fedloop_server.cli.run_start import DryRun
from fedloop_server.home import CoordinatorHome
from fedloop_server.manager.state import Status, Wish
from fedloop_server.membership import Members
from fedloop_server.membership.machine import SiteKeys
from fedloop_server.membership.records import Activity, ActivityKind, IssuedCertificate, JoinedSite
from fedloop_server.runs.control import stop_run
from fedloop_server.runs.events import AttemptStarted, RunFinished
from fedloop_server.runs.lock import drives
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import RunState
from fedloop_simulations.federation import run_in_process
from fedloop_simulations.keys import rehearsal_key

SITES = ("east", "north", "south", "west")
TASK = """
format = 1
name = "wards"
[[features]]
kind = "numeric"
name = "a"
range = [-4.0, 4.0]
[label]
kind = "classes"
name = "outcome"
classes = ["no", "yes"]
[model]
kind = "logistic"
[privacy]
epsilon = 2.0
delta = 1e-4
[rounds]
count = 4
"""


def wards(**settings: Any) -> Task:
    privacy = Privacy(epsilon=settings.pop("epsilon", math.inf), delta=1e-3)
    return Task(
        format=1,
        name="wards",
        features=(NumericFeature(kind="numeric", name="a", range=(-4.0, 4.0)),),
        label=ClassLabel(kind="classes", name="outcome", classes=("no", "yes")),
        model=LogisticModel(kind="logistic"),
        training=FederatedAveraging(algorithm="fedavg", local_steps=3, batch_size=8),
        privacy=privacy,
        rounds=Rounds(**{"count": 3, "quorum": 0.5, "deadline_seconds": 30.0, "evaluate_every": 1, **settings}),
    )


class Broken:
    """A site whose answers cannot be read from its first round on."""

    def __init__(self, site: SiteEndpoint) -> None:
        self.site = site
        self.asked = 0

    def answer(self, question: Question) -> Reply:
        self.asked += 1
        if self.asked == 1:
            return self.site.answer(question)
        return Reply(b"\xff\xff\xff", {})


def daemon(home: CoordinatorHome, name: str, task: Task) -> SiteDaemon:
    generator = np.random.default_rng(list(name.encode()))
    values = generator.normal(size=(80, 1)).astype(np.float32)
    labels = (values.sum(axis=1) > 0).astype(np.int64)
    rows = Dataset({"numeric": values}, labels, tuple(f"{name}-{at}" for at in range(80)))
    budget = Budget(epsilon=20.0 if task.privacy.private else math.inf, delta=1e-3)
    return SiteDaemon(
        SiteConfig(site=name, training_budget=budget, evaluation_budget=budget),
        SiteData(rows.take(np.arange(20, 80)), rows.take(np.arange(20)), secret=bytes(16)),
        Ledger(":memory:", lambda: int(time.time())),
        Outbox(":memory:"),
        SeededNoise(5, name),
        home.envelope_key.verifying,
        lambda: int(time.time()),
        signing_key=rehearsal_key(name),
    )


def driven(home: CoordinatorHome, run_id: str, task: Task, wrap: Mapping[str, Callable[..., SiteEndpoint]]) -> RunState:
    plan = RunPlan(run_id=run_id, task=task, seed=3, private=True, expected_sites=len(SITES), export=False)
    ends: dict[str, SiteEndpoint] = {name: daemon(home, name, task) for name in SITES}
    ends |= {name: make(ends[name]) for name, make in wrap.items()}
    return run_in_process(home, plan, ends, lambda *_: None)


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> CoordinatorHome:
    """Runs that were driven: a plain one with a broken site, a private one, one that failed."""
    home = CoordinatorHome(tmp_path_factory.mktemp("office"))
    driven(home, "plain-1", wards(), {"west": Broken})
    driven(home, "private-1", wards(epsilon=5.0, count=2), {})
    driven(home, "plain-2", wards(quorum=1.0), {"west": Broken})
    return home


@dataclass
class Shell:
    """Runs commands on a folder in this process, as a person would in theirs."""

    home: Path
    capture: pytest.CaptureFixture[str]
    out: str = ""

    def __call__(self, *words: str, status: int = 0) -> str:
        self.capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(["run", *words, "--home", str(self.home)])
        said = self.capture.readouterr()
        assert ended.value.code == status, said
        assert "Traceback" not in said.out + said.err
        self.out = said.out
        return said.out + said.err

    def json(self, *words: str, status: int = 0) -> Any:
        """The last line of what a program reads."""
        self(*words, "--json", status=status)
        return json.loads(self.out.splitlines()[-1])


@pytest.fixture
def shell(office: CoordinatorHome, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(office.folder, capsys)


def admit(home: CoordinatorHome, name: str) -> None:
    """A site that has joined."""
    with closing(home.database()) as database:
        members, digest = Members(database), hashlib.sha256(name.encode()).digest()
        members.add(name)
        members.issue_token(name, digest, int(time.time()) + 60)
        certificate = IssuedCertificate(b"pem", digest.hex(), int(time.time()) + 1000)
        public = ec.generate_private_key(ec.SECP384R1()).public_key()
        node = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        joined = JoinedSite(node, SigningKey.generate().verifying.raw, certificate, 1, "0.2")
        keys = SiteKeys(*(f"{kind} of {name}" for kind in ("certificate", "node", "signing")))
        members.record_join(digest, keys, lambda _: joined, "")


def make_coordinator(folder: Path) -> CoordinatorHome:
    """A coordinator with three active sites, one of them paused, and one that was only invited."""
    home = CoordinatorHome(folder / "coordinator")
    for name in ("north", "south", "west"):
        admit(home, name)
    with closing(home.database()) as database:
        members = Members(database)
        members.add("late")
        now = int(time.time())
        for name, kind in (("north", ActivityKind.IDLE), ("south", ActivityKind.PAUSED)):
            members.record_report(name, Activity(kind), site_unix=now, protocol=1, software_version="0.2")
    (folder / "task.toml").write_text(TASK)
    return home


@pytest.fixture
def fresh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A coordinator as ``make_coordinator`` makes it."""
    return Shell(make_coordinator(tmp_path).folder, capsys)


def task_of(shell: Shell) -> str:
    return str(shell.home.parent / "task.toml")


# Reading runs.


def test_show_tells_who_was_left_out_of_which_round_and_why(shell: Shell) -> None:
    said = shell("show", "plain-1", "--rounds")
    assert "plain-1, finished" in said
    assert "3 of 3 closed, in 1 attempt" in said
    assert "west was left out of rounds 1 to 3" in said
    assert "FL-" in said.split("west was left out")[1]
    assert "next: It made no version: it was started with --no-export." in said


def test_show_as_json_holds_rounds_measures_and_times(shell: Shell) -> None:
    document = RunDocument.model_validate_json(json.dumps(shell.json("show", "plain-1")))
    assert [r.round for r in document.rounds] == [1, 2, 3]
    assert document.rounds[0].asked == SITES
    assert document.rounds[0].answered == ("east", "north", "south")
    assert [out.site for out in document.rounds[0].left_out] == ["west"]
    assert all(r.seconds is not None and r.seconds >= 0 for r in document.rounds)
    assert document.measured is not None
    assert document.measured.low <= document.measured.value <= document.measured.high
    assert set(document.rounds[-1].measured_by_site) == {"east", "north", "south"}
    west = next(site for site in document.sites if site.site == "west")
    assert (west.answered, west.asked, west.left_out) == (0, 3, 3)
    assert document.bytes_out > 0
    assert document.line.took is not None


def test_show_tells_the_privacy_that_each_site_spent(shell: Shell) -> None:
    document = RunDocument.model_validate_json(json.dumps(shell.json("show", "private-1")))
    assert document.private
    assert document.planned_epsilon == 5.0
    for site in document.sites:
        assert site.epsilon is not None
        assert 0 < site.epsilon <= 5.0
        assert site.budget == 20.0
    told = shell("show", "private-1")
    assert "Epsilon spent on training rows" in told
    assert "evaluation rows, for life" in told


def test_a_run_that_failed_says_why_and_what_to_do(shell: Shell) -> None:
    said = shell("show", "plain-2")
    assert "plain-2, failed (FL-RUN-001: round 1: 3 of 4 sites answered; 4 are needed." in said
    assert "`fedloop run resume plain-2` goes on after round 0" in said


def test_list_has_every_run_in_one_line(shell: Shell) -> None:
    lines = [RunLine.model_validate(line) for line in shell.json("list")["runs"]]
    assert {line.run: line.status for line in lines} == {
        "plain-1": "finished",
        "private-1": "finished",
        "plain-2": "failed",
    }
    assert lines[0].round == 3
    table = shell("list", "--task", "wards")
    assert "plain-1" in table
    assert "There is no run yet" in shell("list", "--task", "other")


def test_logs_are_the_journal_in_sentences(shell: Shell) -> None:
    said = shell("logs", "plain-1")
    assert "The run begins." in said
    assert "Round 1 asks 4 sites: east, north, south, west." in said
    assert "west is left out of round 1" in said
    assert "The run has finished." in said
    told = shell.json("logs", "plain-1")
    assert [event["event"] for event in told["events"]][-1] == "run-finished"
    assert told["serverapp"] == []


def test_compare_tells_differences_by_key_and_figures_side_by_side(shell: Shell) -> None:
    found = Comparison.model_validate_json(json.dumps(shell.json("compare", "plain-1", "private-1")))
    assert found.differences["privacy.epsilon"] == ("Infinity", "5.0")
    assert found.differences["rounds.count"] == ("3", "2")
    assert "seed" not in " ".join(found.differences)
    assert [run.rounds for run in found.runs] == [3, 2]
    assert found.runs[0].epsilon is None
    assert found.runs[1].epsilon is not None
    said = shell("compare", "plain-1", "private-1")
    assert "accuracy, all sites" in said
    assert "accuracy, north" in said


def test_reading_changes_no_journal(shell: Shell, office: CoordinatorHome) -> None:
    path = office.run_folder("plain-1") / "journal.jsonl"
    before = path.read_bytes()
    path.write_bytes(before + b'{"event": "half')
    shell("show", "plain-1")
    shell("logs", "plain-1")
    assert path.read_bytes() == before + b'{"event": "half'
    path.write_bytes(before)


def test_a_journal_that_is_broken_is_told_and_hides_no_other_run(shell: Shell, office: CoordinatorHome) -> None:
    path = office.run_folder("plain-1") / "journal.jsonl"
    before = path.read_bytes()
    path.write_bytes(b"nonsense\n" + before)
    assert "line 1 is not the next event" in shell("list")
    assert "FL-STORE-005" in shell("show", "plain-1")
    assert "FL-STORE-005" in shell("logs", "plain-1", status=11)
    path.write_bytes(before)


def test_a_plan_that_is_broken_is_told_and_hides_no_other_run(fresh: Shell) -> None:
    fresh("start", task_of(fresh))
    fresh("start", task_of(fresh))
    path = fresh.home / "runs" / "wards-1" / "plan.json"
    path.write_bytes(path.read_bytes().replace(b'"durable"', b'"durables"'))
    lines = [RunLine.model_validate(line) for line in fresh.json("list")["runs"]]
    assert [(line.run, "its plan" in line.reason) for line in lines] == [("wards-1", True), ("wards-2", False)]
    assert "durables: Extra inputs are not permitted" in " ".join(fresh("list").split())
    assert "`fedloop run remove wards-1`" in fresh("show", "wards-1")
    told = BrokenDocument.model_validate(fresh.json("show", "wards-1"))
    assert "plan.json cannot be read" in told.problem
    for command in ("logs", "watch"):
        assert "plan.json cannot be read" in fresh(command, "wards-1", status=11)
    assert "to be stopped" in fresh("stop", "wards-1")
    assert "wards-2 is to be stopped" in fresh("stop", "wards-2")


def test_names_may_be_shortened_while_they_are_clear(shell: Shell) -> None:
    assert shell.json("show", "priv")["line"]["run"] == "private-1"


# Starting, stopping, resuming.


def test_a_dry_run_tells_whom_it_would_ask_and_what_it_would_cost(fresh: Shell) -> None:
    found = DryRun.model_validate_json(json.dumps(fresh.json("start", task_of(fresh), "--dry-run")))
    assert {site.site: site.asked for site in found.sites} == {
        "late": False,
        "north": True,
        "south": True,
        "west": True,
    }
    assert (found.rounds, found.quorum, found.epsilon, found.expected_sites) == (4, 2, 2.0, 3)
    assert "site south says that it is paused." in found.warnings
    assert "site west has never connected." in found.warnings
    assert any("1 sites seem to be there and 2 are needed" in warning for warning in found.warnings)
    assert found.messages == 3 + 4 * 3 + 3 * 3
    assert not (fresh.home / "runs").exists()
    said = fresh("start", task_of(fresh), "--dry-run", "--at", "2099-01-01T02:30", "--every", "7d")
    assert "2099-01-01 02:30 UTC, then every 7 days" in said
    assert "Nothing was started." in said


def test_a_run_is_queued_stopped_and_resumed(fresh: Shell) -> None:
    assert "wards-1 is queued." in fresh("start", task_of(fresh), "--no-export", "--seed", "7")
    home = CoordinatorHome(fresh.home)
    plan = home.plan("wards-1")
    assert (plan.seed, plan.export, plan.expected_sites, plan.private) == (7, False, 3, True)
    assert fresh.json("start", task_of(fresh))["run"] == "wards-2"
    assert "wards-1 is to be stopped" in fresh("stop", "wards-1")
    set_status(home, "wards-1", Status.STOPPED)
    assert "wards-1 is to be resumed" in fresh("resume", "wards-1")
    actions = [(entry.actor.partition(":")[0], entry.action) for entry in home.audit().entries()]
    assert actions == [
        ("operator", AuditAction.RUN_STARTED),
        ("operator", AuditAction.RUN_STARTED),
        ("operator", AuditAction.RUN_STOPPED),
        ("operator", AuditAction.RUN_RESUMED),
    ]


def test_a_command_says_which_wish_it_takes_back(fresh: Shell) -> None:
    fresh("start", task_of(fresh))
    set_status(CoordinatorHome(fresh.home), "wards-1", Status.RUNNING)
    fresh("stop", "wards-1")
    assert "wards-1 is to go on. The wish to stop it is taken back." in fresh("resume", "wards-1")
    set_status(CoordinatorHome(fresh.home), "wards-1", Status.STOPPED)
    fresh("resume", "wards-1")
    assert "wards-1 is stopped. The wish to resume it is taken back." in fresh("stop", "wards-1")
    assert "is stopped and cannot be stopped" in fresh("stop", "wards-1", status=7)


def test_a_run_is_scheduled_again_and_again(fresh: Shell) -> None:
    fresh("start", task_of(fresh), "--name", "nightly", "--at", "2099-01-01T02:30", "--every", "1d")
    line = RunLine.model_validate(fresh.json("list")["runs"][0])
    assert (line.run, line.status, line.every_seconds) == ("nightly", "scheduled", 86_400.0)
    assert "starts:   2099-01-01 02:30 UTC, then every 1 day" in fresh("show", "nightly")
    assert "`fedloop run stop nightly` takes it back" in fresh("show", "nightly")


def test_a_run_that_waits_for_its_time_says_when_it_starts(fresh: Shell) -> None:
    fresh("start", task_of(fresh))
    words = ("start", task_of(fresh), "--name", "weekly", "--at", "2099-01-01T02:30", "--every", "7d12h")
    assert "weekly is scheduled. It starts 2099-01-01 02:30 UTC, then every 7 days 12 hours;" in fresh(*words)
    head, *rows = [line.split() for line in fresh("list").splitlines() if "┃" in line or "│" in line]
    assert head[-2:] == ["starts", "┃"]
    weekly = next(row for row in rows if "weekly" in row)
    assert weekly[-8:] == ["│", "-", "│", "-", "│", "2099-01-01", "02:30", "│"]
    assert "this machine's time zone" in " ".join(fresh("start", "--help").replace("│", " ").split())


def test_a_run_that_never_began_is_resumed_to_its_time_or_at_once(fresh: Shell) -> None:
    fresh("start", task_of(fresh), "--name", "nightly", "--at", "2099-01-01T02:30", "--every", "1d")
    early = fresh("resume", "nightly", status=7)
    assert "it goes on by itself. `fedloop run show nightly` says how it stands." in early
    assert "`fedloop run resume nightly --now` starts it at once." in early
    set_status(CoordinatorHome(fresh.home), "nightly", Status.STOPPED)
    assert "nightly is to be resumed. It starts 2099-01-01 02:30 UTC;" in fresh("resume", "nightly")
    told = fresh.json("resume", "nightly", "--now")
    assert (told["wish"], told["next"].partition(" Nobody")[0]) == (
        "resume-now",
        "`fedloop run watch nightly` follows it.",
    )


@pytest.mark.parametrize(
    ("typed", "said"),
    [("", "Add --yes, or answer it at a terminal."), ("n\n", "nothing was changed."), ("y\n", "They are removed.")],
)
def test_a_question_that_nobody_answers_or_denies_removes_nothing(
    fresh: Shell, monkeypatch: pytest.MonkeyPatch, typed: str, said: str
) -> None:
    fresh("start", task_of(fresh))
    set_status(CoordinatorHome(fresh.home), "wards-1", Status.STOPPED)
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert said in fresh("remove", "wards-1", status=0 if typed == "y\n" else 2)
    assert (fresh.home / "runs" / "wards-1").exists() == (typed != "y\n")


@dataclass(frozen=True)
class Misuse:
    """A command that makes no sense, its exit status and what it says."""

    name: str
    words: tuple[str, ...]
    status: int
    said: str


MISUSES = (
    Misuse("unknown run", ("show", "nightly-9"), 2, "there is no run 'nightly-9'. Did you mean nightly-1?"),
    Misuse("empty name", ("show", ""), 2, "there is no run ''."),
    Misuse("ambiguous beginning", ("show", "n"), 2, "'n' may be nightly-1, noon-1"),
    Misuse(
        "stop of a finished run", ("stop", "done"), 7, "cannot be stopped. `fedloop run show done` says how it ended."
    ),
    Misuse("resume of a running run", ("resume", "noon-1"), 7, "run noon-1 is running: it goes on by itself."),
    Misuse("resume of a finished run", ("resume", "done"), 7, "there is nothing to resume"),
    Misuse("stop of a run of no queue", ("stop", "alone"), 7, "was not started from this queue"),
    Misuse("task that is none", ("start", "none.toml"), 3, "none.toml is neither a file nor a preset."),
    Misuse("task with a mistake", ("start", "bad.toml"), 3, "bad.toml:3:1: colour is not a known key"),
    Misuse("name that is taken", ("start", "heart", "--name", "done"), 7, "there is a run done already."),
    Misuse("name of a folder", ("start", "heart", "--name", "alone"), 7, "there is a run alone already."),
    Misuse("name that is none", ("start", "heart", "--name", "../x"), 2, "a run cannot be named '../x'."),
    Misuse(
        "more sites than there are", ("start", "heart", "--sites", "9"), 7, "9 sites are asked for and 3 are active"
    ),
    Misuse("no sites", ("start", "heart", "--sites", "0"), 2, "Invalid value for '--sites'"),
    Misuse("time that is none", ("start", "heart", "--at", "soon"), 2, "--at 'soon' is no time."),
    Misuse("hour that is none", ("start", "heart", "--at", "25:00"), 2, "--at '25:00' is no time."),
    Misuse("time that has passed", ("start", "heart", "--at", "2020-01-01"), 2, "has passed"),
    Misuse("interval that is none", ("start", "heart", "--every", "often"), 2, "--every 'often' is no interval."),
    Misuse("interval that is too short", ("start", "heart", "--every", "5s"), 2, "between a minute and a year"),
    Misuse("version that is none", ("start", "heart", "--warm-from", "3"), 9, "has no version 3"),
    Misuse("one run to compare", ("compare", "done"), 2, "one run cannot be compared."),
    Misuse("a run with itself", ("compare", "done", "do"), 2, "a run is named twice."),
    Misuse("watch of a run of no queue", ("watch", "alone"), 7, "run alone is open and nobody drives it."),
)


@pytest.fixture(scope="module")
def misused_home(tmp_path_factory: pytest.TempPathFactory) -> CoordinatorHome:
    """A coordinator with runs of several states; no misuse changes it."""
    home = make_coordinator(tmp_path_factory.mktemp("misused"))
    (home.folder.parent / "bad.toml").write_text('format = 1\nname = "x"\ncolour = "red"\n')
    with closing(home.queue()) as queue:
        for name in ("nightly-1", "noon-1", "done", "alone"):
            plan = RunPlan(run_id=name, task=wards(), seed=1, private=False, expected_sites=3)
            home.store_plan(plan)
            if name != "alone":
                queue.submit(plan)
    set_status(home, "noon-1", Status.RUNNING)
    set_status(home, "done", Status.FINISHED)
    return home


@pytest.fixture
def misused(
    misused_home: CoordinatorHome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    monkeypatch.chdir(misused_home.folder.parent)
    return Shell(misused_home.folder, capsys)


@pytest.mark.parametrize("misuse", MISUSES, ids=lambda misuse: misuse.name)
def test_misuse_is_one_sentence_with_a_next_step(misused: Shell, misuse: Misuse) -> None:
    said = misused(*misuse.words, status=misuse.status)
    assert misuse.said in said
    told = misused.json(*misuse.words, status=misuse.status)["error"]
    assert told["code"].startswith("FL-")
    assert told["hint"] or told.get("problems")


def test_a_run_that_waits_for_sites_says_how_long_and_where_to_look(misused: Shell) -> None:
    said = misused("show", "noon-1")
    assert "It waits until 3 sites are connected, at most" in said
    assert "`fedloop server status` says who is there" in said


def test_a_run_on_a_disk_without_room_says_so(misused: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(misused.home)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=1000))
    assert "No space left on the disk" in misused("show", "noon-1")
    assert "No space left" not in misused("show", "done")  # it has ended, and waits for nothing


def test_without_sites_nothing_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = CoordinatorHome(tmp_path)
    home.database().close()
    said = Shell(tmp_path, capsys)("start", "heart", status=7)
    assert "there is no active site to train with. `fedloop server site add NAME`" in said


def test_a_folder_without_a_coordinator_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "holds no coordinator" in Shell(tmp_path, capsys)("list", status=3)
    assert list(tmp_path.iterdir()) == []


# Following.


def set_status(home: CoordinatorHome, run_id: str, status: Status) -> None:
    with closing(home.queue()) as queue:
        entry = queue.find(run_id)
        assert entry is not None
        made = entry.__class__(entry.number, entry.job.model_copy(update={"status": status}), Wish.NONE)
        queue.keep([entry], [made])


def play(home: CoordinatorHome, run_id: str, end: Callable[[CoordinatorHome, str], None]) -> threading.Thread:
    """A driver in a thread, of a run that the queue calls running."""
    set_status(home, run_id, Status.RUNNING)

    def drive() -> None:
        with drives(home.run_folder(run_id)):
            journal = home.journal(run_id)
            journal.record(AttemptStarted(attempt=1, unix=time.time()))
            time.sleep(0.5)
            if end is finish:
                journal.record(RunFinished(unix=time.time()))
        if end is not finish:
            end(home, run_id)

    thread = threading.Thread(target=drive)
    thread.start()
    return thread


def finish(home: CoordinatorHome, run_id: str) -> None:
    """Marks a run that is to finish."""


def halt(home: CoordinatorHome, run_id: str) -> None:
    stop_run(home, run_id)


@pytest.mark.parametrize(("end", "status", "said"), [(finish, 0, "has finished"), (halt, 7, "was stopped")])
def test_watch_follows_to_the_end_and_its_status_says_how(
    fresh: Shell, end: Callable[[CoordinatorHome, str], None], status: int, said: str
) -> None:
    fresh("start", task_of(fresh), "--no-export")
    thread = play(CoordinatorHome(fresh.home), "wards-1", end)
    told = fresh("watch", "wards-1", status=status)
    thread.join()
    assert "The run begins." in told
    assert said in told
    assert "Nobody takes the queue forward: start `fedloop server up`" in told


def test_logs_follow_to_the_end(fresh: Shell) -> None:
    fresh("start", task_of(fresh))
    thread = play(CoordinatorHome(fresh.home), "wards-1", finish)
    assert "The run has finished." in fresh("logs", "wards-1", "--follow")
    thread.join()


def test_ctrl_c_ends_watching_and_leaves_the_run(fresh: Shell) -> None:
    fresh("start", task_of(fresh))
    command = [sys.executable, "-m", "fedloop_core", "run", "watch", "wards-1", "--home", str(fresh.home)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    told = process.stderr.readline() + process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert "The run is queued." in told
    assert process.returncode == 130
    assert "wards-1 goes on. `fedloop run watch wards-1` follows it" in rest
    assert RunLine.model_validate(fresh.json("list")["runs"][0]).status == "queued"
