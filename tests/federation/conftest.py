from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def sites() -> Iterator[ModuleType]:
    """``sites_for_workers``, imported so that a worker process finds it too: a new process gets this one's path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent)
        yield import_module("sites_for_workers")
