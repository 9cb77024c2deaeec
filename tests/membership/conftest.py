"""Coordinators in folders of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.membership.coordinators import Coordinator


@pytest.fixture
def coordinators(tmp_path: Path) -> Iterator[Callable[..., Coordinator]]:
    """Makes coordinators, and stops them."""
    made: list[Coordinator] = []

    def make(name: str = "c", **wishes: object) -> Coordinator:
        made.append(Coordinator(tmp_path / name, **wishes))
        return made[-1]

    yield make
    for coordinator in made:
        coordinator.stop()


@pytest.fixture
def coordinator(coordinators: Callable[..., Coordinator]) -> Coordinator:
    """One that serves."""
    return coordinators().start()
