"""The pages about deployment, typed as a person would: a coordinator, three sites, a run, and years of operation, in ten minutes."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.docs.typed import Person, Typed, environment_of, matches, typed_in

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "docs" / "deploy-a-site.md", ROOT / "docs" / "operate-a-coordinator.md")
FREE_PORTS = "--front-port 0 --hub-port 0 --superlink-port 0 --health-port 0"
"""The one difference from the page: others may use its ports on this machine."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, as sockets need; with the examples in it and nothing else."""
    made = Path(tempfile.mkdtemp(prefix="ann-"))
    shutil.copytree(ROOT / "examples", made / "examples")
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.xdist_group("deployment")
def test_the_pages_about_deployment_do_what_they_show(folder: Path) -> None:
    person = Person(folder, environment_of(folder, Path(sys.executable).parent))
    wrong: list[str] = []
    try:
        for page in PAGES:
            for typed in typed_in(page):
                try:
                    person.type(with_free_ports(typed))
                except AssertionError as error:
                    if typed.terminal:
                        raise
                    wrong.append(str(error))  # the rest of the page is looked at too
    finally:
        printed = person.close()
    assert not wrong, "\n\n".join(wrong)
    assert set(printed) == {"coordinator", "north", "south", "west"}
    for name, text in printed.items():
        assert text.rstrip().endswith("all processes have stopped"), f"{name}: {text}"


def with_free_ports(typed: Typed) -> Typed:
    """The same command on ports that nobody uses."""
    if not typed.command.startswith("fedloop server init"):
        return typed
    return replace(typed, command=f"{typed.command} {FREE_PORTS}")


def test_each_page_has_steps_and_shows_no_token_whole() -> None:
    for page in PAGES:
        assert list(typed_in(page))
        assert not re.search(r"fedloop-join-1\.\S{60}", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("expected", "output", "fits"),
    [
        ((), "", True),
        ((), "something\n", False),
        (("17:00:01 up",), "09:12:44 up\n", True),
        (("reach it at localhost:8443.",), "reach it at localhost:40001.\n", True),
        (("Is it right? [y/N]: y", "done"), "Is it right? [y/N]: done\n", True),
        (("in /home/ann/x",), "in /srv/f/x\n", True),
        (("a", "...", "b"), "a\nx\n", False),
        (("a ... z",), "a   to z\n", True),
        (("", "a"), "a\n", True),
    ],
)
def test_what_differs_each_time_is_masked_and_nothing_else(expected: tuple[str, ...], output: str, fits: bool) -> None:
    assert matches(expected, output, Path("/srv/f")) is fits
