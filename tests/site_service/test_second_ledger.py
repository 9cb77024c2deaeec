"""A second installation on the same rows has a second ledger: it is refused, or known to people, or noticed by the coordinator."""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedloop_clients.data.claim import claim_file, claim_rows, find_claim
from fedloop_clients.doctor.data import DataCheck
from fedloop_clients.endpoint import Question
from fedloop_clients.home import SiteHome
from fedloop_clients.service.home_daemon import HomeDaemon
from fedloop_core.errors import DataClaimed, DiskFull
from fedloop_core.federation.answers import open_answer
from fedloop_core.task.document import Task
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, LogHead

Make = Callable[..., SiteHome]


@pytest.fixture
def at(coordinator: Any, home: SiteHome) -> Make:
    """Another home over the rows of ``home``, or over what ``file`` names."""

    def make(name: str, *, site: str = "north", file: Path | None = None, second_ledger: bool = False) -> SiteHome:
        made: SiteHome = coordinator.home("127.0.0.1:1", name)
        made.store_membership(made.membership().model_copy(update={"site": site}))
        text = made.settings_file.read_text().replace('site = "north"', f'site = "{site}"')
        known = "\nsecond_ledger = true" if second_ledger else ""
        text = text.replace('file = "data.csv"', f'file = "{file or home.folder / "data.csv"}"{known}')
        made.settings_file.write_text(text)
        return made

    return make


def asked(coordinator: Any, home: SiteHome, task: Task, **parts: Any) -> Answer:
    site = home.membership().site
    envelope = coordinator.describe(task, **({"site": site} | parts))
    return open_answer(HomeDaemon(home).answer(Question(envelope, {})).answer, home.signing_key().verifying, site=site)


def test_the_first_ledger_marks_the_file_and_keeps_it(coordinator: Any, home: SiteHome, task: Task) -> None:
    assert asked(coordinator, home, task).data_description.admitted
    mark = claim_file(home.data_file)
    told = json.loads(mark.read_text())
    assert (told["site"], told["home"]) == ("north", str(home.folder))
    assert home.fingerprint_secret().hex() not in mark.read_text()
    assert stat.S_IMODE(mark.stat().st_mode) == 0o644
    assert sorted(path.name for path in home.folder.glob("*data.csv*")) == ["data.csv", mark.name]
    before = mark.read_bytes()
    new = home.folder / "new.csv"
    new.write_bytes(home.data_file.read_bytes())
    new.replace(home.data_file)  # as an export does
    assert asked(coordinator, home, task, run_id="run-2").data_description.admitted
    assert mark.read_bytes() == before


def linked(home: SiteHome) -> Path:
    link = home.folder.parent / "link.csv"
    link.symlink_to(home.data_file)
    return link


SECOND: dict[str, Callable[[SiteHome], Path | None]] = {"by its path": lambda _: None, "by a link": linked}


@pytest.mark.parametrize("way", SECOND.values(), ids=SECOND.keys())
def test_a_second_installation_is_refused_by_name_and_charges_nothing(
    coordinator: Any, home: SiteHome, at: Make, task: Task, way: Callable[[SiteHome], Path | None]
) -> None:
    asked(coordinator, home, task)
    second = at("second", site="south", file=way(home))
    answer = asked(coordinator, second, task)
    assert (answer.refusal.code, dict(answer.refusal.fields)) == ("FL-PRIV-005", {})  # where the first is stays here
    assert second.ledger().head().sequence == 0
    with pytest.raises(DataClaimed, match=f"site north in {home.folder}") as caught:
        claim_rows(second)
    assert str(claim_file(home.data_file)) in caught.value.hint


def test_a_copy_of_a_home_that_joined_under_another_name_is_refused(home: SiteHome, at: Make, tmp_path: Path) -> None:
    claim_rows(home)
    copy = SiteHome(tmp_path / "copy")
    shutil.copytree(home.folder, copy.folder, ignore=shutil.ignore_patterns("*.sock"))
    copy.settings_file.write_text(
        copy.settings_file.read_text().replace('file = "data.csv"', f'file = "{home.data_file}"')
    )
    claim_rows(copy)  # the same site moved; two that are in use at once show in the coordinator's memory of its ledger
    copy.store_membership(copy.membership().model_copy(update={"site": "south"}))
    with pytest.raises(DataClaimed):
        claim_rows(copy)


def test_two_ledgers_of_one_site_are_stopped_by_what_the_coordinator_has_seen(
    coordinator: Any, home: SiteHome, task: Task, tmp_path: Path
) -> None:
    """Also on another machine, where no mark is seen: each answer shows the ledger's newest entry."""
    copy = SiteHome(tmp_path / "copy")
    shutil.copytree(home.folder, copy.folder, ignore=shutil.ignore_patterns("*.sock"))
    seen = asked(coordinator, home, task).ledger
    assert seen.sequence > 0
    ahead = asked(coordinator, copy, task, ledger_seen=LogHead(sequence=seen.sequence, digest=seen.digest))
    assert ahead.refusal.code == "FL-PRIV-003"


def test_people_may_know_of_both(coordinator: Any, home: SiteHome, at: Make, task: Task, caplog: Any) -> None:
    asked(coordinator, home, task)
    second = at("second", site="south", second_ledger=True)
    assert asked(coordinator, second, task).data_description.admitted
    assert "a second ledger would give the same people their budget twice" in caplog.text
    assert find_claim(home).own  # the first keeps the mark


@pytest.mark.parametrize("content", ["", "{}", "not json"])
def test_a_mark_that_cannot_be_read_may_be_anybodys(home: SiteHome, content: str) -> None:
    claim_file(home.data_file).write_text(content)
    with pytest.raises(DataClaimed, match="cannot be read"):
        claim_rows(home)
    claim_file(home.data_file).unlink()  # what the advice says
    claim_rows(home)
    assert find_claim(home).own


def test_of_two_that_come_at_once_one_holds_the_file(home: SiteHome, at: Make) -> None:
    homes = [home, *(at(f"other-{n}", site=f"other-{n}") for n in range(4))]
    refused: list[str] = []

    def claim(one: SiteHome) -> None:
        try:
            claim_rows(one)
        except DataClaimed:
            refused.append(one.membership().site)

    threads = [threading.Thread(target=claim, args=(one,)) for one in homes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 4
    assert [one.membership().site for one in homes if find_claim(one).own] == sorted(
        {one.membership().site for one in homes} - set(refused)
    )


def test_a_folder_that_is_closed_is_left_as_it_is_with_a_warning(
    home: SiteHome, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def closed(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "link", closed)
    claim_rows(home)
    assert "no second ledger on these rows would be noticed" in caplog.text
    assert [path.name for path in home.folder.glob("*data.csv*")] == ["data.csv"]


def test_a_full_disk_is_said(home: SiteHome, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull):
        claim_rows(home)


def test_the_doctor_names_the_other_ledger(home: SiteHome, at: Make) -> None:
    claim_rows(home)

    def told(one: SiteHome) -> list[tuple[str, str]]:
        class Looked:
            task = None
            home = one

            def settings(self) -> object:
                return one.settings

        looked: Any = Looked()
        return [(str(finding.level), finding.sentence) for finding in DataCheck().look(looked)]

    assert all("charged" not in sentence for _, sentence in told(home))
    assert ("problem", f"{home.data_file} is charged to the ledger of site north in {home.folder} too.") in told(
        at("second", site="south")
    )
    assert any(level == "warning" for level, _ in told(at("third", site="east", second_ledger=True)))
