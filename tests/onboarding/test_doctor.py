"""The doctor: each check tells what is wrong in one sentence and what to do; none stops the others."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from tests.onboarding.bad_fronts import BAD_FRONTS, BadFront

from fedloop_clients.doctor import CHECKS, Check, Finding, Level, Scene, examine
from fedloop_clients.home import SiteHome
from fedloop_clients.joining import join, renew
from fedloop_clients.settings import starter_text
from fedloop_clients.up import check_site
from fedloop_core.errors import BudgetFixed
from fedloop_core.federation.join import JoinToken
from fedloop_core.processes.status import ProcessState, ProcessStatus, SupervisorStatus, write_status
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task.document import DataGate, Gates, LogisticModel, Privacy, Task
from fedloop_core.task.presets import load_preset

if TYPE_CHECKING:
    from tests.onboarding.conftest import Coordinator, Front, Pki
    from tests.onboarding.connect_proxy import ConnectProxy

HEART = Path(__file__).parents[2].parent / "shared" / "data" / "heart_disease_4hospitals"
BY_NAME = {check.name: check for check in CHECKS}
QUICK = tuple(check for check in CHECKS if check.name != "devices")  # that one loads torch


def look(scene: Scene, name: str) -> tuple[Finding, ...]:
    return tuple(finding for _, finding in examine(scene, [BY_NAME[name]]))


def only(scene: Scene, name: str) -> Finding:
    (finding,) = look(scene, name)
    return finding


def told(scene: Scene, *, least: Level = Level.WARNING) -> dict[str, str]:
    """Names of the checks that found something, and what."""
    bad = {Level.PROBLEM} if least is Level.PROBLEM else {Level.PROBLEM, Level.WARNING}
    return {name: finding.sentence for name, finding in examine(scene, QUICK) if finding.level in bad}


def scene_of(home: SiteHome, **options: object) -> Scene:
    return Scene(home, seconds=3.0, **options)  # type: ignore[arg-type]


SCENES = ("nothing", "a file", "a token", "joined", "damaged", "unreadable keys", "closed", "no settings")


@pytest.fixture
def scene(request: pytest.FixtureRequest, coordinator: Coordinator, home: SiteHome, unused_port: int) -> Scene:
    kind = request.param
    if kind == "a file":
        home.folder.touch()
    if kind == "a token":
        return scene_of(home, token=coordinator.token())
    if kind in {"nothing", "a file"}:
        return scene_of(home)
    join(coordinator.token(), home, proxy="", confirm=lambda token: True)
    if kind == "damaged":
        for path in (home.membership_file, home.site_certificate, home.ledger_file, home.standing_file):
            path.write_bytes(b"\xff{")
    if kind == "unreadable keys":
        for path in (home.site_key, home.authorities):
            path.write_bytes(b"\xff")
    if kind == "closed":
        home.store_membership(home.membership().model_copy(update={"fleet_address": f"127.0.0.1:{unused_port}"}))
    if kind == "no settings":
        home.settings_file.unlink()
    return scene_of(home)


@pytest.mark.parametrize("scene", SCENES, indirect=True)
def test_every_check_keeps_to_the_contract_wherever_it_looks(scene: Scene) -> None:
    """No check raises, none takes long, none changes a file; what is wrong comes with what to do."""
    folder = scene.home.folder

    def files() -> dict[Path, bytes]:
        ours = [path for path in folder.rglob("*") if path.is_file() and path.name[-4:] not in {"-wal", "-shm"}]
        return {path: path.read_bytes() for path in ours} if folder.is_dir() else {}

    before = files()
    for check in QUICK:
        begun = time.monotonic()
        for finding in look(scene, check.name):
            assert finding.sentence
            assert finding.sentence[-1] == "."
            assert "check itself failed" not in finding.sentence, (check.name, finding)
            assert "\n" not in finding.sentence + finding.action
            assert bool(finding.action) == (finding.level is not Level.OK), finding
        assert time.monotonic() - begun < 20
    assert files() == before


def test_names_of_checks_are_their_own() -> None:
    assert len(BY_NAME) == len(CHECKS)


class Broken:
    name = "broken"

    def look(self, scene: Scene) -> Iterable[Finding]:
        raise ZeroDivisionError


def test_a_check_that_fails_stops_no_other(home: SiteHome) -> None:
    checks: list[Check] = [Broken(), BY_NAME["files"]]
    (broken, first), (files, _) = examine(scene_of(home), checks)
    assert (broken, files) == ("broken", "files")
    assert first.sentence == "this check itself failed (ZeroDivisionError)."


def test_a_site_that_has_joined_is_well_but_for_its_data(coordinator: Coordinator, joined_home: SiteHome) -> None:
    scene = scene_of(joined_home)
    begun = time.monotonic()
    found = told(scene)
    assert time.monotonic() - begun < 15
    found.pop("users", None)  # this machine may lack them
    found.pop("memory", None)
    assert set(found) == {"data"}, found
    assert "data.csv is not there" in found["data"]
    fine = {name for name, finding in examine(scene, QUICK) if finding.level is Level.OK}
    assert {"name", "route", "tls", "front", "hub", "clock", "version", "certificate", "ledger"} <= fine


def test_before_joining_a_token_is_enough_for_the_way(coordinator: Coordinator, home: SiteHome) -> None:
    found = told(scene_of(home, token=coordinator.token()))
    assert found.pop("membership") == "the site has not joined yet."
    assert found.pop("files").startswith("there is no folder")
    assert set(found) <= {"users", "memory"}
    assert only(scene_of(home, token=coordinator.token()), "front").level is Level.OK


@dataclass(frozen=True)
class Rights:
    name: str
    spoil: Callable[[SiteHome], None]
    words: str


RIGHTS = (
    Rights("key for all", lambda home: home.site_key.chmod(0o644), "site.key (mode 644)"),
    Rights("keys for the group", lambda home: home.keys.chmod(0o750), "keys (mode 750)"),
    Rights("folder for all", lambda home: home.folder.chmod(0o777), "others may write to"),
    Rights("no key", lambda home: home.node_key.unlink(), "lacks node.key"),
)


@pytest.mark.parametrize("rights", RIGHTS, ids=lambda rights: rights.name)
def test_rights_are_looked_at(rights: Rights, joined_home: SiteHome) -> None:
    assert only(scene_of(joined_home), "files").level is Level.OK
    rights.spoil(joined_home)
    findings = look(scene_of(joined_home), "files")
    assert any(rights.words in finding.sentence and finding.level is Level.PROBLEM for finding in findings), findings


def test_mistakes_in_the_settings_are_told_one_by_one(joined_home: SiteHome) -> None:
    text = joined_home.settings_file.read_text()
    joined_home.settings_file.write_text(text.replace("0.2", "2.0").replace("0.8", "8.0"))
    assert len(look(scene_of(joined_home), "site.toml")) == 2
    joined_home.settings_file.write_text(starter_text("south", ""))
    assert "says site 'south', and the site joined as 'north'" in only(scene_of(joined_home), "site.toml").sentence
    joined_home.settings_file.write_text(text)
    joined_home.standing().pause(True)
    assert look(scene_of(joined_home), "site.toml")[0].action == "Run: fedloop site unpause"


def moved(home: SiteHome, *, front: str | None = None, hub: str | None = None) -> SiteHome:
    changes = {"fleet_address": front, "hub_address": hub}
    known = home.membership().model_copy(update={key: value for key, value in changes.items() if value})
    home.store_membership(known)
    return home


def test_a_closed_port_and_an_unknown_name(joined_home: SiteHome, unused_port: int) -> None:
    found = told(scene_of(moved(joined_home, front=f"127.0.0.1:{unused_port}", hub="nobody.invalid:1")))
    assert found["route"] == f"front: 127.0.0.1:{unused_port} cannot be reached: Connection refused."
    assert found["name"].startswith("hub: the name 'nobody.invalid' cannot be resolved")
    assert "tls" not in found


@pytest.mark.parametrize("bad", BAD_FRONTS, ids=lambda bad: bad.name)
def test_wrong_certificates(
    bad: BadFront,
    coordinator: Coordinator,
    joined_home: SiteHome,
    fronts: Callable[[tuple[bytes, bytes]], Front],
    pkis: Callable[[str], Pki],
) -> None:
    front = bad.start(coordinator.pki, fronts, pkis)
    found = told(scene_of(moved(joined_home, front=f"127.0.0.1:{front.port}")))
    assert bad.words in found["tls"]
    if not bad.own_authority:
        assert "CN=interceptor" in found["tls"]
    assert "front" not in found


def test_another_https_server_and_one_that_speaks_no_tls(
    coordinator: Coordinator, joined_home: SiteHome, proxies: Callable[..., ConnectProxy]
) -> None:
    coordinator.front.behave = lambda call, body: (200, b"<html>")
    assert "answers with status 200 and not as a front does" in only(scene_of(joined_home), "front").sentence
    coordinator.front.behave = lambda call, body: (404, b"refused\n")
    assert only(scene_of(joined_home), "front").level is Level.OK
    plain = proxies()
    found = told(scene_of(moved(joined_home, front=f"127.0.0.1:{plain.port}")))
    assert "does not speak TLS as a coordinator does" in found["tls"]


def through(home: SiteHome, coordinator: Coordinator, url: str, host: str = "coordinator.test") -> Scene:
    home.settings_file.write_text(starter_text("north", url))
    moved(home, front=f"{host}:{coordinator.front.port}", hub=f"{host}:{coordinator.hub.port}")
    return scene_of(home)


def test_all_through_a_proxy_that_alone_resolves_the_names(
    coordinator: Coordinator,
    joined_home: SiteHome,
    proxies: Callable[..., ConnectProxy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    proxy = proxies("user:word")
    scene = through(joined_home, coordinator, proxy.url)
    found = told(scene)
    assert set(found) <= {"data", "users", "memory"}, found
    assert only(scene, "hub").level is Level.OK
    assert any("leads to coordinator.test" in finding.sentence for finding in look(scene, "proxy"))
    assert set(proxy.asked) == {f"coordinator.test:{p}" for p in (coordinator.front.port, coordinator.hub.port)}
    assert proxy.other == []


def test_proxies_that_do_not_lead_there(
    coordinator: Coordinator, joined_home: SiteHome, proxies: Callable[..., ConnectProxy]
) -> None:
    asking, refusing, knowing = proxies("u:p"), proxies("", 403), proxies()
    url = f"http://127.0.0.1:{asking.port}"
    assert "asks for a name and a password" in told(through(joined_home, coordinator, url))["proxy"]
    wrong = f"http://u:x@127.0.0.1:{asking.port}"
    assert "does not accept the name and password" in told(through(joined_home, coordinator, wrong))["proxy"]
    assert "refuses the way to" in told(through(joined_home, coordinator, refusing.url))["proxy"]
    unknown = told(through(joined_home, coordinator, knowing.url, "unknown.test"))
    assert "cannot reach unknown.test" in unknown["proxy"]
    no_proxy = f"http://127.0.0.1:{coordinator.front.port}"
    assert "does not answer as" in told(through(joined_home, coordinator, no_proxy))["proxy"]


@dataclass(frozen=True)
class Clock:
    name: str
    seconds_ahead: int
    level: Level
    words: str


CLOCKS = (
    Clock("10 s ahead", 10, Level.PROBLEM, "10 s ahead of the coordinator's; Flower refuses more than 5 s"),
    Clock("3 s ahead", 3, Level.WARNING, "3 s ahead of"),
    Clock("20 s behind", -20, Level.WARNING, "20 s behind the coordinator's"),
    Clock("an hour behind", -3600, Level.PROBLEM, "3600 s behind the coordinator's; Flower refuses more than 300 s"),
    Clock("right", 0, Level.OK, "agrees"),
)


@pytest.mark.parametrize("clock", CLOCKS, ids=lambda clock: clock.name)
def test_a_wrong_clock_is_told_by_hub_or_front(clock: Clock, coordinator: Coordinator, joined_home: SiteHome) -> None:
    coordinator.hub.clock_offset = coordinator.front.clock_offset = -clock.seconds_ahead
    by_hub = only(scene_of(joined_home), "clock")
    coordinator.hub.refusal = grpc.StatusCode.UNAVAILABLE
    by_front = only(scene_of(joined_home), "clock")
    for finding in (by_hub, by_front):
        assert finding.level is clock.level
        nearby = [str(abs(clock.seconds_ahead) + more) for more in (-1, 0, 1)]
        worded = [clock.words.replace(str(abs(clock.seconds_ahead)), near, 1) for near in nearby]
        assert any(words in finding.sentence for words in worded), finding


def test_a_site_that_was_revoked(coordinator: Coordinator, joined_home: SiteHome) -> None:
    coordinator.hub.refusal = grpc.StatusCode.PERMISSION_DENIED
    assert "has revoked this site, or knows it as one that has left" in only(scene_of(joined_home), "hub").sentence


def test_a_certificate_that_has_expired_or_is_of_another(
    coordinator: Coordinator, joined_home: SiteHome, pkis: Callable[[str], Pki]
) -> None:
    now = time.time()
    assert only(scene_of(joined_home), "certificate").level is Level.OK
    late = replace(scene_of(joined_home), clock=lambda: now + 340 * 86_400)
    assert "it should have renewed itself" in only(late, "certificate").sentence
    past = replace(scene_of(joined_home), clock=lambda: now + 400 * 86_400)
    assert "expired" in only(past, "certificate").sentence
    renew(joined_home)
    other = pkis("other").server("x.test")
    joined_home.site_certificate.write_bytes(other[1])
    assert "not over the site's key" in only(scene_of(joined_home), "certificate").sentence
    joined_home.site_key.write_bytes(other[0])
    assert "it ends the connection when the site shows its certificate" in only(scene_of(joined_home), "hub").sentence


@dataclass(frozen=True)
class Generation:
    theirs: int
    level: Level
    words: str


GENERATIONS = (
    Generation(1, Level.OK, "both sides speak generation 1"),
    Generation(2, Level.WARNING, "generation 2 of the protocol, this side 1: they work together"),
    Generation(3, Level.PROBLEM, "speaks generation 3 of the protocol, this side 1; only neighbours work together"),
)


@pytest.mark.parametrize("generation", GENERATIONS, ids=lambda generation: str(generation.theirs))
def test_generations(generation: Generation, coordinator: Coordinator, joined_home: SiteHome) -> None:
    coordinator.hub.protocol = generation.theirs
    finding = only(scene_of(joined_home), "version")
    assert finding.level is generation.level
    assert generation.words in finding.sentence


def test_a_data_file_with_and_without_a_task(joined_home: SiteHome) -> None:
    file = joined_home.folder / "data.csv"
    file.write_text("a,b\n1,2\n1\n")
    finding = only(scene_of(joined_home), "data")
    assert (finding.level, "2 rows of 2 columns (a, b); 1 rows have another number" in finding.sentence) == (
        Level.WARNING,
        True,
    )
    file.write_text("a,b\n")
    assert only(scene_of(joined_home), "data").sentence.endswith("data.csv has no rows.")
    assert "has no column" in only(scene_of(joined_home, task=load_preset("heart")), "data").sentence


@pytest.mark.skipif(not HEART.is_dir(), reason="the UCI files are not on this machine")
def test_a_hospitals_file_for_its_task(joined_home: SiteHome) -> None:
    columns = [
        "age",
        "sex",
        "cp",
        "trestbps",
        "chol",
        "fbs",
        "restecg",
        "thalach",
        "exang",
        "oldpeak",
        "slope",
        "ca",
        "thal",
        "num",
    ]
    lines = [f'file = "{HEART}/processed.switzerland.data"', f"columns = {columns}".replace("'", '"')]
    grades = ", ".join(f'{grade} = "diseased"' for grade in range(1, 5))
    lines += ['missing = ["?"]', f'map.num = {{ recode = {{ 0 = "healthy", {grades} }} }}']
    text = starter_text("north", "").replace('file = "data.csv"', "\n".join(lines) + " ")
    joined_home.settings_file.write_text(text)
    finding = only(scene_of(joined_home, task=load_preset("heart")), "data")
    assert finding.level is Level.OK
    assert "46 rows fit task heart, 77 do not. processed.switzerland.data:" in finding.sentence


def test_a_ledger_that_was_altered(joined_home: SiteHome) -> None:
    ledger = joined_home.ledger()
    ledger.open_block("original", 10.0, 1e-6)
    ledger.close()
    assert "the ledger holds: 2 entries" in only(scene_of(joined_home), "ledger").sentence
    import sqlite3

    with sqlite3.connect(joined_home.ledger_file, isolation_level=None) as connection:
        connection.execute("DROP TRIGGER entry_is_never_changed")
        connection.execute("UPDATE entry SET digest = ?", (bytes(32),))
    connection.close()
    assert "entry 1 does not follow" in only(scene_of(joined_home), "ledger").sentence


@dataclass(frozen=True)
class Values:
    """Rows (glucose, ill) that can be read, and what the doctor says of them."""

    name: str
    rows: str
    level: Level
    words: tuple[str, ...]


VALUES = (
    Values("as they should be", "5,no 6,yes 40,no 7,yes", Level.OK, ()),
    Values("fewer rows than the gate asks for", "5,no 6,yes", Level.WARNING, ("rules of the data gate: minimum-rows",)),
    Values("more rows than the gate allows", "5,no 6,yes " * 3, Level.WARNING, ("maximum-rows",)),
    Values("another unit", "90,no 110,yes 15,no", Level.WARNING, ("2 of 3 rows", "'glucose'", "2 to 16 mmol/l")),
    Values("one class", "5,no 6,no 7,no", Level.WARNING, ("all 3 rows have the class 'no' in column 'ill'",)),
    Values("no rows", "", Level.PROBLEM, ("data.csv has no rows.",)),
)


@pytest.mark.parametrize("values", VALUES, ids=lambda values: values.name)
def test_values_that_are_probably_not_meant(values: Values, joined_home: SiteHome) -> None:
    task = Task(
        format=1,
        name="small",
        features=(NumericFeature(kind="numeric", name="glucose", unit="mmol/l", range=(2.0, 16.0)),),
        label=ClassLabel(kind="classes", name="ill", classes=("no", "yes")),
        model=LogisticModel(kind="logistic"),
        privacy=Privacy(epsilon=float("inf")),
        gates=Gates(data=DataGate(minimum_rows=3, maximum_rows=5)),
    )
    (joined_home.folder / "data.csv").write_text("\n".join(["glucose,ill", *values.rows.split()]) + "\n")
    *fit, finding = look(scene_of(joined_home, task=task), "data")
    assert finding.level is values.level, finding
    assert all(words in finding.sentence for words in values.words), finding
    assert [one.level for one in fit] == [Level.OK] * (values.level is Level.WARNING)
    if values.name == "another unit":
        assert finding.action.startswith("Is it in another unit?")


def test_an_authority_that_was_replaced_since_a_copy_is_a_third_cause(
    coordinator: Coordinator, joined_home: SiteHome, pkis: Callable[[str], Pki]
) -> None:
    joined_home.authorities.write_bytes(pkis("older").authority.certificate)
    findings = look(scene_of(joined_home), "tls")
    assert all("a firewall opens TLS" in finding.action for finding in findings)
    assert all("`fedloop server site renew north`" in finding.action for finding in findings)
    assert all("`fedloop site join TOKEN --again`" in finding.action for finding in findings)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has other users")
def test_users_are_no_matter_once_the_site_runs_as_one(joined_home: SiteHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloop_clients.doctor.machine._USERS", ("fedloop-nobody",))
    assert only(scene_of(joined_home), "users").level is Level.WARNING
    process = ProcessStatus(name="daemon", state=ProcessState.RUNNING, since_unix=5, log="x")
    for user, level in ((None, Level.OK), ("fedloop", Level.WARNING)):
        one = process.model_copy(update={"user": user})
        write_status(joined_home.folder, SupervisorStatus(pid=1, boot_id="x", started_unix=5, processes=(one,)))
        assert only(scene_of(joined_home), "users").level is level


def test_a_budget_that_was_changed_for_open_blocks(joined_home: SiteHome) -> None:
    """The daemon would refuse every run; and whoever starts it is told so first."""
    ledger = joined_home.ledger()
    for block in ("original", "evaluation", "feedback-1", "feedback-evaluation-1"):
        ledger.open_block(block, 10.0, 1e-6)
    ledger.close()
    assert only(scene_of(joined_home), "ledger").level is Level.OK
    check_site(joined_home, None)
    text = joined_home.settings_file.read_text()
    new = "evaluation = { epsilon = 100.0, delta = 1e-3 }"
    joined_home.settings_file.write_text(text.replace("evaluation = { epsilon = 10.0, delta = 1e-6 }", new))
    *bad, _ = look(scene_of(joined_home), "ledger")
    assert [finding.level for finding in bad] == [Level.PROBLEM] * 2
    assert bad[0].sentence == (
        "site.toml names epsilon 100 at delta 0.001 for evaluation rows, and block 'evaluation' was opened with epsilon 10 at "
        "delta 1e-06 for life: the site refuses every run."
    )
    assert bad[0].action.startswith("Put the first budget back under [budget]")
    with pytest.raises(BudgetFixed, match="block 'evaluation' was opened with epsilon 10"):
        check_site(joined_home, None)


def test_ports_and_paths(joined_home: SiteHome, coordinator: Coordinator, tmp_path: Path) -> None:
    text = joined_home.settings_file.read_text()
    joined_home.settings_file.write_text(text.replace("health_port = 0", f"health_port = {coordinator.front.port}"))
    assert "cannot be listened on: Address already in use" in only(scene_of(joined_home), "ports").sentence
    deep = SiteHome(tmp_path / ("x" * 100))
    assert "is too long for a socket" in look(scene_of(deep), "ports")[0].sentence


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk(joined_home: SiteHome, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        (disk / "site").mkdir()
        assert "too little for a run" in only(scene_of(SiteHome(disk / "site")), "disk").sentence
        with pytest.raises(OSError, match="No space"), (disk / "filler").open("wb") as filler:
            filler.write(bytes(1 << 20))
        assert "cannot write to" in only(scene_of(SiteHome(disk / "site")), "disk").sentence
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_devices_are_looked_at_and_none_is_needed(joined_home: SiteHome) -> None:
    findings = look(scene_of(joined_home), "devices")
    assert all(finding.level is not Level.PROBLEM for finding in findings)
    text = joined_home.settings_file.read_text()
    joined_home.settings_file.write_text(text.replace('"auto"   #', '["cuda:97"]   #'))
    finding = look(scene_of(joined_home), "devices")[0]
    assert finding.level is Level.PROBLEM
    assert finding.sentence.startswith("site.toml chooses cuda:97, and torch sees ")


def test_a_token_is_a_stranger_to_a_site_that_has_joined(coordinator: Coordinator, joined_home: SiteHome) -> None:
    """Membership counts once it is there, whatever token is shown."""
    token = JoinToken("north", "nobody.invalid:1", "s", coordinator.pki.der, int(time.time()) + 60)
    assert set(scene_of(joined_home, token=token).targets) == {"front", "hub"}
