"""What people do while a run goes on: they stop it and let it go on, pause a site, and approve by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.deployment.conftest import SITES
from tests.deployment.federation import PATIENCE, Books, Held, between, bundled_site, settle, small_task

from deployment import Deployment, wait_until
from fedloop_clients.home import SiteHome
from fedloop_clients.status import SiteStatus, read_status

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800), pytest.mark.xdist_group("deployment")]

LONG = 40_000  # steps: a site trains for many seconds
AT_ONCE = (
    30.0  # seconds for a word to reach a site, on a machine that may be busy; on a quiet one it is a second or two
)


def status(deployment: Deployment, site: str) -> SiteStatus:
    return read_status(deployment.site_home(site))


def test_a_stop_reaches_a_site_that_trains_and_a_resume_goes_on(
    rehearsal: Deployment, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    task = small_task(tmp_path, "long", rounds={"count": 1, "sites_per_round": 1}, steps=LONG)
    run = rehearsal.start_run(str(task), "--no-export", "--seed", "5")

    wait_until("the round", lambda: bool(rehearsal.events(run, "round-opened")), PATIENCE)
    (site,) = rehearsal.events(run, "round-opened")[0]["asked"]

    def trains() -> bool:
        found = status(rehearsal, site)
        return (found.run_id, found.activity, found.round) == (run, "training", 1)

    wait_until("the site's training", trains, PATIENCE)
    rehearsal.fedloop("run", "stop", run, "--home", str(rehearsal.home))
    wished = time.monotonic()
    wait_until("the site's rest", lambda: status(rehearsal, site).activity == "idle", AT_ONCE)
    assert rehearsal.wait_for_end(run, AT_ONCE) == "run-stopped"
    record_property("seconds_to_rest", time.monotonic() - wished)
    assert ("local_update", 1) not in Books(rehearsal, site).answered(run)
    assert f"attempt 1 of run {run} is called off" in Books(rehearsal, site).logged()
    resume(rehearsal, run)
    assert [event["attempt"] for event in rehearsal.events(run, "attempt-started")] == [1, 2]
    (closed,) = rehearsal.events(run, "round-closed")
    assert closed["folded"] == [site]


def test_what_was_answered_before_a_stop_is_not_charged_again(rehearsal: Deployment, tmp_path: Path) -> None:
    task = small_task(tmp_path, "stopped-private", rounds={"count": 2}, epsilon=6.0)
    held = Held(2)
    with between(SiteHome(rehearsal.site_home("north")), held):
        run = rehearsal.start_run(str(task), "--no-export")
        held.wait()
        others = [Books(rehearsal, site) for site in SITES[1:]]
        wait_until("all answers", lambda: all(("local_update", 2) in b.answered(run) for b in others), PATIENCE)
        rehearsal.fedloop("run", "stop", run, "--home", str(rehearsal.home))
        assert rehearsal.wait_for_end(run, AT_ONCE) == "run-stopped"
        held.let_go()
    resume(rehearsal, run)
    assert [closed["folded"] for closed in rehearsal.events(run, "round-closed")] == [list(SITES)] * 2
    for site in SITES:
        once = {"number of rows": 1, "moments": 1, "round 1": 1, "round 2": 1}
        assert Books(rehearsal, site).charged(run) == once


def test_a_site_pauses_and_another_waits_for_approval(rehearsal: Deployment, tmp_path: Path) -> None:
    plain = bundled_site(rehearsal.folder, "west", SITES.index("west"))
    careful = type(plain)("west", plain.settings + '\n[policy]\napproval = "each-run"\n')
    settle(rehearsal, careful)
    task = small_task(tmp_path, "policy", rounds={"count": 7, "quorum": 0.3})
    held = Held(1)
    south, west = (str(rehearsal.site_home(site)) for site in SITES[1:])
    try:
        with between(SiteHome(rehearsal.site_home("north")), held):
            run = rehearsal.start_run(str(task), "--no-export")
            held.wait()
            wait_until("the other answer", lambda: ("local_update", 1) in Books(rehearsal, "south").answered(run))
            rehearsal.fedloop("site", "pause", "--home", south)
            held.let_go(until=2)
            held.wait()
            wait_until("the pause", lambda: any(o["round"] == 2 for o in left_out(rehearsal, run)), PATIENCE)
            waiting = rehearsal.fedloop("site", "approve", "--list", "--home", west, json_output=True)["waiting"]
            assert [asked["run_id"] for asked in waiting] == [run]
            rehearsal.fedloop("site", "approve", run, "--home", west)
            rehearsal.fedloop("site", "unpause", "--home", south)
            held.let_go(until=4)
            held.wait()
            wait_until("the answer about its data", lambda: "number of rows" in Books(rehearsal, "west").charged(run))
            held.let_go()
            assert rehearsal.wait_for_end(run, PATIENCE) == "run-finished"
    finally:
        settle(rehearsal, plain)
    folded = [set(closed["folded"]) for closed in rehearsal.events(run, "round-closed")]
    assert folded[:3] == [{"north", "south"}, {"north"}, {"north", "south"}]
    assert folded[4:] == [set(SITES)] * 3
    outs = {(out["site"], out["round"]): out for out in left_out(rehearsal, run)}
    assert set(outs) == {("west", 0), ("south", 2)}
    assert "rule approval" in outs["west", 0]["reason"]
    assert "rule paused" in outs["south", 2]["reason"]
    assert not any(out["for_good"] for out in outs.values())
    shown = rehearsal.fedloop("run", "show", run, "--home", str(rehearsal.home))
    assert "south was left out of round 2: it refused: rule paused" in shown
    assert "west was left out of the run: it refused: rule approval" in shown


def resume(deployment: Deployment, run: str) -> None:
    """Lets a run go on that is stopped, or just about to be, and waits until it has finished."""
    deployment.fedloop("run", "resume", run, "--home", str(deployment.home))
    wait_until("the end", lambda: bool(deployment.events(run, "run-finished")), PATIENCE)


def left_out(deployment: Deployment, run: str) -> list[dict[str, Any]]:
    return [dict(event["left_out"]) for event in deployment.events(run, "site-left-out")]
