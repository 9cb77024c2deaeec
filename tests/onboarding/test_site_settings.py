"""site.toml: the file to begin with is right, and each mistake is named with file, line and key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedloop_clients.home import Membership, SiteHome
from fedloop_clients.policy_words import policy_words
from fedloop_clients.service.rules import WatchedPolicy
from fedloop_clients.settings import load_settings, parse_site_settings, starter_text
from fedloop_core.errors import NotSetUp, SettingsInvalid

STARTER = starter_text("north", "")


def test_the_file_to_begin_with_is_right() -> None:
    settings = parse_site_settings(starter_text("north", 'http://user:p"w@proxy:3128'))
    assert (settings.site, settings.proxy) == ("north", 'http://user:p"w@proxy:3128')
    assert settings.data.missing == ("",)
    assert settings.config().training_budget.epsilon == 10.0


def test_what_the_file_to_begin_with_shows_in_comments_is_right_too() -> None:
    shown = re.sub(r"(?m)^# (?=[a-z_.]+ = )", "", STARTER)
    settings = parse_site_settings(shown)
    assert settings.data.map["outcome"].recode == {"0": "healthy", "1": "diseased"}
    assert settings.data.columns == ("age", "sex", "outcome")
    assert settings.policy.tasks == ("heart",)
    assert settings.policy.approval == "each-run"


UNITS: dict[str, tuple[str, str, str | None]] = {
    "nothing is said": ("", "", None),
    "the column of people": ('person_column = "mrn"', "", "mrn"),
    "by the task's name for it": ('person_column = "mrn"\nmap.patient = { column = "mrn" }', "", "patient"),
    "the policy's own word": ('person_column = "mrn"', 'unit_column = "household"', "household"),
    "any unit": ('person_column = "mrn"', 'unit_column = ""', ""),
}


@pytest.mark.parametrize(("data", "policy", "unit"), UNITS.values(), ids=UNITS.keys())
def test_the_column_of_people_is_the_unit_that_private_tasks_must_have(
    tmp_path: Path, data: str, policy: str, unit: str | None
) -> None:
    text = STARTER.replace("[data]", f"[data]\n{data}").replace("[policy]", f"[policy]\n{policy}")
    settings = parse_site_settings(text)
    assert settings.config().policy.unit_column == settings.rules().unit_column == unit
    home = SiteHome(tmp_path)
    home.settings_file.write_text(text)
    assert WatchedPolicy(home)().unit_column == unit  # what the daemon enforces
    assert any(f"the rows of each {unit!r} together" in line for line in policy_words(settings, 0)) == bool(unit)


def test_devices_are_all_the_cpu_or_some() -> None:
    for text, devices in (('"cpu"', "cpu"), ('["cuda:1", "cuda:0"]', ("cuda:1", "cuda:0"))):
        assert parse_site_settings(STARTER.replace('"auto"   #', f"{text} #")).compute.devices == devices


@dataclass(frozen=True)
class Bad:
    """One change of the right file, and the words about it."""

    name: str
    old: str
    new: str
    words: str


BAD = (
    Bad("another format", "format = 1", "format = 2", ":2:1: format must be 1, not 2."),
    Bad("a name in capitals", '"north"', '"North"', ":3:1: site must hold up to 63 small letters"),
    Bad("a proxy by https", 'proxy = ""', 'proxy = "https://p:1"', ':4:1: proxy must be "" or written as http://'),
    Bad("a proxy without port", 'proxy = ""', 'proxy = "http://p"', ":4:1: proxy must be"),
    Bad("a proxy's port", 'proxy = ""', 'proxy = "http://p:99999"', ":4:1: proxy must be"),
    Bad("a port", "health_port = 0", "health_port = 70000", ":5:1: health_port must be at most 65535, not 70000."),
    Bad("no data file", 'file = "data.csv"', 'file = ""', ":8:1: data.file must have at least 1"),
    Bad("share", "share = 0.2", "share = 1.0", ":16:1: data.evaluation_share must be below 1, not 1."),
    Bad("unknown key", "[data]", "[data]\nfil = 1", ":8:1: data.fil is not a known key; did you mean 'file'?"),
    Bad("no epsilon", "epsilon = 10.0, ", "", ":20:1: budget.training.epsilon is missing."),
    Bad("budget 0", "epsilon = 10.0", "epsilon = 0.0", "budget.training.epsilon must be above 0, not 0."),
    Bad("a device", '"auto"   #', '"gpu"   #', 'compute.devices must be "auto", "cpu" or an array such as'),
    Bad("a device as number", '"auto"   #', "[0]   #", 'compute.devices must be "auto", "cpu" or an array such as'),
    Bad("no devices", '"auto"   #', "[]   #", 'compute.devices must be "auto", "cpu" or an array such as'),
    Bad("text for a flag", "paused = false", 'paused = "no"', "policy.paused must be true or false, not the text 'no'"),
    Bad("not TOML", "[data]", "[data", ":7:6: is not TOML"),
)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_a_mistake_is_named_with_file_line_and_key(bad: Bad, tmp_path: Path) -> None:
    assert bad.old in STARTER
    file = tmp_path / "site.toml"
    file.write_text(STARTER.replace(bad.old, bad.new, 1))
    with pytest.raises(SettingsInvalid) as raised:
        load_settings(file)
    said = (raised.value.message, *raised.value.problems)
    assert any(line.startswith(str(file)) and bad.words in line for line in said), said


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text(STARTER.replace("0.2", "2.0").replace("0.8", "0.0").replace("format = 1", "format = 3"))
    with pytest.raises(SettingsInvalid, match="has 3 mistakes") as raised:
        load_settings(file)
    assert [problem.split(":")[1] for problem in raised.value.problems] == ["2", "16", "39"]


def test_a_proxy_password_is_not_repeated_in_an_error() -> None:
    with pytest.raises(SettingsInvalid) as raised:
        parse_site_settings(starter_text("north", "https://user:secret-word@proxy:1"))
    assert "secret-word" not in str(raised.value) + "".join(raised.value.problems)


def test_an_empty_folder_says_what_to_do(tmp_path: Path) -> None:
    home = SiteHome(tmp_path / "none")
    for read in (lambda: home.settings, home.membership, home.signing_key, home.fingerprint_secret):
        with pytest.raises(NotSetUp, match="fedloop site join TOKEN"):
            read()
    assert not (tmp_path / "none").exists()


def test_an_altered_membership_is_refused(tmp_path: Path) -> None:
    home = SiteHome(tmp_path)
    member = Membership(
        site="north", coordinator_key="00" * 32, fleet_address="a:1", hub_address="a:2", protocol=1, joined_unix=5
    )
    home.store_membership(member)
    assert home.membership() == member
    home.membership_file.write_text(home.membership_file.read_text().replace("00", "0", 1))
    with pytest.raises(SettingsInvalid, match="is not what joining wrote"):
        home.membership()
