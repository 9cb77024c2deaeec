"""What a site deletes by age: at its time, for good, told to people, and nothing else."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sqlite3
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloop_clients.feedback.store import forget_in, held_in
from fedloop_clients.home import Membership, SiteHome
from fedloop_clients.outbox import KeptAnswers, KeptResult, Outbox
from fedloop_clients.retention import delete_due, held_stores, site_stores
from fedloop_clients.retention.stores import goes_unix, is_due_before
from fedloop_clients.service.home_daemon import HomeDaemon
from fedloop_clients.service.retaining import Retaining
from fedloop_clients.settings import RetentionSettings, parse_site_settings
from fedloop_core.audit import AuditAction
from fedloop_core.cli import main
from fedloop_core.errors import EnvelopeRefused, SettingsInvalid, UsageError
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.keys import SigningKey
from fedloop_core.processes.logs import LogFile, ProcessLog, log_files, outdated

DAY = 86_400
NOW = 1_800_000_000
PLANTED = b"planted-update-" * 400  # longer than a page
SETTINGS = """\
format = 1
site = "north"
[data]
file = "rows.csv"
[budget]
training = { epsilon = 10.0 }
evaluation = { epsilon = 10.0 }
"""


class Clock:
    def __init__(self, unix: int = NOW) -> None:
        self.unix = unix

    def __call__(self) -> int:
        return self.unix

    def pass_days(self, days: float) -> None:
        self.unix += int(days * DAY)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def home(tmp_path: Path) -> SiteHome:
    site = SiteHome(tmp_path / "north")
    site.prepare()
    key = SigningKey.load_or_create(site.signing_key_file).verifying.raw.hex()
    site.store_membership(
        Membership(
            site="north", coordinator_key=key, fleet_address="a:1", hub_address="a:2", protocol=PROTOCOL, joined_unix=1
        )
    )
    site.fingerprint_secret_file.write_bytes(bytes(range(32)))
    site.settings_file.write_text(SETTINGS)
    return site


def reply(at: int = 0) -> KeptResult:
    values = np.frombuffer(PLANTED[: 8 * (len(PLANTED) // 8)], np.float64)
    return KeptResult(b"answer %d " % at + PLANTED, {"w": values})


def said(*words: str, home: SiteHome, expect: int = 0) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), pytest.raises(SystemExit) as ended:
        main(["site", *words, "--home", str(home.folder)])
    assert ended.value.code == expect, out.getvalue()
    return out.getvalue()


def on_disk(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))


# --- the outbox ----------------------------------------------------------------------------------------------------


def test_answers_go_when_they_are_as_old_as_allowed_and_leave_nothing_in_the_file(tmp_path: Path, clock: Clock) -> None:
    outbox = Outbox(tmp_path / "outbox.db", clock=clock)
    outbox.store(b"old", reply())
    clock.pass_days(20)
    outbox.store(b"new", KeptResult(b"new answer", {}))
    assert outbox.kept() == KeptAnswers(2, len(reply().answer) + 6000 + len("new answer"), NOW)
    clock.pass_days(10)
    assert outbox.forget(is_due_before(30, clock())) == 0  # on the day itself it is still there
    assert b"planted-update" in on_disk(tmp_path / "outbox.db")
    clock.pass_days(1)
    assert outbox.forget(is_due_before(30, clock())) == 1
    assert b"planted-update" not in on_disk(tmp_path / "outbox.db")  # neither in the file nor in its log
    with pytest.raises(EnvelopeRefused, match="no longer kept"):
        outbox.find(b"old")
    kept = outbox.find(b"new")
    assert kept is not None
    assert kept.answer == b"new answer"
    assert outbox.forget(is_due_before(30, clock())) == 0
    outbox.close()


def test_what_makes_room_is_overwritten_too(tmp_path: Path, clock: Clock) -> None:
    outbox = Outbox(tmp_path / "outbox.db", keep_answers=1, clock=clock)
    outbox.store(b"old", reply())
    outbox.store(b"new", KeptResult(b"new answer", {}))
    outbox.close()  # which takes the log into the file
    assert b"planted-update" not in on_disk(tmp_path / "outbox.db")


MOMENTS = {
    "a file of an earlier release": 0,
    "kept while the clock was ahead": NOW + 400 * DAY,
}


@pytest.mark.parametrize("written", MOMENTS.values(), ids=MOMENTS.keys())
def test_an_answer_whose_age_is_not_known_is_kept_for_the_whole_time_and_no_longer(
    tmp_path: Path, clock: Clock, written: int
) -> None:
    outbox = Outbox(tmp_path / "outbox.db", clock=clock)
    outbox.store(b"a", reply())
    with contextlib.closing(sqlite3.connect(tmp_path / "outbox.db", isolation_level=None)) as other:
        other.execute("UPDATE answer SET kept_unix = ?", (written,))
    assert outbox.forget(is_due_before(30, clock())) == 0
    clock.pass_days(30)
    assert outbox.forget(is_due_before(30, clock())) == 0
    clock.pass_days(0.1)
    assert outbox.forget(is_due_before(30, clock())) == 1


def test_room_is_counted_rightly_after_a_deletion_by_another_process(tmp_path: Path, clock: Clock) -> None:
    outbox, command = (Outbox(tmp_path / "outbox.db", keep_answers=2, clock=clock) for _ in range(2))
    for at in range(2):
        outbox.store(bytes([at]), reply(at))
    clock.pass_days(40)
    command.close()
    command = Outbox(tmp_path / "outbox.db", clock=clock)
    assert command.forget(is_due_before(30, clock())) == 2
    for at in (2, 3):
        outbox.store(bytes([at]), reply(at))
    assert [outbox.find(bytes([at])) is not None for at in (2, 3)] == [True, True]
    assert outbox.forget(is_due_before(30, clock())) == 0


@given(days=st.integers(1, 3650), oldest=st.integers(1, 2**40), later=st.integers(0, 2**40))
def test_something_is_due_just_when_its_store_says(days: int, oldest: int, later: int) -> None:
    goes = goes_unix(oldest, days)
    assert goes is not None
    assert (goes < oldest + later) is (oldest < is_due_before(days, oldest + later))


# --- the daemon and the commands ---------------------------------------------------------------------------------------


def fill(home: SiteHome, clock: Clock) -> None:
    outbox = Outbox(home.outbox_file, clock=clock)
    outbox.store(b"old", reply())
    outbox.close()


def test_the_daemon_deletes_each_hour_by_the_settings_of_now_and_says_so(home: SiteHome) -> None:
    start = Clock(int(time.time()))
    fill(home, start)
    daemon = HomeDaemon(home)
    retaining = Retaining(daemon, start)
    try:
        assert retaining.once() == 3600
        assert home.audit().head().sequence == 0  # nothing was due
        home.settings_file.write_text(SETTINGS + "[retention]\noutbox_days = 3\n")
        start.pass_days(3.1)
        retaining.once()
        (entry,) = home.audit().entries()
        assert (entry.action, entry.actor, entry.subject) == (AuditAction.DATA_DELETED, "site:north", "outbox")
        assert entry.details == {"items": 1, "days": 3}
        retaining.once()
        assert home.audit().head().sequence == 1
        home.settings_file.write_text("format = 2\n")
        with pytest.raises(SettingsInvalid):  # and nothing is deleted by a limit that nobody wrote
            retaining.once()
    finally:
        daemon.end(1.0)


def test_a_person_sees_what_is_held_and_when_it_goes(home: SiteHome) -> None:
    fill(home, Clock(int(time.time()) - 10 * DAY))
    told = {held["store"]["name"]: held for held in json.loads(said("retention", "--json", home=home))["stores"]}
    outbox = told["outbox"]
    assert (outbox["items"], outbox["store"]["days"], outbox["due"]) == (1, 30, False)
    assert outbox["goes_unix"] - outbox["oldest_unix"] == 30 * DAY
    assert told["ledger"]["goes_unix"] is None
    shown = said("retention", home=home)
    assert "kept 30 days after each was made" in shown
    assert "stays: all of it: a charge that is forgotten could be spent again" in shown
    assert json.loads(said("retention", "--delete", "--dry-run", "--json", home=home)) == {
        "due": [],
        "deleted": [],
        "dry_run": True,
    }
    assert "Nothing is due." in said("retention", "--delete", home=home)
    assert "retention    outbox: 30 days, the oldest goes" in said("status", home=home)


def test_deleting_by_hand_says_first_what_would_go(home: SiteHome) -> None:
    fill(home, Clock(int(time.time()) - 40 * DAY))
    assert "now" in said("retention", home=home)
    assert "Due: outbox, of " in said("retention", "--delete", "--dry-run", home=home)
    assert home.outbox().kept().answers == 1
    assert "outbox: 1 items of more than 30 days were deleted." in said("retention", "--delete", home=home)
    assert home.outbox().kept().answers == 0
    assert [entry.action for entry in home.audit().entries()] == [AuditAction.DATA_DELETED]
    assert "belongs to --delete" in said("retention", "--dry-run", home=home, expect=UsageError.exit_status)


def test_every_store_of_a_home_is_named(home: SiteHome) -> None:
    """A file that a site writes and no store names would be kept by nobody's decision."""
    places = " ".join(store.place for store in site_stores(RetentionSettings()))
    for path in (
        home.ledger_file,
        home.outbox_file,
        home.feedback_file,
        home.audit_file,
        home.approvals_file,
        home.erased_file,
    ):
        assert path.name in places
    assert all(store.stays and store.deleted_by and store.kept for store in site_stores(RetentionSettings()))
    assert len(held_stores(home)) == len(site_stores(RetentionSettings()))


WRONG = {
    "no day": "outbox_days = 0",
    "half a day": "outbox_days = 0.5",
    "for ever": "outbox_days = inf",
    "eleven years": "outbox_days = 4000",
    "logs that nobody could read": "log_days = 1",
    "a store that has no limit": "ledger_days = 30",
}


@pytest.mark.parametrize("line", WRONG.values(), ids=WRONG.keys())
def test_limits_that_mean_nothing_are_refused(line: str) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        parse_site_settings(f"{SETTINGS}[retention]\n{line}\n")
    (problem,) = caught.value.problems
    assert "retention" in problem


# --- examples from devices ------------------------------------------------------------------------------------------


def feedback(home: SiteHome, *observed: int) -> None:
    held_in(home.feedback_file)
    with contextlib.closing(sqlite3.connect(home.feedback_file, isolation_level=None)) as connection:
        for number, unix in enumerate(observed):
            connection.execute(
                "INSERT INTO example (device_id, queue_id, sequence, task, version, predicted, label, unit, observed_unix, inputs,"
                " admitted) VALUES ('d', 'q', ?, 't', 1, 'no', 'yes', 'planted-person', ?, ?, 0)",
                (number, unix, PLANTED),
            )


def test_a_site_may_be_stricter_with_examples_than_the_task(home: SiteHome, clock: Clock) -> None:
    feedback(home, NOW - 8 * DAY, NOW - 6 * DAY)
    outbox = home.outbox()
    assert delete_due(home, outbox, NOW, actor="a") == ()  # no limit of the site's own
    home.settings_file.write_text(SETTINGS + "[retention]\nfeedback_days = 7\n")
    (deleted,) = delete_due(home, outbox, NOW, actor="a")
    assert (deleted.store, deleted.items) == ("feedback", 1)
    assert held_in(home.feedback_file).oldest_unix == NOW - 6 * DAY
    assert forget_in(home.feedback_file, NOW) == 1
    for trace in (b"planted-update", b"planted-person"):
        assert trace not in on_disk(home.feedback_file)
    outbox.close()


# --- logs ---------------------------------------------------------------------------------------------------------------


def stamped(unix: float, text: str) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(unix)) + f".000Z {text}\n"


def test_old_log_files_go_and_the_current_one_is_put_aside_in_time(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    log = ProcessLog(folder / "a.log")
    (folder / "a.log.1").write_text(stamped(NOW - 60 * DAY, "old"))
    os.utime(folder / "a.log.1", (NOW - 50 * DAY, NOW - 50 * DAY))
    (folder / "a.log.2").write_text(stamped(NOW - 50 * DAY, "younger"))
    os.utime(folder / "a.log.2", (NOW - 40 * DAY, NOW - 40 * DAY))
    (folder / "a.log").write_text(stamped(NOW - 46 * DAY, "first"))
    other = ProcessLog(folder / "ab.log")
    assert log.forget(90 * DAY, NOW) == 1
    log.feed(b"after\n")
    assert {path.name for path in folder.iterdir()} >= {"a.log", "a.log.1", "ab.log"}
    assert "first" not in (folder / "a.log").read_text()
    assert "after" in (folder / "a.log").read_text()
    assert not any("old" in path.read_text() for path in folder.iterdir())
    assert [file.path.name for file in log_files(folder, "ab")] == ["ab.log"]
    log.close()
    other.close()


@given(
    written=st.lists(st.integers(0, 400), min_size=1, max_size=60),
    keep=st.integers(2, 90),
    looks=st.integers(0, 3),
)
def test_no_line_of_a_log_becomes_older_than_allowed(written: list[int], keep: int, looks: int) -> None:
    """A model of the files, looked at once a day; ``looks`` days may be missed."""
    lines, current = sorted(written), list[int]()
    files = list[list[int]]()
    for day in range(401 + 2 * keep):
        current += [line for line in lines if line == day]
        if day % (looks + 1):
            continue
        shown = [LogFile(Path(str(at)), part[0], part[-1], len(part), False) for at, part in enumerate(files)]
        shown += [LogFile(Path("now"), current[0], current[-1], len(current), True)] if current else []
        gone, aside = outdated(shown, keep, day)
        files = [part for at, part in enumerate(files) if str(at) not in {str(file.path) for file in gone}]
        if aside:
            files, current = [*files, current], []
        left: list[int] = [line for part in files for line in part] + current
        assert all(day - line <= keep + 2 * (looks + 1) for line in left)
