"""One federation for the conditions of one file: each test leaves it as it found it, with its run going on."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conditions.installation import GENERATION
from tests.conditions.small_federation import Federation

OURS = 3  # the generation that this federation is said to speak, so that there are two before it
SITE_DISK, COORDINATOR_DISK = "24m", "96m"


@contextlib.contextmanager
def _small_disk(folder: Path, size: str) -> Iterator[None]:
    """A disk of its own, where one may be mounted; the tests that fill it look whether it is one."""
    folder.mkdir(parents=True)
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
        ).returncode
    )
    try:
        yield
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="module")
def going(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Sites north and south; south's disk and the coordinator's are small, and each side is an installation of its own."""
    folder = tmp_path_factory.mktemp("c")
    with contextlib.ExitStack() as stack:
        made = Federation(folder)
        stack.enter_context(_small_disk(made.home, COORDINATOR_DISK))
        stack.enter_context(_small_disk(made.site_home("south"), SITE_DISK))
        stack.enter_context(contextlib.closing(made))
        for of in ("", "south"):  # all of the first, but south's processes
            made.install(of, **{GENERATION: str(OURS)})
        made.begin()
        for name in ("north", "south"):
            made.add_site(made.small_site(name))
        made.begin_run()
        yield made


@pytest.fixture
def well(going: Federation) -> Federation:
    """The federation, when both sites take part."""
    going.until_round_of("north", "south")
    return going
