"""The short form of `make chaos`: named processes of a real deployment die in the middle of a run, and the run goes on.

The long form kills each process in each phase; Flower needs a minute to notice some of them, so it is not run here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
CHAOS = [sys.executable, "benchmarks/chaos.py"]
SHORT = (
    "superlink-training",
    "serverapp-training",
    "clientapp-training",
    "daemon-training",
    "front-waiting",
)


def chaos(*arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CHAOS, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout, check=False
    )


def test_the_table_has_each_process_in_each_phase_of_a_run() -> None:
    ran = chaos("--list", timeout=120)
    assert ran.returncode == 0, ran.stderr
    names = set(ran.stdout.split())
    for phase in ("waiting", "training", "sending", "aggregating", "checkpointing", "exporting"):
        for victim in ("coordinator", "service", "front", "superlink", "superexec", "serverapp"):
            assert f"{victim}-{phase}" in names
        for victim in ("supernode", "site-superexec", "relay", "daemon", "site"):
            assert f"{victim}-{phase}" in names
    assert {"clientapp-training", "clientapp-sending"} <= names  # it lives in no other phase
    assert {"backup-elsewhere", "site-snapshot", "in-process"} <= names


@pytest.mark.slow
@pytest.mark.long
def test_a_run_goes_on_with_the_same_weights_whoever_dies() -> None:
    ran = chaos("--short", "--case", "deployed", "--json", timeout=1500)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    told = {outcome["case"]: outcome for outcome in json.loads(ran.stdout)["outcomes"]}
    assert set(told) == set(SHORT)
    assert all(outcome["wrong"] == [] for outcome in told.values())
    assert told["serverapp-training"]["attempts"] == 1
    assert told["daemon-training"]["attempts"] == 0
    assert all(outcome["outage_seconds"] > 0 for outcome in told.values())


@pytest.mark.slow
@pytest.mark.long
def test_a_rehearsal_that_dies_at_random_moments_ends_with_the_same_weights() -> None:
    ran = chaos("--short", "--case", "in-process", "--json", timeout=600)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    verdicts = json.loads(ran.stdout)["verdicts"]
    assert [verdict["private"] for verdict in verdicts] == [False, True]
