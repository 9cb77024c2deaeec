"""The documentation says what is so: its commands run, its links lead somewhere, its tables come from the code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import click
import pytest
import typer.main

from fedloop_clients.retention import site_stores
from fedloop_clients.settings import RetentionSettings, SiteSettings
from fedloop_core.cli import root
from fedloop_core.errors import FedloopError
from fedloop_server.manager.stores import coordinator_stores
from fedloop_server.settings import ServerSettings

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "deploy").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)
TUTORIALS = sorted((ROOT / "docs").glob("tutorial-*.md"))
NOT_BUILT = {"edge"}
"""Commands that pages name as absent."""
MADE_BY_COMMANDS = ("H/", "S/", "runs/first/", "runs/own/", "tables/", "demo/", "coordinator/", "sites/", "devices/")
COUNTEREXAMPLES = {"proto/__init__.py"}
"""Files that a page names to say that they must not be."""


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


# Blocks that run.


@dataclass(frozen=True)
class Step:
    """A command and the lines that the page shows below it."""

    command: str
    expected: tuple[str, ...]


def steps_in(page: Path) -> Iterator[Step]:
    """Commands of all blocks after ``<!-- run -->``; ``...`` stands for anything."""
    for block in re.findall(r"<!-- run -->\n```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *expected = part.rstrip("\n").split("\n")
            yield Step(command, tuple(expected))


def pattern_of(expected: tuple[str, ...]) -> str:
    """A line of dots alone stands for any lines, also none; dots within a line for any text; blanks for any blanks."""
    lines = []
    for line in expected:
        if line == "...":
            lines.append(r"(?:[^\n]*\n)*?")
        else:
            pieces = [r"\s+".join(map(re.escape, re.split(r"\s+", piece))) for piece in line.split("...")]
            lines.append(r"[^\n]*".join(pieces) + r"[^\S\n]*\n")
    return r"\n*" + "".join(lines) + r"\n*"


@pytest.mark.parametrize(
    ("expected", "output", "matches"),
    [
        ((), "", True),
        ((), "something\n", False),
        (("a", "...", "b"), "a\nb\n", True),
        (("a", "...", "b"), "a\nx\ny\nb\n", True),
        (("a", "...", "b"), "a\nx\n", False),
        (("a ... z",), "a   to z\n", True),
        (("a",), "a\nb\n", False),
    ],
)
def test_the_matcher_tells_right_from_wrong(expected: tuple[str, ...], output: str, matches: bool) -> None:
    assert (re.fullmatch(pattern_of(expected), output) is not None) is matches


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=named)
def test_a_tutorials_commands_do_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    steps = list(steps_in(page))
    assert steps
    mark = "@@@ end of a step @@@"
    script = "".join(f"{step.command}\nstatus=$?; echo '{mark}'; (exit $status)\n" for step in steps)
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "COLUMNS": "120",
        "OMP_NUM_THREADS": "1",
        "LANG": "C.UTF-8",
    }
    done = subprocess.run(
        ["bash", "-c", f"exec 2>&1\n{script}"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    outputs = done.stdout.split(f"{mark}\n")
    for step, output in zip(steps, outputs, strict=False):
        assert re.fullmatch(pattern_of(step.expected), output), f"$ {step.command}\n{output}"
    assert len(outputs) == len(steps) + 1


# What pages name exists.


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        there = page if not path else page.parent / path
        assert there.exists(), f"{target} is not there"
        if heading:
            assert heading in anchors(there), f"{target} is no heading"


def without_code(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Headings as links spell them."""
    headings = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_named_in_a_page_exist(page: Path) -> None:
    files = [str(path.relative_to(ROOT)) for path in tracked()]
    for name in re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|md|toml|proto|svg|txt|json|db|html))`", page.read_text()):
        if name not in COUNTEREXAMPLES and not name.startswith(MADE_BY_COMMANDS):
            assert any(f"/{file}".endswith(f"/{name}") for file in files), f"{name} is not there"


def tracked() -> list[Path]:
    folders = ("core", "clients", "server", "edge", "proto", "simulations", "tests", "docs", "examples", "benchmarks")
    return [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()] + list(ROOT.glob("*"))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_and_options_named_in_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    group = typer.main.get_command(root)
    assert isinstance(group, click.Group)
    known = set(group.list_commands(click.Context(group)))
    for name in re.findall(r"\bfedloop ([a-z]+)\b", " ".join(re.findall(r"`(fedloop [^`]*)`", text))):
        assert name in known | NOT_BUILT, f"there is no `fedloop {name}`"
    options = set(options_of(group))
    if page.parent == ROOT / "docs":
        for option in re.findall(r"`(--[a-z-]+)", text):
            assert option in options | {"--check"}, f"there is no {option}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_each_command_in_a_page_takes_the_options_it_is_shown_with(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    spans = [line[2:] for line in re.findall(r"^\$ fedloop .*$", text, re.MULTILINE)] + re.findall(
        r"`(fedloop [^`]*)`", text
    )
    group = typer.main.get_command(root)
    for span in spans:
        command, words = named_command(group, re.split(r"\s[|>#]|[;&]", span)[0].split()[1:])
        known = set(options_of(command)) | {"--help"}
        for option in (word.split("=")[0] for word in words if word.startswith("--")):
            assert option in known, f"`{span}`: there is no {option}"


def named_command(command: click.Command, words: list[str]) -> tuple[click.Command, list[str]]:
    """The innermost command that the words name, and the words behind its name."""
    if (
        isinstance(command, click.Group)
        and words
        and re.fullmatch(r"[a-z-]*[a-z]", words[0])
        and words[0] not in NOT_BUILT
    ):
        _, found, behind = command.resolve_command(click.Context(command), words)
        assert found is not None
        return named_command(found, behind)
    return command, words


def options_of(command: click.Command) -> Iterator[str]:
    """Of a command and of all below it."""
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            _, inner, _ = command.resolve_command(context, [name])
            assert inner is not None
            yield from options_of(inner)


# What is written by hand agrees with the code.


def test_generated_tables_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate_references.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_no_two_errors_share_a_code() -> None:
    codes = [error.code for error in all_errors(FedloopError)]
    assert len(set(codes)) == len(codes), sorted(code for code in codes if codes.count(code) > 1)


def all_errors(error: type[FedloopError]) -> Iterator[type[FedloopError]]:
    for child in error.__subclasses__():
        if child.__module__.startswith("fedloop_core.errors."):
            yield child
            yield from all_errors(child)


def test_the_changelog_begins_with_this_version() -> None:
    found = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    assert found.group(1) == version("fedloop")


def test_decisions_are_numbered_without_gaps() -> None:
    pages = sorted((ROOT / "docs" / "adr").glob("*.md"))
    for number, page in enumerate(pages, 1):
        text = page.read_text(encoding="utf-8")
        assert page.name.startswith(f"{number:04d}-")
        assert text.startswith(f"# {number}. ")
        for part in ("Context", "Decision", "Consequences"):
            assert f"**{part}.**" in text


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, f"docs/index.md does not name {page.name}"


def test_the_page_on_privacy_names_every_store_and_every_limit() -> None:
    page = (ROOT / "docs" / "privacy.md").read_text()
    told = page[page.index("## How long what is kept") : page.index("## For an impact assessment")]
    for settings in (SiteSettings, ServerSettings):
        limits = settings.model_fields["retention"].default
        for name, days in limits.model_dump().items():
            assert f"`{name}`" in told, name
            assert days is None or f"{days} days" in told, name
    for store in (*site_stores(RetentionSettings()), *coordinator_stores(ServerSettings.rehearsal().retention)):
        assert store.name in told.lower() or store.name in told, store.name


def test_every_test_that_a_page_names_is_there() -> None:
    named_tests = [
        (page, file, test)
        for page in PAGES
        for file, test in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", page.read_text(encoding="utf-8"))
    ]
    assert len(named_tests) > 50
    for page, file, test in named_tests:
        path = ROOT / file
        assert path.is_file(), f"{named(page)} names {file}"
        if test:
            assert f"\ndef {test}(" in path.read_text(encoding="utf-8"), f"{named(page)} names {file}::{test}"


def test_every_threat_says_what_holds_what_does_not_and_which_test_shows_it() -> None:
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    table = page.split("## Who tries what")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]
    assert all(len(row) == 5 for row in cells)
    assert all(tries and holds and fails and "::test_" in shown for _, tries, holds, fails, shown in cells)
    who = " ".join(row[0] for row in cells)
    for one in (
        "curious coordinator",
        "malicious coordinator",
        "curious site",
        "colluding sites",
        "device thief",
        "network",
    ):
        assert one in who
