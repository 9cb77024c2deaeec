"""With whom a site sums securely: a list that its people compare, that names the site rightly, and whose changed keys are loud."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.onboarding.test_site_commands import actions, run, run_json

from fedloop_clients.consortium import AcceptedConsortium, Owner
from fedloop_clients.doctor.examine import examine
from fedloop_clients.doctor.finding import Level
from fedloop_clients.doctor.scene import Scene
from fedloop_clients.doctor.summing import ConsortiumCheck
from fedloop_clients.home import SiteHome
from fedloop_clients.joining import join
from fedloop_core.audit import AuditAction
from fedloop_core.errors import ConsortiumRefused, FedloopError, SettingsInvalid, StorageError, UsageError
from fedloop_core.keys import SigningKey
from fedloop_core.secure_aggregation.consortium import (
    ConsortiumDocument,
    consortium_fingerprint,
    key_fingerprint,
    read_consortium,
    written_consortium,
)

if TYPE_CHECKING:
    from tests.onboarding.conftest import Coordinator

TRUST = ConsortiumRefused.exit_status


def new_key() -> str:
    return SigningKey.generate().verifying.raw.hex()


def keys_with(home: SiteHome, *others: str) -> dict[str, str]:
    return {"north": home.identity().key} | {site: new_key() for site in others}


Listed = Callable[[dict[str, str]], Path]


@pytest.fixture
def listed(tmp_path: Path) -> Listed:
    def write(keys: dict[str, str]) -> Path:
        file = tmp_path / f"list-{len(list(tmp_path.glob('list-*')))}.toml"
        file.write_text(written_consortium(keys))
        return file

    return write


def test_a_person_compares_and_accepts(joined_home: SiteHome, listed: Listed) -> None:
    own = key_fingerprint(joined_home.signing_key().verifying)
    said = run("consortium", "show", home=joined_home)
    assert f"This site is north. Fingerprint of its key: {own}" in said
    assert "No consortium was accepted here" in said
    file = listed(keys_with(joined_home, "south", "west"))
    whole = consortium_fingerprint(read_consortium(file).consortium())
    said = run("consortium", "show", str(file), home=joined_home)
    assert f"north  {own}" in said
    assert f"Fingerprint of the whole: {whole}" in said
    refused = run("consortium", "accept", str(file), home=joined_home, given="n\n", expect=TRUST)
    assert "was not confirmed; nothing was accepted" in refused
    assert joined_home.consortium().consortium() is None
    said = run("consortium", "accept", str(file), home=joined_home, given="y\n")
    assert "Accepted. A sum takes 3 of these 3 sites or more (more than two thirds)" in said
    known = joined_home.consortium().consortium()
    assert known is not None
    assert sorted(known.keys) == ["north", "south", "west"]
    assert joined_home.consortium_file.stat().st_mode & 0o777 == 0o600
    assert "by operator:" in run("consortium", "show", home=joined_home)
    assert f"consortium   3 sites, {whole}" in run("status", home=joined_home)
    assert f"key          {own}" in run("status", home=joined_home)
    before = actions(joined_home)
    assert before[-1] is AuditAction.CONSORTIUM_ACCEPTED
    entry = list(joined_home.audit().entries())[-1]
    assert entry.details == {"fingerprint": whole, "sites": 3, "changed_keys": ""}
    assert "nothing was changed" in run("consortium", "remove", home=joined_home, given="n\n", expect=2)
    assert "of 3 sites is removed" in run("consortium", "remove", home=joined_home, given="y\n")
    assert joined_home.consortium().consortium() is None
    assert actions(joined_home) == [*before, AuditAction.CONSORTIUM_REMOVED]
    assert "nothing to remove" in run("consortium", "remove", home=joined_home)


def test_a_script_gives_the_fingerprint_or_says_yes(joined_home: SiteHome, listed: Listed) -> None:
    file = str(listed(keys_with(joined_home, "south", "west")))
    error = run_json("consortium", "accept", file, home=joined_home, expect=UsageError.exit_status)["error"]
    assert error["hint"] == "Give --fingerprint, or --yes."
    dry = run_json("consortium", "accept", file, "--dry-run", home=joined_home)
    assert (dry["dry_run"], dry["added"]) == (True, ["north", "south", "west"])
    whole = dry["fingerprint"]
    for wrong in ("AB12 " * 12, whole[:-1], whole.partition(" ")[0]):
        error = run_json("consortium", "accept", file, "--fingerprint", wrong, home=joined_home, expect=TRUST)["error"]
        assert error["fields"]["reason"] == "fingerprint"
    assert joined_home.consortium().consortium() is None
    told = run_json("consortium", "accept", file, "--fingerprint", whole.lower().replace(" ", "-"), home=joined_home)
    assert not told["dry_run"]
    shown = run_json("consortium", "show", home=joined_home)
    assert shown["fingerprint"] == whole
    assert [site["site"] for site in shown["sites"]] == ["north", "south", "west"]
    assert shown["key_fingerprint"] == shown["sites"][0]["fingerprint"]
    assert run_json("status", home=joined_home)["consortium"]["sites"] == 3
    error = run_json("consortium", "remove", home=joined_home, expect=UsageError.exit_status)["error"]
    assert error["hint"] == "Add --yes."
    assert run_json("consortium", "remove", "--yes", home=joined_home)["removed"] == ["north", "south", "west"]


def test_another_list_shows_what_changes(joined_home: SiteHome, listed: Listed) -> None:
    keys = keys_with(joined_home, "south", "west")
    run("consortium", "accept", str(listed(keys)), "--yes", home=joined_home)
    assert "It is what is accepted already." in run("consortium", "show", str(listed(keys)), home=joined_home)
    other = {"north": keys["north"], "south": keys["south"], "east": new_key()}
    said = run("consortium", "accept", str(listed(other)), "--yes", home=joined_home)
    assert "Site east comes." in said
    assert "Site west goes." in said
    known = joined_home.consortium().consortium()
    assert known is not None
    assert {site: key.raw.hex() for site, key in known.keys.items()} == other


@pytest.mark.parametrize("way", ["at once", "after it was left out", "after all was removed"])
def test_another_key_of_a_known_site_needs_a_word_of_its_own(joined_home: SiteHome, listed: Listed, way: str) -> None:
    keys = keys_with(joined_home, "south", "west", "east")
    run("consortium", "accept", str(listed(keys)), "--yes", home=joined_home)
    if way == "after it was left out":
        without = {site: key for site, key in keys.items() if site != "south"}
        run("consortium", "accept", str(listed(without)), "--yes", home=joined_home)
    if way == "after all was removed":
        run("consortium", "remove", "--yes", home=joined_home)
    before = joined_home.consortium().state()
    changed = str(listed(keys | {"south": new_key()}))
    assert "THE KEY OF SITE south IS ANOTHER" in run("consortium", "show", changed, home=joined_home)
    for words in (("--yes",), ("--dry-run",), ("--yes", "--new-key", "west")):
        said = run("consortium", "accept", changed, *words, home=joined_home, expect=TRUST)
        assert said.count("THE KEY OF SITE south IS ANOTHER") == 2  # told with the list, and as the refusal
        assert "add --new-key south" in said
    assert joined_home.consortium().state() == before
    said = run("consortium", "accept", changed, "--yes", "--new-key", "south", home=joined_home)
    assert "THE KEY OF SITE south IS ANOTHER" in said
    assert list(joined_home.audit().entries())[-1].details["changed_keys"] == "south"
    back = run("consortium", "accept", str(listed(keys)), "--yes", home=joined_home, expect=TRUST)
    assert "THE KEY OF SITE south IS ANOTHER" in back


def test_a_site_that_joined_anew_accepts_its_own_new_key(
    joined_home: SiteHome, listed: Listed, coordinator: Coordinator
) -> None:
    keys = keys_with(joined_home, "south", "west")
    old = str(listed(keys))
    run("consortium", "accept", old, "--yes", home=joined_home)
    join(coordinator.token(), joined_home, proxy="", confirm=lambda token: True, again=True)
    assert joined_home.identity().key != keys["north"]
    assert doctors_word(joined_home)[0][0] is Level.PROBLEM
    assert "another key for site north" in run("consortium", "accept", old, "--yes", home=joined_home, expect=TRUST)
    new = str(listed(keys | {"north": joined_home.identity().key}))
    assert "own key is a new one" in run("consortium", "accept", new, "--yes", home=joined_home)
    assert doctors_word(joined_home)[0][0] is Level.OK


@dataclass(frozen=True)
class BadList:
    """A list that is refused, and the words about it."""

    name: str
    text: Callable[[SiteHome], str]
    words: str


def _without_own(home: SiteHome) -> str:
    return written_consortium({site: new_key() for site in ("south", "west", "east")})


def _with_anothers_key(home: SiteHome) -> str:
    return written_consortium({site: new_key() for site in ("north", "south", "west")})


def _key_twice(home: SiteHome) -> str:
    text = written_consortium(keys_with(home, "south", "west"))
    lines = text.splitlines()
    return "\n".join([*lines[:-1], f"west = {lines[-2].partition(' = ')[2]}"]) + "\n"


def _five_hundred_and_one(home: SiteHome) -> str:
    return "format = 1\n[sites]\n" + "".join(f'site-{at} = "{at:064x}"\n' for at in range(501))


BAD = (
    BadList("S4 without this site", _without_own, "site north is not in this consortium itself."),
    BadList("S4 another key for this site", _with_anothers_key, "another key for site north than the site's own"),
    BadList("a key twice", _key_twice, "each site has one of its own"),
    BadList("two sites", lambda _: f'format = 1\n[sites]\na = "{new_key()}"\nb = "{new_key()}"\n', "at least 3"),
    BadList("more sites than a sum takes", _five_hundred_and_one, "at most 500"),
    BadList("no key", lambda _: 'format = 1\n[sites]\na = "x"\nb = "y"\nc = "z"\n', "must be a key"),
    BadList("a strange name", lambda _: f'format = 1\n[sites]\n"A B" = "{new_key()}"\n', "small letters"),
    BadList("a name twice", lambda _: f'format = 1\n[sites]\na = "{new_key()}"\na = "{new_key()}"\n', "is not TOML"),
    BadList("another format", lambda _: "format = 2\n[sites]\n", "format must be 1"),
    BadList("more keys than it should have", lambda _: "format = 1\ncoordinator = 1\n[sites]\n", "not a known key"),
    BadList("no TOML", lambda _: "hello", "is not TOML"),
    BadList("nothing", lambda _: "", "sites is missing"),
    BadList("too long", lambda _: "#" * 300_000, "longer than"),
)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_a_list_that_must_not_be_accepted(bad: BadList, joined_home: SiteHome, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(bad.text(joined_home))
    with pytest.raises((ConsortiumRefused, SettingsInvalid)) as raised:
        joined_home.consortium().accept(
            read_consortium(file), joined_home.identity(), new_keys=(), by="a test", now_unix=1
        )
    assert bad.words in raised.value.message + "".join(getattr(raised.value, "problems", ()))
    run("consortium", "accept", str(file), "--yes", home=joined_home, expect=raised.value.exit_status)
    assert joined_home.consortium().consortium() is None


def test_a_daemon_sees_each_change_and_refuses_a_damaged_list(tmp_path: Path) -> None:
    owner = Owner("north", new_key())
    path = tmp_path / "consortium.json"
    known, hand = AcceptedConsortium(path), AcceptedConsortium(path)  # the daemon's and a command's
    assert known.consortium() is None
    sites = {"north": owner.key, "south": new_key(), "west": new_key()}
    hand.accept(ConsortiumDocument(format=1, sites=sites), owner, new_keys=(), by="a test", now_unix=1)
    first = known.consortium()
    assert first is not None
    assert known.consortium() is first
    more = sites | {"east": new_key()}
    hand.accept(ConsortiumDocument(format=1, sites=more), owner, new_keys=(), by="a test", now_unix=2)
    second = known.consortium()
    assert second is not None
    assert sorted(second.keys) == sorted(more)
    content = path.read_bytes()
    for damaged in (b"hello", content.replace(b'"format": 1', b'"format": 2'), content.replace(b"former", b"formed")):
        path.write_bytes(damaged)
        with pytest.raises(StorageError):
            known.consortium()
    double = content.replace(more["west"].encode(), more["south"].encode())
    path.write_bytes(double)
    with pytest.raises(FedloopError, match="one key"):
        known.consortium()
    path.unlink()
    assert known.consortium() is None


def doctors_word(home: SiteHome) -> list[tuple[Level, str]]:
    found = examine(Scene(home), (ConsortiumCheck(),))
    return [(finding.level, finding.sentence) for _, finding in found]


def test_the_doctor_looks_at_the_list(joined_home: SiteHome, listed: Listed) -> None:
    assert doctors_word(joined_home) == []
    settings = joined_home.settings_file.read_text()
    joined_home.settings_file.write_text(settings.replace("paused = false", "require_secure_aggregation = true"))
    ((level, sentence),) = doctors_word(joined_home)
    assert (level, "every task is refused" in sentence) == (Level.PROBLEM, True)
    run("consortium", "accept", str(listed(keys_with(joined_home, "south", "west"))), "--yes", home=joined_home)
    ((level, sentence),) = doctors_word(joined_home)
    assert (level, "3 sites; its fingerprint is" in sentence) == (Level.OK, True)
    assert "takes 3 of these 3 sites or more" in sentence
    assert "up to 1 other site that works with it" in sentence
    joined_home.settings_file.write_text(settings.replace("paused = false", "minimum_sites = 4"))
    ((level, sentence),) = doctors_word(joined_home)
    assert (level, "no secure sum can take place" in sentence) == (Level.PROBLEM, True)
