"""The daemon of a home: rows from a file, rules from site.toml, and refusals where there can be no daemon yet."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedloop_clients.activity import ActivityKind
from fedloop_clients.endpoint import Question
from fedloop_clients.home import SiteHome
from fedloop_clients.service.home_daemon import HomeDaemon
from fedloop_core.errors import NotSetUp, StorageError
from fedloop_core.task.document import Task
from fedloop_proto.coordination.v1.coordination_pb2 import Answer


class Site:
    """A home's daemon and the coordinator's side of the talk with it."""

    def __init__(self, coordinator: Any, home: SiteHome) -> None:
        self.coordinator = coordinator
        self.home = home
        self.daemon = HomeDaemon(home)

    def describe(self, task: Task, **parts: Any) -> Answer:
        return self._ask(self.coordinator.describe(task, **parts), {})

    def train(self, task: Task, number: int, **parts: Any) -> Answer:
        return self._ask(*self.coordinator.train(task, number, **parts))

    def _ask(self, envelope: bytes, arrays: Any) -> Answer:
        answer: Answer = self.coordinator.open(self.home, self.daemon.answer(Question(envelope, arrays)).answer)
        return answer


@pytest.fixture
def site(coordinator: Any, home: SiteHome) -> Site:
    return Site(coordinator, home)


def rewrite(path: Path, text: str) -> None:
    """Writes a file so that its time of change differs, whatever the disk's clock."""
    path.write_text(text)
    later = time.time_ns() + 5_000_000_000
    os.utime(path, ns=(later, later))


def refused(answer: Answer) -> tuple[str, dict[str, str]]:
    assert answer.WhichOneof("result") == "refusal", answer
    return answer.refusal.code, dict(answer.refusal.fields)


def test_rows_are_read_when_a_task_is_described_and_again_between_runs(
    site: Site, task: Task, rows: Callable[[Path, int], None]
) -> None:
    assert site.describe(task).data_description.rows in range(70, 111)
    first = site.describe(task).data_description
    rows(site.home.folder / "data.csv", 400)
    assert site.train(task, 1).WhichOneof("result") == "local_update"
    assert site.describe(task, round=9).data_description.rows == first.rows  # the run keeps its rows
    again = site.describe(task, run_id="run-2").data_description
    assert again.rows in range(260, 341)
    assert again.data_fingerprint != first.data_fingerprint


def test_a_policy_in_site_toml_holds_as_soon_as_it_is_written(site: Site, task: Task) -> None:
    settings = site.home.settings_file
    text = settings.read_text()
    site.describe(task)
    rewrite(settings, text + "paused = true\n")
    assert refused(site.train(task, 1)) == ("FL-TRUST-006", {"rule": "paused"})
    assert site.daemon.activity().kind is ActivityKind.PAUSED
    rewrite(settings, text)
    assert site.train(task, 1).WhichOneof("result") == "local_update"


def test_settings_with_mistakes_refuse_everything_until_they_are_corrected(
    site: Site, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    settings = site.home.settings_file
    text = settings.read_text()
    site.describe(task)
    rewrite(settings, text + "require_privat = true\n")
    assert refused(site.train(task, 1)) == ("FL-TRUST-006", {"rule": "settings"})
    assert "require_privat" in caplog.text
    rewrite(settings, text + "require_private = true\n")
    assert refused(site.train(task, 1)) == ("FL-TRUST-006", {"rule": "require-private"})


def test_a_home_that_has_not_joined_is_no_site(tmp_path: Path) -> None:
    with pytest.raises(NotSetUp, match="joined"):
        HomeDaemon(SiteHome(tmp_path))


def test_a_home_whose_ledger_cannot_be_opened_refuses_and_recovers_by_itself(site: Site, task: Task) -> None:
    site.home.ledger_file.mkdir()
    assert refused(site.describe(task)) == ("FL-STORE-001", {})
    activity = site.daemon.activity()
    assert (activity.kind, activity.code) == (ActivityKind.STOPPED, "FL-STORE-001")
    site.home.ledger_file.rmdir()
    assert site.describe(task).data_description.admitted
    assert site.daemon.activity().kind is ActivityKind.IDLE


def test_settings_of_another_site_are_noticed(site: Site, task: Task) -> None:
    settings = site.home.settings_file
    text = settings.read_text()
    rewrite(settings, text.replace('"north"', '"south"'))
    assert refused(site.describe(task))[0] == "FL-SET-001"
    rewrite(settings, text)
    assert site.describe(task).data_description.admitted


def test_a_missing_data_file_is_a_refusal_without_its_path(site: Site, task: Task) -> None:
    (site.home.folder / "data.csv").unlink()
    answer = site.describe(task)
    assert refused(answer)[0] == "FL-DATA-001"
    assert b"data.csv" not in answer.SerializeToString()


def test_a_full_disk_makes_refusals_and_no_crash(site: Site, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise StorageError("cannot write: No space left on device.")

    site.describe(task)
    with monkeypatch.context() as patch:
        patch.setattr("fedloop_clients.outbox.Outbox.store", full)
        assert refused(site.train(task, 1)) == ("FL-STORE-001", {})
        patch.setattr("fedloop_clients.privacy.ledger.Ledger.head", full)
        assert refused(site.train(task, 1)) == ("FL-STORE-001", {})
    assert site.train(task, 1).WhichOneof("result") == "local_update"


def test_the_end_closes_the_files_and_the_next_process_goes_on(site: Site, coordinator: Any, task: Task) -> None:
    site.describe(task)
    first = site.train(task, 1)
    site.daemon.end(5.0)
    again = Site(coordinator, site.home)
    assert again.train(task, 1).local_update == first.local_update
