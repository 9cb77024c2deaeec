"""The files of deploy/: images, compose file, units and users, looked at rule by rule, and their commands run."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from fedloop_core.processes.roles import FLOWER, FRONT, LINK, MAIN, RELAY

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SIDES = ("server", "site")
INSTRUCTIONS = frozenset(
    [
        "ADD",
        "ARG",
        "CMD",
        "COPY",
        "ENTRYPOINT",
        "ENV",
        "EXPOSE",
        "FROM",
        "HEALTHCHECK",
        "LABEL",
        "RUN",
        "SHELL",
        "STOPSIGNAL",
        "USER",
        "VOLUME",
        "WORKDIR",
    ]
)


@dataclass(frozen=True)
class Step:
    word: str
    rest: str


def parse(text: str) -> list[Step]:
    """Instructions with their continuation lines joined; anything that is none is an error."""
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))
    steps = []
    for line in filter(str.strip, joined.splitlines()):
        found = re.fullmatch(r"([A-Z]+)\s+(\S.*)", line)
        assert found, f"not an instruction: {line!r}"
        assert found[1] in INSTRUCTIONS, f"unknown instruction: {line!r}"
        steps.append(Step(found[1], found[2].strip()))
    return steps


def _last(steps: list[Step]) -> list[Step]:
    begin = max(at for at, step in enumerate(steps) if step.word == "FROM")
    return steps[begin:]


def _pinned_bases(steps: list[Step]) -> bool:
    return all(
        re.match(r"python:3\.11\.\d+-slim-bookworm( AS \w+)?$", step.rest) for step in steps if step.word == "FROM"
    )


def _ordinary_user(steps: list[Step]) -> bool:
    users = [step.rest for step in _last(steps) if step.word == "USER"]
    return bool(users) and re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", users[-1]) is not None


def _no_secrets(steps: list[Step]) -> bool:
    words = re.compile(r"password|passwd|token|secret|api_?key|BEGIN [A-Z ]*PRIVATE", re.IGNORECASE)
    return not any(words.search(step.rest) for step in steps)


def _nothing_piped_to_a_shell(steps: list[Step]) -> bool:
    return not any(re.search(r"curl|wget|\|\s*(ba|da)?sh\b", step.rest) for step in steps if step.word == "RUN")


def _health_check(steps: list[Step]) -> bool:
    return any(step.word == "HEALTHCHECK" and " CMD [" in step.rest for step in _last(steps))


def _exec_forms(steps: list[Step]) -> bool:
    forms = [step.rest for step in _last(steps) if step.word in ("ENTRYPOINT", "CMD")]
    return len(forms) == 2 and all(isinstance(json.loads(form), list) for form in forms)


def _pinned_packages(steps: list[Step]) -> bool:
    installs = [part for step in steps if step.word == "RUN" for part in step.rest.split("&&") if "pip install" in part]
    return bool(installs) and all("--constraint constraints.txt" in part or "==" in part for part in installs)


def _no_cache_kept(steps: list[Step]) -> bool:
    return all("--no-cache-dir" in step.rest for step in steps if step.word == "RUN" and "pip install" in step.rest)


def _copies_and_never_adds(steps: list[Step]) -> bool:
    return not any(step.word == "ADD" or (step.word == "COPY" and step.rest.startswith(". ")) for step in steps)


def _absolute_folders(steps: list[Step]) -> bool:
    return all(step.rest.startswith("/") for step in steps if step.word == "WORKDIR")


RULES: dict[str, Callable[[list[Step]], bool]] = {
    "bases have a pinned tag": _pinned_bases,
    "ends as an ordinary user by number": _ordinary_user,
    "holds no secret": _no_secrets,
    "pipes nothing into a shell": _nothing_piped_to_a_shell,
    "has a health check": _health_check,
    "starts without a shell": _exec_forms,
    "installs pinned packages": _pinned_packages,
    "keeps no cache of pip": _no_cache_kept,
    "copies by name": _copies_and_never_adds,
    "works in absolute folders": _absolute_folders,
}
BROKEN = {
    "bases have a pinned tag": "FROM python:latest",
    "ends as an ordinary user by number": "FROM x\nUSER 1000:1000\nFROM y\nUSER root",
    "holds no secret": "FROM x\nENV JOIN_TOKEN=fedloop-join-1.abc",
    "pipes nothing into a shell": "FROM x\nRUN curl https://x | sh",
    "has a health check": 'FROM x\nHEALTHCHECK --interval=1s CMD ["a"]\nFROM y\nRUN true',
    "starts without a shell": 'FROM x\nENTRYPOINT ["a"]',
    "installs pinned packages": "FROM x\nRUN pip install torch",
    "keeps no cache of pip": "FROM x\nRUN pip install a==1",
    "copies by name": "FROM x\nCOPY . /src",
    "works in absolute folders": "FROM x\nWORKDIR src",
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("side", SIDES)
def test_images(side: str, rule: str) -> None:
    assert RULES[rule](parse((DEPLOY / f"Dockerfile.{side}").read_text()))


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_finds_what_it_is_for(rule: str) -> None:
    assert not RULES[rule](parse(BROKEN[rule]))


@pytest.mark.parametrize("text", ["FORM x", "run true", "FROM"], ids=["misspelt", "small letters", "empty"])
def test_a_line_that_is_no_instruction_is_an_error(text: str) -> None:
    with pytest.raises(AssertionError, match="instruction"):
        parse(text)


@pytest.mark.parametrize("side", SIDES)
def test_an_image_copies_what_is_there_and_installs_extras_that_exist(side: str) -> None:
    steps = parse((DEPLOY / f"Dockerfile.{side}").read_text())
    sources = [
        name
        for step in steps
        if step.word == "COPY" and "--from" not in step.rest
        for name in shlex.split(step.rest)[:-1]
    ]
    assert sources
    assert not [name for name in sources if not (ROOT / name).exists()]
    packages = re.findall(r'"(\w+)/fedloop_', (ROOT / "pyproject.toml").read_text())
    assert set(packages) <= set(sources)
    assert f'".[{side}]"' in "".join(step.rest for step in steps)
    torch = re.search(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert torch
    assert f"torch=={torch[1]}" in "".join(step.rest for step in steps)


def _image_command(side: str, word: str) -> list[str]:
    steps = _last(parse((DEPLOY / f"Dockerfile.{side}").read_text()))
    found = next(step.rest for step in steps if step.word == word)
    command: list[str] = json.loads(found[found.index("[") :])
    return command


def _installed(program: str) -> str:
    return sys.executable if program == "python" else str(Path(sys.executable).with_name(program))


@pytest.mark.parametrize("side", SIDES)
def test_the_entry_point_of_an_image_is_a_command(side: str) -> None:
    program, *more = (*_image_command(side, "ENTRYPOINT"), *_image_command(side, "CMD"), "--help")
    done = subprocess.run([_installed(program), *more], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "--single-user" in re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)


@pytest.mark.parametrize("side", SIDES)
def test_the_health_check_of_an_image_is_a_command(side: str, tmp_path: Path) -> None:
    program, *words, home = _image_command(side, "HEALTHCHECK")
    assert home == f"/var/lib/fedloop/{side}"
    done = subprocess.run([_installed(program), *words, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (1, f"nothing runs in {tmp_path}\n")


def _compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


@pytest.mark.parametrize("name", ["coordinator", "site-north"])
def test_services_are_closed(name: str) -> None:
    service = _compose()["services"][name]
    assert service["read_only"] is True
    assert service["init"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert "environment" not in service  # no secrets, and none needed
    assert "user" not in service
    build = service["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    assert not re.search(r":latest$", service["image"])
    assert not any(str(volume).startswith(("/", "/var/run/docker.sock")) for volume in service["volumes"])


def test_a_site_opens_no_port_and_the_coordinator_two() -> None:
    services = _compose()["services"]
    assert "ports" not in services["site-north"]
    ports = [entry.partition(":")[0] for entry in services["coordinator"]["ports"]]
    exposed = next(s.rest for s in parse((DEPLOY / "Dockerfile.server").read_text()) if s.word == "EXPOSE").split()
    assert ports == exposed == ["8443", "8444"]


def test_compose_names_only_what_it_declares() -> None:
    compose = _compose()
    for service in compose["services"].values():
        named = {volume.partition(":")[0] for volume in service["volumes"] if not volume.startswith(".")}
        assert named <= set(compose["volumes"])
        assert set(service["networks"]) <= set(compose["networks"])
        grace = int(service["stop_grace_period"].removesuffix("s"))
        assert grace >= 4 * 10  # four processes, one after the other


def _unit(side: str) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / f"fedloop-{side}.service")
    return unit


HARDENING = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "ProtectKernelModules": "yes",
    "RestrictNamespaces": "yes",
    "LockPersonality": "yes",
    "SystemCallFilter": "@system-service",
    "UMask": "0077",
    "KillMode": "mixed",
    "LimitCORE": "0",
}


@pytest.mark.parametrize("side", SIDES)
def test_units_are_hardened_and_start_what_exists(side: str) -> None:
    service = _unit(side)["Service"]
    assert {name: service.get(name) for name in HARDENING} == HARDENING
    assert service["ReadWritePaths"] == f"/var/lib/fedloop/{side}"
    assert "CAP_SYS_ADMIN" not in service["CapabilityBoundingSet"]
    assert "CAP_NET_ADMIN" not in service["CapabilityBoundingSet"]
    assert shlex.split(service["ExecStart"])[1:] == [side, "up", "--home", f"/var/lib/fedloop/{side}"]
    assert int(service["TimeoutStopSec"]) >= 40


@pytest.mark.parametrize("side", SIDES)
def test_systemd_understands_the_units(side: str, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    text = (DEPLOY / f"fedloop-{side}.service").read_text().replace("/opt/fedloop/bin/fedloop", "/bin/true")
    copy = tmp_path / f"fedloop-{side}.service"
    copy.write_text(text)
    done = subprocess.run([program, "verify", str(copy)], capture_output=True, text=True, timeout=120)
    assert [line for line in done.stderr.splitlines() if copy.name in line] == []


def test_the_users_are_those_that_processes_get() -> None:
    lines = [
        shlex.split(line)
        for line in (DEPLOY / "sysusers.d" / "fedloop.conf").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert {line[1] for line in lines if line[0] == "u"} == {MAIN, FLOWER, FRONT, RELAY}
    assert {line[1] for line in lines if line[0] == "g"} == {LINK}
    assert {(line[1], line[2]) for line in lines if line[0] == "m"} == {(MAIN, LINK), (FRONT, LINK), (RELAY, LINK)}


def test_sysusers_understands_the_users() -> None:
    program = shutil.which("systemd-sysusers")
    if program is None:
        pytest.skip("systemd-sysusers is not installed")
    file = DEPLOY / "sysusers.d" / "fedloop.conf"
    done = subprocess.run([program, "--dry-run", str(file)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for name in (MAIN, FLOWER, FRONT, RELAY):
        assert f"'{name}'" in done.stderr or name in done.stdout + done.stderr


def test_the_table_names_every_file() -> None:
    table = (DEPLOY / "README.md").read_text()
    for path in DEPLOY.rglob("*"):
        if path.is_file() and path.name != "README.md":
            assert f"`{path.relative_to(DEPLOY)}`" in table
