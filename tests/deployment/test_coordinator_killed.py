"""The whole coordinator is killed while a round is open, and started again: the run goes on as if nothing had been.

What is not private is repeated to the bit: by an uninterrupted run, by one whose coordinator was killed, and by the same rows in
this process without any network.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.deployment.conftest import SITES
from tests.deployment.federation import (
    HOSPITALS,
    PATIENCE,
    Books,
    Held,
    between,
    bundled_site,
    heart_site,
    heart_task,
    hearts_are_here,
    last_digest,
    repeated_in_process,
    settle,
    small_task,
)

from deployment import Deployment, wait_until
from fedloop_clients.home import SiteHome
from fedloop_clients.privacy.planning import plan_run
from fedloop_core.arrays import digest
from fedloop_core.privacy.accounting import epsilon
from fedloop_server.home import CoordinatorHome
from fedloop_server.runs.lock import driver_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.xdist_group("deployment")]

ROUNDS = 4
CUT = 2  # the round in which the coordinator dies


def lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"


def killed_in_mid_round(deployment: Deployment, task: Path, seed: int) -> str:
    """Starts a run, kills the coordinator while all sites have trained and one answer is not there yet; ends the run."""
    held = Held(CUT)
    with between(SiteHome(deployment.site_home("north")), held):
        run = deployment.start_run(str(task), "--no-export", "--seed", str(seed))
        held.wait()
        driver = driver_of(deployment.home / "runs" / run)
        processes = [*deployment.processes("coordinator").values(), driver or 0]
        assert driver is not None
        assert len(processes) == 5
        deployment.kill_all("coordinator")
        wait_until("the end of all processes", lambda: not any(map(lives, processes)), PATIENCE)
        assert not deployment.events(run, "run-finished")
        deployment.start_server()
        held.let_go()
        assert deployment.wait_for_end(run, PATIENCE) == "run-finished"
    return run


def went_on(deployment: Deployment, run: str) -> None:
    """The journal of a run whose coordinator died in round ``CUT``: a second attempt in the same round, nothing twice."""
    told = [(e["event"], e.get("attempt") or e.get("round")) for e in deployment.journal(run)]
    second = told.index(("attempt-started", 2))
    assert ("attempt-started", 3) not in told
    assert told[second - 1] == ("round-opened", CUT)
    assert told[second + 1] == ("round-opened", CUT)
    assert [number for kind, number in told if kind == "round-closed"] == list(range(1, ROUNDS + 1))
    for closed in deployment.events(run, "round-closed"):
        assert closed["folded"] == list(SITES)
        assert closed["left_out"] == []


def trained_once(deployment: Deployment, run: str) -> None:
    """Every site has trained each round once, and its ledger says the same."""
    for site in SITES:
        books = Books(deployment, site)
        rounds = range(1, ROUNDS + 1)
        once = {("data_description", 0): 1, ("moments", 0): 1} | {("local_update", number): 1 for number in rounds}
        assert books.answered(run) == once
        charged = {"number of rows": 1, "moments": 1} | {f"round {number}": 1 for number in rounds}
        assert books.charged(run) == charged


def checkpoint_of(deployment: Deployment, run: str) -> str:
    """Digest of the arrays that lie in the last checkpoint."""
    return digest(CoordinatorHome(deployment.home).trained_arrays(run)).hex()


def same_to_the_bit(deployment: Deployment, task: Path, seed: int, folder: Path) -> None:
    whole = deployment.start_run(str(task), "--no-export", "--seed", str(seed))
    assert deployment.wait_for_end(whole, PATIENCE) == "run-finished"
    broken = killed_in_mid_round(deployment, task, seed)
    went_on(deployment, broken)
    for run in (whole, broken):
        trained_once(deployment, run)
        assert checkpoint_of(deployment, run) == last_digest(deployment, run)
    digests = [[closed["digest"] for closed in deployment.events(run, "round-closed")] for run in (whole, broken)]
    assert digests[0] == digests[1]
    assert repeated_in_process(deployment, whole, SITES, folder) == digests[0]
    shown = deployment.fedloop("run", "show", broken, "--home", str(deployment.home))
    assert f"{ROUNDS} of {ROUNDS} closed, in 2 attempts" in shown


@pytest.mark.long
def test_killed_in_mid_round_the_weights_are_those_of_an_uninterrupted_run(
    rehearsal: Deployment, tmp_path: Path
) -> None:
    task = small_task(tmp_path, "bundled", rounds={"count": ROUNDS})
    same_to_the_bit(rehearsal, task, 7, tmp_path)


@pytest.mark.long
@pytest.mark.skipif(not hearts_are_here(), reason="the hospitals' files are not on this machine")
def test_the_hospitals_too(rehearsal: Deployment, tmp_path: Path) -> None:
    """The sites' people name another file in site.toml; nothing is restarted."""
    for site, hospital in zip(SITES, HOSPITALS, strict=True):
        settle(rehearsal, heart_site(rehearsal.folder, site, hospital))
    try:
        same_to_the_bit(rehearsal, heart_task(tmp_path, ROUNDS), 11, tmp_path)
    finally:
        for part, site in enumerate(SITES):
            settle(rehearsal, bundled_site(rehearsal.folder, site, part))


@pytest.mark.long
def test_a_private_run_spends_what_was_planned(rehearsal: Deployment, tmp_path: Path) -> None:
    task = small_task(tmp_path, "private", rounds={"count": ROUNDS}, epsilon=6.0)
    run = killed_in_mid_round(rehearsal, task, 3)
    went_on(rehearsal, run)
    trained_once(rehearsal, run)
    plan = CoordinatorHome(rehearsal.home).plan(run)
    last = {spend["site"]: spend for spend in rehearsal.events(run, "round-closed")[-1]["spends"]}
    for site in SITES:
        books = Books(rehearsal, site)
        ledger, outbox = books.ledger(), books.home.outbox()
        known = outbox.run(run)
        assert known is not None
        planned = plan_run(plan.task, known.rows_said, ROUNDS)
        ledger.verify()
        rounds = [charge for charge in ledger.charges("original", run) if charge not in planned.others]
        assert rounds == [planned.round] * ROUNDS  # neither less than an uninterrupted run, nor a reservation more
        spent = epsilon([*planned.others[1:], *rounds], plan.task.privacy.delta) + planned.rows.epsilon
        assert last[site]["run_epsilon"] == pytest.approx(spent)
        assert spent <= plan.task.privacy.epsilon * (1 + 1e-6)
        outbox.close()
        ledger.close()
