"""Secure aggregation at a deployed site: with whom, by the word of its people, while the daemon runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.site_service.test_home_daemon import Site, refused, rewrite

from fedloop_clients.consortium import AcceptedConsortium
from fedloop_clients.home import SiteHome
from fedloop_core.keys import SigningKey
from fedloop_core.secure_aggregation.consortium import ConsortiumDocument
from fedloop_core.task.aggregation import Mean
from fedloop_core.task.document import Task

REFUSED = ("FL-TRUST-006", {"rule": "consortium"})


@pytest.fixture
def site(coordinator: Any, home: SiteHome) -> Site:
    return Site(coordinator, home)


@pytest.fixture
def masked(task: Task) -> Task:
    return task.model_copy(update={"aggregation": Mean(secure=True)})


def new_key() -> str:
    return SigningKey.generate().verifying.raw.hex()


def accept(home: SiteHome, *others: str) -> None:
    """As a command in another process does."""
    sites = {"north": home.identity().key} | {name: new_key() for name in others}
    hand = AcceptedConsortium(home.consortium_file)
    hand.accept(ConsortiumDocument(format=1, sites=sites), home.identity(), new_keys=others, by="a test", now_unix=1)


def test_an_accepted_consortium_holds_at_once_and_so_does_its_end(site: Site, masked: Task) -> None:
    assert refused(site.describe(masked)) == REFUSED
    accept(site.home, "south", "west")
    assert site.describe(masked, run_id="run-2").data_description.admitted
    answer = site.train(masked, 1, run_id="run-2")
    assert answer.WhichOneof("result") == "local_update"
    AcceptedConsortium(site.home.consortium_file).remove()
    assert refused(site.train(masked, 2, run_id="run-2")) == REFUSED
    charged = site.home.ledger().head().sequence
    assert refused(site.train(masked, 3, run_id="run-2")) == REFUSED
    assert site.home.ledger().head().sequence == charged


@dataclass(frozen=True)
class Wrong:
    """What keeps a deployed site from a secure sum, and the words in its own log."""

    name: str
    make: Callable[[SiteHome], None]
    words: str


def _too_few(home: SiteHome) -> None:
    accept(home, "south", "west")
    rewrite(home.settings_file, home.settings_file.read_text() + "minimum_sites = 4\n")


def _own_key_replaced(home: SiteHome) -> None:
    accept(home, "south", "west")
    content = home.consortium_file.read_text()
    home.consortium_file.write_text(content.replace(home.identity().key, new_key()))


def _left_out(home: SiteHome) -> None:
    accept(home, "south", "west")
    content = home.consortium_file.read_text()
    home.consortium_file.write_text(content.replace('"north"', '"east"'))


WRONG = (
    Wrong("nothing accepted", lambda home: None, "knows no consortium"),
    Wrong("S4 fewer sites than the site asks for", _too_few, "has 3 sites, and each sum needs 4"),
    Wrong("S4 its own key exchanged", _own_key_replaced, "has not this site's own key"),
    Wrong("S4 itself left out", _left_out, "has not this site's own key"),
)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_site_takes_no_part_before_anything_is_charged(
    wrong: Wrong, site: Site, masked: Task, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    wrong.make(site.home)
    assert refused(site.describe(masked)) == REFUSED
    assert wrong.words in caplog.text
    assert site.describe(task, run_id="run-2").data_description.admitted  # updates one by one are another question


def test_a_task_that_asks_for_more_sites_than_are_known_is_refused(site: Site, task: Task) -> None:
    accept(site.home, "south", "west")
    more = task.model_copy(update={"aggregation": Mean(secure=True, minimum_sites=4)})
    assert refused(site.describe(more)) == REFUSED


@pytest.mark.parametrize(
    ("said", "allowed"), [("", False), ("minimum_sites = 3\n", True), ("minimum_sites = 4\n", False)]
)
def test_a_task_that_asks_too_few_sites_a_round_is_refused_before_anything_is_charged(
    said: str, allowed: bool, site: Site, masked: Task, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nobody has said a number, it is more than two thirds of the consortium."""
    accept(site.home, "south", "west", "east", "upper", "lower")
    rewrite(site.home.settings_file, site.home.settings_file.read_text() + said)
    three = masked.model_copy(update={"rounds": masked.rounds.model_copy(update={"sites_per_round": 3})})
    answer = site.describe(three)
    if allowed:
        assert answer.data_description.admitted
        return
    assert refused(answer) == REFUSED
    assert "asks 3 sites a round, and each sum that this site is in needs" in caplog.text


def test_a_damaged_list_is_a_refusal_without_what_it_holds(site: Site, masked: Task, task: Task) -> None:
    accept(site.home, "south", "west")
    site.home.consortium_file.write_text('{"sites": {"south": "secret"}}')
    answer = site.describe(masked)
    assert refused(answer)[0] == "FL-STORE-001"
    assert b"secret" not in answer.SerializeToString()
    assert site.describe(task, run_id="run-2").data_description.admitted


def test_a_site_that_gives_masked_updates_only_refuses_other_tasks(site: Site, masked: Task, task: Task) -> None:
    accept(site.home, "south", "west")
    assert site.describe(task).data_description.admitted
    rewrite(site.home.settings_file, site.home.settings_file.read_text() + "require_secure_aggregation = true\n")
    assert refused(site.train(task, 1)) == ("FL-TRUST-006", {"rule": "require-secure-aggregation"})
    assert site.describe(masked, run_id="run-2").data_description.admitted
