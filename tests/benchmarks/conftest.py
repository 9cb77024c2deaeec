"""Runs a benchmark as people do, in a process of its own, and reads what it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
Told = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def told_by() -> Told:
    """What a benchmark tells in its short form; it ends well, within so many seconds."""

    def run(name: str, *options: str, seconds: float = 280) -> dict[str, Any]:
        ran = subprocess.run(
            [sys.executable, f"benchmarks/{name}.py", "--short", "--json", *options],
            cwd=REPOSITORY,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout[-500:] + ran.stderr[-2000:]
        found: dict[str, Any] = json.loads(ran.stdout)
        return found

    return run
