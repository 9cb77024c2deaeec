"""What stops a daemon, what it countersigns, who may call it off: over real envelopes, ledgers and files."""

from __future__ import annotations

import math
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloop_clients.activity import ActivityKind
from fedloop_clients.controls import SiteControls
from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.data.site_data import SiteData
from fedloop_clients.endpoint import Question
from fedloop_clients.heads import FILE_NAME, accept_restored
from fedloop_clients.notices import AuthoritiesTrusted, RunCalledOff
from fedloop_clients.outbox import Outbox
from fedloop_clients.policy import Budget, SiteConfig, SitePolicy
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core.arrays import digest
from fedloop_core.audit import AuditAction, AuditLog
from fedloop_core.dataset import Dataset
from fedloop_core.errors import EnvelopeRefused, StorageError, UsageError, VersionRefused
from fedloop_core.federation.answers import open_answer
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.keys import SigningKey, seal
from fedloop_core.models import initial_arrays
from fedloop_core.noise import SystemNoise
from fedloop_core.scaling import Scaler
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task.document import FederatedAveraging, LogisticModel, Privacy, Purpose, Rounds, Task
from fedloop_proto.coordination.v1.coordination_pb2 import (
    Answer,
    CancelRun,
    DescribeData,
    Instruction,
    LogHead,
    TrainLocally,
    TrustAuthorities,
)

KEY, STRANGER, SITE_KEY = SigningKey.generate(), SigningKey.generate(), SigningKey.generate()
NOW = 1_800_000_000
DEADLINE = 60.0


def make_task(epsilon: float = math.inf, *, steps: int = 5) -> Task:
    return Task(
        format=1,
        name="tabular",
        features=tuple(NumericFeature(kind="numeric", name=f"x{at}", range=(-4.0, 4.0)) for at in range(3)),
        label=ClassLabel(kind="classes", name="y", classes=("no", "yes")),
        model=LogisticModel(kind="logistic"),
        training=FederatedAveraging(algorithm="fedavg", local_steps=steps, batch_size=20),
        privacy=Privacy(epsilon=epsilon, delta=1e-4),
        rounds=Rounds(count=4),
    )


def some_rows(count: int, prefix: str) -> Dataset:
    values = np.random.default_rng(len(prefix)).normal(size=(count, 3)).astype(np.float32)
    return Dataset(
        {"numeric": values}, (values[:, 0] > 0).astype(np.int64), tuple(f"{prefix}{at}" for at in range(count))
    )


class Site:
    """A daemon over files, and the coordinator's side of the talk with it."""

    def __init__(
        self, folder: Path, task: Task | None = None, *, policy: SitePolicy | None = None, protocol: int = PROTOCOL
    ) -> None:
        self.folder = folder
        self.task = task or make_task()
        self.policy = policy or SitePolicy()
        self.protocol = protocol
        self.log = AuditLog(folder / "audit.jsonl")
        self.start()

    def start(self) -> None:
        budget = Budget(epsilon=60.0 if self.task.privacy.private else math.inf)
        self.ledger = Ledger(self.folder / "ledger.db", lambda: NOW)
        self.outbox = Outbox(self.folder / "outbox.db")
        self.daemon = SiteDaemon(
            SiteConfig(site="north", training_budget=budget, evaluation_budget=budget),
            SiteData(some_rows(200, "t"), some_rows(60, "ev"), secret=b"s" * 32),
            self.ledger,
            self.outbox,
            SystemNoise(),
            KEY.verifying,
            lambda: NOW,
            signing_key=SITE_KEY,
            controls=SiteControls.of_folder("north", self.folder, lambda: self.policy, self.log),
            protocol=self.protocol,
        )

    def stop(self) -> None:
        self.ledger.close()
        self.outbox.close()

    def instruction(self, arrays: Any, **parts: Any) -> Instruction:
        base: dict[str, Any] = {
            "run_id": "run-1",
            "attempt": 1,
            "site": "north",
            "task_digest": self.task.digest,
            "arrays_digest": digest(arrays),
            "expires_unix": NOW + 1000,
            "protocol": PROTOCOL,
        }
        return Instruction(**(base | parts))

    def ask(self, arrays: Any, **parts: Any) -> Answer:
        reply = self.daemon.answer(Question(seal(self.instruction(arrays, **parts), KEY), arrays))
        return open_answer(reply.answer, SITE_KEY.verifying, site="north")

    def describe(self, **parts: Any) -> Answer:
        return self.ask({}, describe_data=DescribeData(task_document=self.task.canonical()), **parts)

    def train(self, number: int, **parts: Any) -> Answer:
        arrays = {**initial_arrays(self.task, 1), **Scaler.from_ranges(self.task.feature_schema).arrays()}
        return self.ask(arrays, round=number, train_locally=TrainLocally(rounds_planned=4), **parts)

    def notice(self, **parts: Any) -> bytes:
        return seal(self.instruction({}, **parts), KEY)

    def head(self) -> LogHead:
        head = self.ledger.head()
        return LogHead(sequence=head.sequence, digest=head.digest)

    def recorded(self) -> list[AuditAction]:
        return [entry.action for entry in self.log.entries()]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def refused(answer: Answer) -> tuple[str, dict[str, str]]:
    assert answer.WhichOneof("result") == "refusal", answer
    return answer.refusal.code, dict(answer.refusal.fields)


# --- the ledger's high-water mark ----------------------------------------------------------------------------------


def roll_back(site: Site) -> LogHead:
    """Puts a snapshot of the ledger back; returns the head that the coordinator had seen."""
    site.describe()
    site.stop()
    shutil.copytree(site.folder, site.folder.with_name("snapshot"))
    site.start()
    site.train(1)
    seen = site.head()
    site.stop()
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (site.folder / name).unlink(missing_ok=True)
    shutil.copy(site.folder.with_name("snapshot") / "ledger.db", site.folder / "ledger.db")
    site.start()
    return seen


def test_a_ledger_that_was_put_back_stops_the_site_until_a_person_acts(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    seen = roll_back(site)
    with caplog.at_level("CRITICAL"):
        answer = site.train(2, ledger_seen=seen)
    assert refused(answer) == ("FL-PRIV-003", {})
    assert answer.ledger.sequence < seen.sequence
    assert "STOPPED" in caplog.text
    assert "put back from a copy" in caplog.text
    assert refused(site.describe(run_id="run-2"))[0] == "FL-PRIV-003"  # whatever is asked, whatever is named
    activity = site.daemon.activity()
    assert (activity.kind, activity.code) == (ActivityKind.STOPPED, "FL-PRIV-003")
    site.stop()
    site.start()
    assert refused(site.train(2))[0] == "FL-PRIV-003"  # a restart does not lift it
    stop = accept_restored(site.folder / FILE_NAME, by="ada", now_unix=NOW)
    assert stop.seen_sequence == seen.sequence
    assert site.train(2, ledger_seen=seen).WhichOneof("result") == "local_update"
    assert site.daemon.activity().kind is ActivityKind.IDLE
    later = LogHead(sequence=seen.sequence + 50, digest=seen.digest)
    assert refused(site.train(3, ledger_seen=later))[0] == "FL-PRIV-003"  # only that head was given up
    assert site.recorded().count(AuditAction.LEDGER_ROLLED_BACK) >= 2


def test_a_second_installation_on_the_same_data_is_noticed(site: Site, tmp_path: Path) -> None:
    site.describe()
    site.train(1)
    seen = LogHead(sequence=1, digest=b"\x07" * 32)
    assert refused(site.train(2, ledger_seen=seen))[0] == "FL-PRIV-003"
    with pytest.raises(UsageError, match="not stopped"):
        accept_restored(tmp_path / "elsewhere.json", by="ada", now_unix=NOW)


@pytest.mark.parametrize("sequence", [2**63, 2**64 - 1])
def test_a_number_beyond_any_ledger_stops_the_site_too(site: Site, sequence: int) -> None:
    site.describe()
    assert refused(site.train(1, ledger_seen=LogHead(sequence=sequence, digest=bytes(32))))[0] == "FL-PRIV-003"


def test_heads_that_the_ledger_has_stop_nothing(site: Site) -> None:
    site.describe()
    heads = [site.head()]
    for number in (1, 2):
        site.train(number)
        heads.append(site.head())
    for at, head in enumerate((LogHead(), *heads)):
        assert site.train(3, attempt=1 + at, ledger_seen=head).WhichOneof("result") == "local_update"


def test_a_stop_that_the_disk_does_not_take_holds_all_the_same(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StorageError("cannot write: No space left on device.")

    site.describe()
    with monkeypatch.context() as patch:
        patch.setattr("fedloop_clients.state_file.write_secret", full)
        assert refused(site.train(1, ledger_seen=LogHead(sequence=900)))[0] == "FL-PRIV-003"
    assert refused(site.train(1))[0] == "FL-PRIV-003"


# --- the coordinator's audit log -----------------------------------------------------------------------------------


def named(sequence: int, fill: int) -> LogHead:
    return LogHead(sequence=sequence, digest=bytes([fill]) * 32)


def test_an_answer_repeats_the_audit_head_also_when_it_refuses(site: Site) -> None:
    assert site.describe(audit=named(5, 1)).audit == named(5, 1)
    assert site.train(1, audit=named(5, 1)).audit == named(5, 1)
    assert site.train(2, attempt=0, audit=named(6, 2)).audit == named(6, 2)
    assert site.train(2).audit == named(6, 2)  # none is named: the newest that is known


HEADS = {"an older head": named(6, 6), "another digest of the same number": named(7, 9)}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_a_head_that_contradicts_what_was_named_before_is_not_countersigned(site: Site, head: LogHead) -> None:
    site.describe(audit=named(7, 7))
    site.stop()
    site.start()
    answer = site.train(1, audit=head)
    assert answer.WhichOneof("result") == "local_update"
    assert answer.audit == named(7, 7)
    (entry,) = [entry for entry in site.log.entries() if entry.details.get("reason") == "contradiction"]
    assert (entry.details["named"], entry.details["remembered"]) == (head.sequence, 7)
    assert site.train(2, audit=named(8, 8)).audit == named(8, 8)


@pytest.mark.parametrize("head", [LogHead(sequence=1, digest=b"short"), LogHead(sequence=2**63, digest=bytes(32))])
def test_a_head_that_no_log_has_is_refused(site: Site, head: LogHead) -> None:
    assert refused(site.describe(audit=head)) == ("FL-TRUST-001", {"reason": "format"})


# --- generations of the protocol -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("theirs", "works"), [(1, False), (2, True), (3, True), (4, True), (5, False), (0, False)])
def test_neighbouring_generations_work_and_others_are_refused(tmp_path: Path, theirs: int, works: bool) -> None:
    site = Site(tmp_path, protocol=3)
    answer = site.describe(protocol=theirs)
    assert answer.protocol == site.protocol
    if works:
        assert answer.data_description.admitted
    else:
        assert refused(answer) == ("FL-TRUST-009", {"theirs": str(theirs), "ours": "3"})
        assert answer.instruction_digest


# --- calling off ---------------------------------------------------------------------------------------------------


@contextmanager
def training(site: Site) -> Iterator[list[Answer]]:
    """A long round in a thread that has taken its first step; the answer is in the list once the body has ended."""
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(site.train(1)))
    thread.start()
    waited = threading.Event()
    for _ in range(int(DEADLINE * 100)):
        if site.daemon.activity().step > 1 or not thread.is_alive():
            break
        waited.wait(0.01)
    yield answers
    thread.join(DEADLINE)
    assert not thread.is_alive()


@pytest.mark.parametrize("epsilon", [math.inf, 8.0], ids=["exact", "private"])
def test_a_cancel_ends_the_training_that_is_going_on(tmp_path: Path, epsilon: float) -> None:
    site = Site(tmp_path, make_task(epsilon, steps=100_000))
    site.describe()
    with training(site) as answers:
        activity = site.daemon.activity()
        assert (activity.kind, activity.run_id, activity.round) == (ActivityKind.TRAINING, "run-1", 1)
        assert 1 < activity.step < activity.steps == 100_000
        charged = site.ledger.charges("original", "run-1")
        assert site.daemon.notice(site.notice(cancel_run=CancelRun())) == RunCalledOff("run-1", 1)
    assert refused(answers[0]) == ("FL-RUN-003", {})
    assert site.ledger.charges("original", "run-1") == charged  # in full, as of any work that broke off
    assert refused(site.train(1, attempt=1))[0] == "FL-RUN-003"
    assert site.daemon.activity().kind is ActivityKind.IDLE
    assert refused(site.train(1)) == ("FL-RUN-003", {})
    site.stop()
    site.start()
    assert refused(site.train(1)) == ("FL-RUN-003", {})
    assert AuditAction.RUN_STOPPED in site.recorded()


def test_a_resumed_run_goes_on_and_other_runs_never_stopped(site: Site) -> None:
    site.describe()
    site.daemon.notice(site.notice(attempt=2, cancel_run=CancelRun()))
    assert refused(site.train(1, attempt=1))[0] == "FL-RUN-003"
    assert refused(site.train(1, attempt=2))[0] == "FL-RUN-003"
    assert site.train(1, attempt=3).WhichOneof("result") == "local_update"
    site.daemon.notice(site.notice(attempt=1, cancel_run=CancelRun()))  # an old notice that comes again
    assert site.train(2, attempt=3).WhichOneof("result") == "local_update"
    assert site.describe(run_id="run-2").data_description.admitted


def test_what_was_called_off_is_charged_once_when_the_run_goes_on(tmp_path: Path) -> None:
    site = Site(tmp_path, make_task(8.0, steps=2_000))
    site.describe()
    with training(site) as answers:
        site.daemon.notice(site.notice(cancel_run=CancelRun()))
    assert refused(answers[0]) == ("FL-RUN-003", {})
    charged = site.ledger.charges("original", "run-1")
    assert site.train(1, attempt=2).WhichOneof("result") == "local_update"
    assert site.ledger.charges("original", "run-1") == charged


def test_a_daemon_that_is_ended_while_it_trains_charges_the_round_once(tmp_path: Path) -> None:
    """A restart of the site's services ends the work in hand, whatever its rows are."""
    site = Site(tmp_path, make_task(8.0, steps=2_000))
    site.describe()
    with training(site) as answers:
        assert site.daemon.end(0.0)
    assert refused(answers[0])[0] == "FL-PROC-001"
    charged = site.ledger.charges("original", "run-1")
    site.stop()
    site.start()
    assert site.train(1, attempt=2).WhichOneof("result") == "local_update"
    assert site.ledger.charges("original", "run-1") == charged


def test_a_cancel_before_the_description_holds(site: Site) -> None:
    site.daemon.notice(site.notice(cancel_run=CancelRun()))
    assert refused(site.describe()) == ("FL-RUN-003", {})


def test_new_authorities_are_handed_on_as_they_were_signed(site: Site) -> None:
    envelope = site.notice(run_id="", trust_authorities=TrustAuthorities(certificates=b"PEM"))
    taken = site.daemon.notice(envelope)
    assert isinstance(taken, AuthoritiesTrusted)
    assert taken.certificates == b"PEM"
    assert site.daemon.notice(envelope) == taken  # the hub repeats what was not acknowledged


def test_authorities_that_were_rolled_away_do_not_come_back(site: Site) -> None:
    old = site.notice(run_id="", expires_unix=NOW + 500, trust_authorities=TrustAuthorities(certificates=b"OLD"))
    new = site.notice(run_id="", expires_unix=NOW + 600, trust_authorities=TrustAuthorities(certificates=b"NEW"))
    site.daemon.notice(old)
    site.daemon.notice(new)
    with pytest.raises(EnvelopeRefused) as caught:
        site.daemon.notice(old)
    assert caught.value.fields["reason"] == "replayed"
    assert AuditAction.ENVELOPE_REFUSED in site.recorded()


BAD_NOTICES = [
    "a stranger's",
    "another site's",
    "expired",
    "without an expiry",
    "a question",
    "work",
    "nothing",
    "a cancel of no run",
    "no authority at all",
    "no envelope",
    "too long",
]


def _bad_notices(site: Site) -> dict[str, tuple[bytes, str]]:
    cancel = CancelRun()
    return {
        "a stranger's": (seal(site.instruction({}, cancel_run=cancel), STRANGER), "signature"),
        "another site's": (site.notice(site="south", cancel_run=cancel), "site"),
        "expired": (site.notice(expires_unix=NOW - 1, cancel_run=cancel), "expired"),
        "without an expiry": (site.notice(expires_unix=0, cancel_run=cancel), "expiry"),
        "a question": (site.notice(describe_data=DescribeData(task_document=site.task.canonical())), "work"),
        "work": (site.notice(train_locally=TrainLocally(rounds_planned=1)), "work"),
        "nothing": (site.notice(), "work"),
        "a cancel of no run": (site.notice(run_id="", cancel_run=cancel), "work"),
        "no authority at all": (site.notice(trust_authorities=TrustAuthorities()), "work"),
        "no envelope": (b"\xff" * 30, "format"),
        "too long": (bytes(2**20), "format"),
    }


@pytest.mark.parametrize("name", BAD_NOTICES)
def test_notices_that_are_refused_do_nothing(site: Site, name: str) -> None:
    site.describe()
    envelope, reason = _bad_notices(site)[name]
    with pytest.raises(EnvelopeRefused) as caught:
        site.daemon.notice(envelope)
    assert caught.value.fields["reason"] == reason
    assert site.train(1).WhichOneof("result") == "local_update"
    assert AuditAction.ENVELOPE_REFUSED in site.recorded()


def test_a_notice_of_another_age_is_refused_by_a_sentence(site: Site) -> None:
    with pytest.raises(VersionRefused, match="generation 9"):
        site.daemon.notice(site.notice(protocol=9, cancel_run=CancelRun()))


def test_a_notice_is_no_question(site: Site) -> None:
    site.describe()
    assert refused(site.ask({}, cancel_run=CancelRun())) == ("FL-TRUST-001", {"reason": "work"})
    assert site.train(1).WhichOneof("result") == "local_update"


# --- policy while the daemon runs, and its own audit log -------------------------------------------------------------


def test_a_pause_holds_from_the_next_question_and_ends_without_a_restart(site: Site) -> None:
    site.describe()
    first = site.train(1)
    person = SiteControls.of_folder("north", site.folder, SitePolicy, None)
    person.standing.pause(True)
    assert refused(site.train(1)) == ("FL-TRUST-006", {"rule": "paused"})  # not even what was answered before
    assert site.daemon.activity().kind is ActivityKind.PAUSED
    person.standing.pause(False)
    assert site.train(1).local_update == first.local_update
    assert site.daemon.activity().kind is ActivityKind.IDLE


def test_a_policy_that_is_tightened_holds_for_runs_that_have_begun(site: Site) -> None:
    site.describe()
    site.policy = SitePolicy(require_private=True)
    assert refused(site.train(1)) == ("FL-TRUST-006", {"rule": "require-private"})
    site.policy = SitePolicy(approval="each-run")
    assert refused(site.train(1)) == ("FL-TRUST-006", {"rule": "approval"})


def test_rounds_beyond_the_sites_bound_are_refused_whatever_the_task_says(site: Site) -> None:
    site.policy = SitePolicy(maximum_rounds=4)
    site.describe()
    assert site.train(4).WhichOneof("result") == "local_update"
    assert refused(site.train(5)) == ("FL-TRUST-006", {"rule": "maximum-rounds"})


def asked_with(site: Site, shift: float, number: int = 1) -> Answer:
    """A question to train from other weights."""
    moved = {
        name: np.asarray(array, np.float32) + np.float32(shift) for name, array in initial_arrays(site.task, 1).items()
    }
    arrays = {**moved, **Scaler.from_ranges(site.task.feature_schema).arrays()}
    return site.ask(arrays, round=number, train_locally=TrainLocally(rounds_planned=4))


MORE_ROUNDS = {
    "without a bound of the site's": SitePolicy(),
    "with a bound": SitePolicy(maximum_rounds=4),
    "approved by a person": SitePolicy(approval="each-run"),
}


@pytest.mark.parametrize("policy", MORE_ROUNDS.values(), ids=MORE_ROUNDS.keys())
def test_no_more_is_trained_for_a_run_than_its_rounds_and_a_few(tmp_path: Path, policy: SitePolicy) -> None:
    """Nothing is charged here that would run out."""
    site = Site(tmp_path, policy=policy)
    site.describe()
    if policy.approval == "each-run":
        site.daemon._controls.approvals.decide("run-1", approved=True, by="ada", now_unix=NOW)
        site.describe()
    first = asked_with(site, 0.0)
    for at in range(1, 7):
        assert asked_with(site, float(at)).WhichOneof("result") == "local_update"
        site.stop()
        site.start()  # the count outlives the process
    limit = ("FL-TRUST-006", {"rule": "maximum-rounds"})
    assert refused(asked_with(site, 7.0)) == limit
    assert refused(asked_with(site, 8.0, number=4)) == limit
    assert refused(asked_with(site, 0.0, number=999)) == limit
    assert asked_with(site, 0.0).local_update == first.local_update  # what was answered is answered again


def test_an_outbox_of_an_earlier_release_is_opened(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.describe()
    site.stop()
    with sqlite3.connect(tmp_path / "outbox.db") as connection:
        connection.executescript("ALTER TABLE run DROP COLUMN trained; DROP TABLE charged;")
    connection.close()
    site.start()
    assert site.train(1).WhichOneof("result") == "local_update"
    known = site.outbox.run("run-1")
    assert known is not None
    assert known.trained == 1


@pytest.mark.parametrize("every_run", [False, True], ids=["of the run", "of every run of the task"])
def test_an_approval_that_is_taken_back_ends_what_trains_at_its_next_step(tmp_path: Path, every_run: bool) -> None:
    site = Site(tmp_path, make_task(8.0, steps=100_000), policy=SitePolicy(approval="each-task"))
    person = SiteControls.of_folder("north", site.folder, SitePolicy, None).approvals
    site.describe()
    person.decide("run-1", approved=True, by="ada", now_unix=NOW, every_run_of_task=every_run)
    site.describe()
    with training(site) as answers:
        person.decide("run-1", approved=False, by="bob", now_unix=NOW, every_run_of_task=every_run)
    declined = ("FL-TRUST-006", {"rule": "declined"})
    assert refused(answers[0]) == declined
    assert refused(site.train(1)) == declined
    other = refused(site.describe(run_id="run-2"))[1]
    assert other == {"rule": "declined" if every_run else "approval"}
    person.decide("run-1", approved=True, by="ada", now_unix=NOW)
    charged = site.ledger.charges("original", "run-1")
    with training(site) as answers:
        assert site.daemon.activity().kind is ActivityKind.TRAINING
        site.daemon.notice(site.notice(cancel_run=CancelRun()))
    assert site.ledger.charges("original", "run-1") == charged  # it was ended from outside: charged once


def test_a_run_that_waits_is_accepted_when_it_is_asked_again_after_the_approval(site: Site) -> None:
    site.policy = SitePolicy(approval="each-run")
    before = site.ledger.head()
    assert refused(site.describe()) == ("FL-TRUST-006", {"rule": "approval"})
    assert site.ledger.head() == before  # nothing was opened, nothing charged
    person = SiteControls.of_folder("north", site.folder, SitePolicy, None).approvals
    assert person.state().waiting[0].signed_by == KEY.verifying.key_id
    person.decide("run-1", approved=True, by="ada", now_unix=NOW)
    assert site.describe().data_description.admitted
    site.stop()
    site.start()
    assert site.train(1).WhichOneof("result") == "local_update"


def test_what_was_refused_and_begun_is_in_the_sites_own_log(tmp_path: Path) -> None:
    site = Site(tmp_path, make_task(2.0))
    for _ in range(50):
        site.daemon.answer(Question(b"\xff" * 30, {}))
    site.describe()
    for number in range(1, 5):
        site.train(number)
    for _ in range(2):
        asked_with(site, 1.0, number=4)
    site.policy = SitePolicy(tasks=("elsewhere",))
    site.train(1)
    assert site.recorded() == [
        AuditAction.ENVELOPE_REFUSED,  # once, however often it came
        AuditAction.RUN_STARTED,
        AuditAction.BUDGET_REFUSED,
        AuditAction.POLICY_REFUSED,
    ]
    assert site.log.verify().head.sequence == 4


@pytest.mark.parametrize("purpose", ["care", ""])
def test_each_run_is_in_the_sites_log_with_its_purpose(tmp_path: Path, purpose: str) -> None:
    site = Site(tmp_path, make_task(2.0).model_copy(update={"purpose": Purpose(name=purpose) if purpose else None}))
    site.describe()
    (begun,) = [entry for entry in site.log.entries() if entry.action is AuditAction.RUN_STARTED]
    assert begun.details["purpose"] == purpose
    assert begun.details["task_digest"] == site.task.digest.hex()


# --- answers that were deleted ------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True], ids=["in the same process", "after a restart"])
def test_a_question_whose_answer_was_deleted_is_refused_and_neither_answered_nor_charged_anew(
    tmp_path: Path, restarted: bool
) -> None:
    site = Site(tmp_path, make_task(2.0))
    site.describe()
    site.train(1)
    before = site.head()
    assert site.outbox.forget(2**40) == 2
    if restarted:
        site.stop()
        site.start()
    for attempt in (1, 2):
        assert refused(site.train(1, attempt=attempt)) == ("FL-TRUST-001", {"reason": "replayed"})
        assert refused(site.describe(attempt=attempt)) == ("FL-TRUST-001", {"reason": "replayed"})
    assert site.head() == before
    assert site.train(2, attempt=2).WhichOneof("result") == "local_update"  # the run itself may go on
    assert site.head().sequence > before.sequence
