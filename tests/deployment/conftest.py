"""One deployment for the tests of a file: a coordinator and three sites with real processes, TLS and authentication."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # where the whole deployment is written down

from tests.deployment.federation import bundled_site

from deployment import Deployment, deployed

SITES = ("north", "south", "west")


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Set up by commands from empty folders; its sites have bundled rows and no limit of what may be told."""
    folder = tmp_path_factory.mktemp("d")
    with deployed(folder, [bundled_site(folder, name, part) for part, name in enumerate(SITES)]) as deployment:
        yield deployment
